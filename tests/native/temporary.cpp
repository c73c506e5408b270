// The operators of custom_op.cpp, which here take temporary memory: 1000 bytes, and 300 bytes twice.
#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/kernel/kernel_includes.h>

using executorch::aten::Tensor;
using executorch::runtime::KernelRuntimeContext;

namespace {

Tensor &twice_out(KernelRuntimeContext &context, const Tensor &, Tensor &out) {
  ET_KERNEL_CHECK(context, context.allocate_temp(1000).ok(), MemoryAllocationFailed, out);
  return out;
}

Tensor &thrice_out(KernelRuntimeContext &context, const Tensor &, Tensor &out) {
  ET_KERNEL_CHECK(context, context.allocate_temp(300).ok() && context.allocate_temp(300).ok(),
                  MemoryAllocationFailed, out);
  return out;
}

} // namespace

EXECUTORCH_LIBRARY(et_cffi_test, "twice.out", twice_out);
EXECUTORCH_LIBRARY(et_cffi_test, "thrice.out", thrice_out);

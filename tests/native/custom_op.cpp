// Two operators that the runtime does not have: et_cffi_test::twice.out and et_cffi_test::thrice.out.
#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/kernel/kernel_includes.h>

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::runtime::KernelRuntimeContext;

namespace {

// The arguments are those of the operator's out variant, after the context.
Tensor &multiply(KernelRuntimeContext &context, const Tensor &x, float factor, Tensor &out) {
  ET_KERNEL_CHECK(context, x.scalar_type() == ScalarType::Float, InvalidArgument, out);
  ET_KERNEL_CHECK(context,
                  executorch::runtime::resize_tensor(out, x.sizes()) == executorch::runtime::Error::Ok,
                  InvalidArgument, out);
  for (ssize_t i = 0; i < x.numel(); ++i) {
    out.mutable_data_ptr<float>()[i] = factor * x.const_data_ptr<float>()[i];
  }
  return out;
}

Tensor &twice_out(KernelRuntimeContext &context, const Tensor &x, Tensor &out) {
  return multiply(context, x, 2, out);
}

Tensor &thrice_out(KernelRuntimeContext &context, const Tensor &x, Tensor &out) {
  return multiply(context, x, 3, out);
}

} // namespace

// Registers the kernels when the library is loaded.
EXECUTORCH_LIBRARY(et_cffi_test, "twice.out", twice_out);
EXECUTORCH_LIBRARY(et_cffi_test, "thrice.out", thrice_out);

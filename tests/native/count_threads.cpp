// The operators of custom_op.cpp, which here log how many threads a parallel loop ran on.
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/core/function_ref.h>
#include <executorch/runtime/kernel/kernel_includes.h>

// Exported by libexecutorch_threadpool, for which the SDK has no such header without ET_USE_THREADPOOL.
namespace executorch::extension {
bool parallel_for(int64_t begin, int64_t end, int64_t grain_size,
                  runtime::FunctionRef<void(int64_t, int64_t)> body);
}

using executorch::aten::Tensor;
using executorch::runtime::KernelRuntimeContext;

namespace {

Tensor &count(KernelRuntimeContext &, const Tensor &, Tensor &out) {
  std::mutex mutex;
  std::set<std::thread::id> seen;
  executorch::extension::parallel_for(0, 64, 1, [&](int64_t, int64_t) {
    // Long enough for every thread to get a part.
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    std::lock_guard<std::mutex> lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  ET_LOG(Error, "threads=%zu", seen.size());
  return out;
}

} // namespace

EXECUTORCH_LIBRARY(et_cffi_test, "twice.out", count);
EXECUTORCH_LIBRARY(et_cffi_test, "thrice.out", count);

#include "threads.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "et_cffi.h"
#include "status.h"

// Exported by libexecutorch_threadpool; its headers (threadpool.h, pthreadpool.h) are not part of the SDK.
// Only what is called here is declared: an object of this class is never made, copied or looked into.
namespace executorch::extension::threadpool {
class ThreadPool {
public:
  size_t get_thread_count() const;
  bool _unsafe_reset_threadpool(uint32_t num_threads);
};
ThreadPool *get_threadpool();
} // namespace executorch::extension::threadpool

struct pthreadpool;
namespace executorch::extension::threadpool {
pthreadpool *get_pthreadpool();
} // namespace executorch::extension::threadpool
extern "C" size_t pthreadpool_get_threads_count(pthreadpool *threadpool);
extern "C" size_t pthreadpool_set_threads_count(pthreadpool *threadpool, size_t num_threads);

namespace etcffi {
namespace {

namespace pool = executorch::extension::threadpool;

std::atomic<int64_t> holders{0};
std::atomic<int64_t> uses{0};
std::atomic<bool> changing{false};
std::mutex mutex;
std::condition_variable moved;
thread_local int depth = 0; // of PoolUse on this thread: an operator may itself run a method

pool::ThreadPool *thread_pool() {
  pool::ThreadPool *found = pool::get_threadpool();
  if (found == nullptr) {
    fail(ETCFFI_OutOfMemory, "the runtime has no thread pool");
  }
  return found;
}

// The pool's own mutex guards its count, and a parallel region holds it, so a change waits for one that
// another binding in this process has under way.
void change(size_t count) {
  pool::ThreadPool *threads = thread_pool();
  const size_t most = threads->get_thread_count();
  if (count == 1 || count == most) {
    pthreadpool_set_threads_count(pool::get_pthreadpool(), count);
    return;
  }
  // A pool that uses some of its threads, and not all or one, has now and then given XNNPACK's convolution
  // wrong numbers (measured: 6 of 22,634 runs with 3 of 4 threads, none of 100,000 with all). So any other
  // number takes a pool that was made for it, and making it destroys this one.
  const int64_t held = holders.load();
  if (held > 0) {
    fail(ETCFFI_Busy, "the thread pool was made for " + std::to_string(most) + " threads, and a pool for " +
                          std::to_string(count) +
                          " cannot take its place while methods that delegate to a backend are loaded (" +
                          std::to_string(held) +
                          " of them): they hold the old one; set the number before loading them, or close "
                          "them first");
  }
  threads->_unsafe_reset_threadpool(static_cast<uint32_t>(count));
}

} // namespace

PoolUse::PoolUse() {
  if (depth++ > 0) {
    return;
  }
  for (;;) {
    uses.fetch_add(1);
    if (!changing.load()) {
      return;
    }
    // A change is waiting for the calls before it; this one lets it pass.
    std::unique_lock<std::mutex> lock(mutex);
    uses.fetch_sub(1);
    moved.notify_all();
    moved.wait(lock, [] { return !changing.load(); });
  }
}

PoolUse::~PoolUse() {
  if (--depth > 0) {
    return;
  }
  uses.fetch_sub(1);
  if (changing.load()) {
    std::lock_guard<std::mutex> lock(mutex);
    moved.notify_all();
  }
}

PoolHolder::PoolHolder() noexcept {
  holders.fetch_add(1);
}

PoolHolder::~PoolHolder() {
  holders.fetch_sub(1);
}

} // namespace etcffi

using namespace etcffi;

etcffi_status etcffi_num_threads(size_t *out) {
  return guard([&] {
    thread_pool();
    *out = pthreadpool_get_threads_count(pool::get_pthreadpool());
  });
}

etcffi_status etcffi_set_num_threads(size_t count) {
  return guard([&] {
    if (count < 1 || count > UINT16_MAX) {
      fail(ETCFFI_BadArgument, "the number of threads is 1 or more, not " + std::to_string(count));
    }
    if (depth > 0) {
      fail(ETCFFI_Busy, "the number of threads cannot be set from within a run; set it before or after");
    }
    std::unique_lock<std::mutex> lock(mutex);
    moved.wait(lock, [] { return !changing.load(); }); // one change at a time
    changing.store(true);
    moved.wait(lock, [] { return uses.load() == 0; });
    struct Finish {
      ~Finish() {
        changing.store(false);
        moved.notify_all();
      }
    } finish;
    change(count);
  });
}

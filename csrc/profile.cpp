// The runtime's profiler. It is always in libexecutorch; what feeds it is compiled in with PROFILING_ENABLED.
#include <mutex>
#include <string>

#include <executorch/runtime/platform/profiler.h>

#include "status.h"

namespace runtime = executorch::runtime;
using namespace etcffi;

namespace {

std::mutex mutex; // the profiler has none

// A block that is one too many fails a check, after it has been counted: what is dumped then lies beyond the
// profiler's memory.
bool has_room_for_a_block() {
  runtime::prof_result_t result{};
  runtime::dump_profile_stats(&result);
  if (result.num_blocks < MAX_PROFILE_BLOCKS) {
    return true;
  }
  const auto *header = reinterpret_cast<const runtime::prof_header_t *>(
      result.prof_data + (result.num_blocks - 1) * runtime::prof_buf_size);
  return header->prof_entries == 0 && header->mem_prof_entries == 0 && header->allocator_entries == 0;
}

} // namespace

etcffi_status etcffi_profile_create_block(const char *name) {
  return guard([&] {
    std::lock_guard<std::mutex> lock(mutex);
    if (!has_room_for_a_block()) {
      fail(ETCFFI_BadArgument, "the runtime's profiler has " + std::to_string(MAX_PROFILE_BLOCKS) +
                                   " blocks, and they are used up");
    }
    runtime::profiling_create_block(name);
  });
}

etcffi_status etcffi_profile_dump(const void **data, size_t *nbytes) {
  return guard([&] {
    std::lock_guard<std::mutex> lock(mutex);
    runtime::prof_result_t result{};
    runtime::dump_profile_stats(&result);
    *data = result.prof_data;
    *nbytes = result.num_bytes;
  });
}

etcffi_status etcffi_profile_reset(void) {
  return guard([] {
    std::lock_guard<std::mutex> lock(mutex);
    runtime::reset_profile_stats();
  });
}

// The runtime's memory for a method's structures and for a kernel's temporaries, counted.
#pragma once

#include <algorithm>
#include <cstddef>

#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>

namespace etcffi {

class CountingAllocator final : public executorch::extension::MallocMemoryAllocator {
public:
  void *allocate(size_t size, size_t alignment = kDefaultAlignment) override {
    void *memory = MallocMemoryAllocator::allocate(size, alignment);
    if (memory != nullptr) {
      used_ += size;
      peak_ = std::max(peak_, used_);
    }
    return memory;
  }

  // The runtime resets the temporary one after each instruction.
  void reset() override {
    MallocMemoryAllocator::reset();
    used_ = 0;
  }

  // The most bytes that were asked for between one reset and the next.
  size_t peak() const { return peak_; }

private:
  size_t used_ = 0;
  size_t peak_ = 0;
};

} // namespace etcffi

#include "block.h"

#include <cstdlib>
#include <new>
#include <string>

#include <executorch/runtime/core/device_allocator.h>

#include "status.h"

namespace runtime = executorch::runtime;

namespace etcffi {

std::string describe(const etcffi_device &device) {
  const std::string type = device.type == ETCFFI_DeviceType_CPU ? "cpu"
                           : device.type == ETCFFI_DeviceType_CUDA
                               ? "cuda"
                               : "device type " + std::to_string(device.type);
  return type + ":" + std::to_string(device.index);
}

} // namespace etcffi

using etcffi::Device;
using etcffi::Ref;

Ref<etcffi_block> etcffi_block::allocate(size_t nbytes, Device device) {
  void *allocation = nullptr;
  void *data = nullptr;
  if (device.is_cpu()) {
    if (nbytes > SIZE_MAX / 2) {
      throw std::bad_alloc();
    }
    // calloc and not aligned_alloc with memset: pages that nobody writes to are then never touched.
    allocation = std::calloc(1, nbytes + kRoom + kAlignment);
    if (allocation == nullptr) {
      throw std::bad_alloc();
    }
    const auto address = reinterpret_cast<uintptr_t>(allocation);
    data = static_cast<char *>(allocation) + (kAlignment - address % kAlignment) % kAlignment;
  } else {
    runtime::DeviceAllocator *allocator = runtime::get_device_allocator(device.type());
    if (allocator == nullptr) {
      etcffi::fail(ETCFFI_BadDevice,
                   "cannot allocate on device " + etcffi::describe(etcffi::to_c(device)) +
                       ": no allocator is registered for it; load the library that brings one "
                       "(Runtime.load_library)");
    }
    auto result = allocator->allocate(nbytes == 0 ? 1 : nbytes, device.index());
    etcffi::check(result.error(), "allocating " + std::to_string(nbytes) + " bytes on " +
                                      etcffi::describe(etcffi::to_c(device)));
    allocation = data = result.get();
  }
  return Ref<etcffi_block>::adopt(new etcffi_block(allocation, data, nbytes, device));
}

Ref<etcffi_block> etcffi_block::borrow(void *data, size_t nbytes) {
  auto block = Ref<etcffi_block>::adopt(new etcffi_block(nullptr, data, nbytes, etcffi::DeviceType::CPU));
  block->borrowed_ = true;
  return block;
}

etcffi_block::~etcffi_block() {
  if (device_.is_cpu()) {
    std::free(allocation_);
  } else {
    runtime::get_device_allocator(device_.type())->deallocate(allocation_, device_.index());
  }
}

bool etcffi_block::contains(const void *address, size_t size) const noexcept {
  const auto begin = reinterpret_cast<uintptr_t>(data_);
  const auto asked = reinterpret_cast<uintptr_t>(address);
  return asked >= begin && asked - begin <= nbytes_ && size <= nbytes_ - (asked - begin);
}

size_t etcffi_block::readable_from(const void *address) const noexcept {
  if (!contains(address, 0)) {
    return 0;
  }
  const size_t offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(data_);
  return nbytes_ - offset + (device_.is_cpu() && !borrowed_ ? kRoom : 0);
}

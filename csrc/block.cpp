#include "block.h"

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <tuple>

#include <executorch/runtime/core/device_allocator.h>

#include "status.h"

namespace runtime = executorch::runtime;

using etcffi::Device;
using etcffi::Ref;

namespace {

// Where a block on a device begins: the device's type and index, and the address.
using Place = std::tuple<int32_t, int32_t, uintptr_t>;

Place place_of(const Device &device, const void *address) {
  return {static_cast<int32_t>(device.type()), static_cast<int32_t>(device.index()),
          reinterpret_cast<uintptr_t>(address)};
}

// The blocks on devices. Each is here from its allocation until its destructor begins, so what is found may
// be about to go: see Counted::try_retain.
struct Living {
  std::mutex mutex;
  std::map<Place, etcffi_block *> blocks;
};

Living &living() {
  // Never destroyed: results may outlive the static objects of this library.
  static auto *made = new Living;
  return *made;
}

} // namespace

namespace etcffi {

std::string describe(const etcffi_device &device) {
  const std::string type = device.type == ETCFFI_DeviceType_CPU ? "cpu"
                           : device.type == ETCFFI_DeviceType_CUDA
                               ? "cuda"
                               : "device type " + std::to_string(device.type);
  return type + ":" + std::to_string(device.index);
}

void require_allocator(const Device &device, const std::string &doing) {
  if (!device.is_cpu() && runtime::get_device_allocator(device.type()) == nullptr) {
    fail(ETCFFI_BadDevice, doing + " failed: it needs memory on device " + describe(to_c(device)) +
                               ", and no DeviceAllocator is registered for devices of that kind; load the "
                               "library that brings it (Runtime.load_library)");
  }
}

void copy_bytes(void *to, const Device &to_device, const void *from, const Device &from_device,
                size_t nbytes) {
  if (nbytes == 0) {
    return;
  }
  if (to_device.is_cpu() && from_device.is_cpu()) {
    std::memcpy(to, from, nbytes);
    return;
  }
  const std::string doing = "copying " + std::to_string(nbytes) + " bytes from " +
                            describe(to_c(from_device)) + " to " + describe(to_c(to_device));
  require_allocator(to_device, doing);
  require_allocator(from_device, doing);
  std::unique_ptr<char[]> between;
  if (!from_device.is_cpu()) {
    void *onto = to;
    if (!to_device.is_cpu()) {
      between.reset(new char[nbytes]);
      onto = between.get();
    }
    check(runtime::get_device_allocator(from_device.type())
              ->copy_device_to_host(onto, from, nbytes, from_device.index()),
          doing);
    from = onto;
  }
  if (!to_device.is_cpu()) {
    check(runtime::get_device_allocator(to_device.type())
              ->copy_host_to_device(to, from, nbytes, to_device.index()),
          doing);
  }
}

} // namespace etcffi

using etcffi::Device;
using etcffi::Ref;

Ref<etcffi_block> etcffi_block::allocate(size_t nbytes, Device device, size_t room, size_t alignment) {
  if (nbytes > SIZE_MAX / 4 || room > SIZE_MAX / 4 || alignment > SIZE_MAX / 4) {
    throw std::bad_alloc();
  }
  // Before the memory: whatever fails below, the block's destructor gives back what there is.
  auto block = Ref<etcffi_block>::adopt(new etcffi_block(nbytes, device, room));
  if (device.is_cpu()) {
    // calloc and not aligned_alloc with memset: pages that nobody writes to are then never touched.
    block->allocation_ = std::calloc(1, nbytes + room + alignment);
    if (block->allocation_ == nullptr) {
      throw std::bad_alloc();
    }
    const auto address = reinterpret_cast<uintptr_t>(block->allocation_);
    block->data_ = static_cast<char *>(block->allocation_) + (alignment - address % alignment) % alignment;
    return block;
  }
  const std::string doing =
      "allocating " + std::to_string(nbytes) + " bytes on " + etcffi::describe(etcffi::to_c(device));
  etcffi::require_allocator(device, doing);
  auto result =
      runtime::get_device_allocator(device.type())->allocate(nbytes + room, device.index(), alignment);
  etcffi::check(result.error(), doing);
  block->allocation_ = block->data_ = result.get();
  std::lock_guard<std::mutex> lock(living().mutex);
  living().blocks.emplace(place_of(device, block->data_), block.get());
  return block;
}

Ref<etcffi_block> etcffi_block::find(const Device &device, const void *address, size_t size) {
  std::lock_guard<std::mutex> lock(living().mutex);
  const auto &blocks = living().blocks;
  auto next = blocks.upper_bound(place_of(device, address));
  if (next == blocks.begin()) {
    return {};
  }
  etcffi_block *block = std::prev(next)->second;
  if (block->device() != device || !block->contains(address, size) || !block->try_retain()) {
    return {};
  }
  return Ref<etcffi_block>::adopt(block);
}

Ref<etcffi_block> etcffi_block::borrow(void *data, size_t nbytes) {
  auto block = Ref<etcffi_block>::adopt(new etcffi_block(nbytes, etcffi::DeviceType::CPU, 0));
  block->data_ = data;
  block->borrowed_ = true;
  return block;
}

etcffi_block::~etcffi_block() {
  if (device_.is_cpu()) {
    std::free(allocation_);
  } else if (allocation_ != nullptr) {
    {
      // Before the memory goes: the next block may be given the same address.
      std::lock_guard<std::mutex> lock(living().mutex);
      living().blocks.erase(place_of(device_, data_));
    }
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
  return nbytes_ + room_ - (reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(data_));
}

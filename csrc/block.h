// One piece of memory, on the host or on a device, and who frees it.
#pragma once

#include <cstddef>
#include <string>

#include <executorch/runtime/core/portable_type/device.h>

#include "et_cffi.h"
#include "ref.h"

namespace etcffi {

using executorch::runtime::etensor::Device;
using executorch::runtime::etensor::DeviceIndex;
using executorch::runtime::etensor::DeviceType;

inline etcffi_device to_c(const Device &device) {
  return {static_cast<int32_t>(device.type()), static_cast<int32_t>(device.index())};
}
std::string describe(const etcffi_device &device);

} // namespace etcffi

// Who owns this memory, until when: the block owns it, from allocate() until the last reference to the
// block is gone. Those references are a method's (planned buffers, copied inputs, outputs being written)
// and a result's; a result taken from a method therefore outlives it.
struct etcffi_block final : etcffi::Counted {
  // Host memory is zeroed, aligned to 64 bytes, and has kRoom bytes more at its end than asked for,
  // since a kernel may read whole vectors past the last element. Device memory comes from the
  // DeviceAllocator registered for the device.
  static etcffi::Ref<etcffi_block> allocate(size_t nbytes, etcffi::Device device);

  // Host memory that stays its caller's, who keeps it as long as anything refers to the block.
  static etcffi::Ref<etcffi_block> borrow(void *data, size_t nbytes);
  bool borrowed() const noexcept { return borrowed_; }

  static constexpr size_t kAlignment = 64;
  static constexpr size_t kRoom = 64;

  void *data() const noexcept { return data_; }
  size_t nbytes() const noexcept { return nbytes_; }
  const etcffi::Device &device() const noexcept { return device_; }
  // The bytes that may be read from `address` on; kRoom more on the host than were asked for.
  size_t readable_from(const void *address) const noexcept;
  // Whether [address, address + size) lies in this block.
  bool contains(const void *address, size_t size) const noexcept;

private:
  etcffi_block(void *allocation, void *data, size_t nbytes, etcffi::Device device)
      : allocation_(allocation), data_(data), nbytes_(nbytes), device_(device) {}
  ~etcffi_block() override;

  void *allocation_; // what is given back; data_ is the first aligned address in it
  void *data_;
  size_t nbytes_;
  etcffi::Device device_;
  bool borrowed_ = false;
};

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
inline Device from_c(const etcffi_device &device) {
  return {static_cast<DeviceType>(device.type), static_cast<DeviceIndex>(device.index)};
}
std::string describe(const etcffi_device &device);

// Fails with ETCFFI_BadDevice, saying what to load, where no DeviceAllocator is registered for a device.
// `doing` begins the words.
void require_allocator(const Device &device, const std::string &doing);

// Copies bytes between two places: the only code through which they cross between the host and a device. The
// host never touches device memory itself, but asks the device's allocator. An allocator copies from and to
// the host and no other way, so from device to device the bytes take two copies, through the host.
void copy_bytes(void *to, const Device &to_device, const void *from, const Device &from_device,
                size_t nbytes);

} // namespace etcffi

// Who owns this memory, until when: the block owns it, from allocate() until the last reference to the
// block is gone. Those references are a method's (planned buffers, copied inputs, outputs being written)
// and a result's; a result taken from a method therefore outlives it.
struct etcffi_block final : etcffi::Counted {
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kRoom = 64;

  // Has `room` bytes more at its end than asked for, since a kernel may read whole vectors past the last
  // element. Host memory is zeroed; device memory comes from the DeviceAllocator registered for the device.
  static etcffi::Ref<etcffi_block> allocate(size_t nbytes, etcffi::Device device, size_t room = kRoom,
                                            size_t alignment = kAlignment);

  // Host memory that stays its caller's, who keeps it as long as anything refers to the block.
  static etcffi::Ref<etcffi_block> borrow(void *data, size_t nbytes);
  bool borrowed() const noexcept { return borrowed_; }

  // The living block on a device that [address, address + size) lies in, or none. An address in memory that
  // is allocated here can be of nothing else, so whoever lends it (a torch tensor or a CuPy array over a
  // result), the reference keeps it where it is.
  static etcffi::Ref<etcffi_block> find(const etcffi::Device &device, const void *address, size_t size);

  void *data() const noexcept { return data_; }
  size_t nbytes() const noexcept { return nbytes_; }
  const etcffi::Device &device() const noexcept { return device_; }
  // The bytes that may be read from `address` on, with the room at the end.
  size_t readable_from(const void *address) const noexcept;
  // Whether [address, address + size) lies in this block.
  bool contains(const void *address, size_t size) const noexcept;

private:
  etcffi_block(size_t nbytes, etcffi::Device device, size_t room)
      : nbytes_(nbytes), room_(room), device_(device) {}
  ~etcffi_block() override;

  void *allocation_ = nullptr; // what is given back; data_ is the first aligned address in it
  void *data_ = nullptr;
  size_t nbytes_;
  size_t room_;
  etcffi::Device device_;
  bool borrowed_ = false;
};

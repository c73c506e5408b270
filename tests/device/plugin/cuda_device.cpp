// An NVIDIA GPU's memory by the CUDA driver, for tests/device/real_gpu.py. The driver is opened by name, so
// that neither its headers nor its library are needed to compile this.
#include "device.h"

#include <atomic>
#include <cstdint>

#include <dlfcn.h>

#include <executorch/runtime/core/device_allocator.h>

using executorch::runtime::Error;
using executorch::runtime::Result;
using executorch::runtime::etensor::DeviceIndex;
using executorch::runtime::etensor::DeviceType;

namespace {

// Of cuda.h: CUresult and CUdevice are ints, CUdeviceptr is as wide as a pointer, CUcontext is a pointer.
template <typename... Arguments> int call(const char *name, Arguments... arguments) {
  static void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  void *function = driver == nullptr ? nullptr : dlsym(driver, name);
  return function == nullptr ? -1 : reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
}

std::atomic<int64_t> copies{0}; // by the allocator

// Makes a device's primary context, which CuPy and torch use too, current for one call. It is never given up:
// the process keeps it as they do.
struct Current {
  explicit Current(int index) {
    int device = 0;
    void *context = nullptr;
    ok = call("cuInit", 0U) == 0 && call("cuDeviceGet", &device, index) == 0 &&
         call("cuDevicePrimaryCtxRetain", &context, device) == 0 && call("cuCtxPushCurrent_v2", context) == 0;
  }
  ~Current() {
    void *context = nullptr;
    if (ok) {
      call("cuCtxPopCurrent_v2", &context);
    }
  }
  bool ok;
};

uintptr_t number(const void *address) {
  return reinterpret_cast<uintptr_t>(address);
}

class CudaAllocator final : public executorch::runtime::DeviceAllocator {
public:
  Result<void *> allocate(size_t nbytes, DeviceIndex index, size_t) override {
    const Current current(index);
    uintptr_t made = 0; // aligned to 256 bytes at least
    if (!current.ok || call("cuMemAlloc_v2", &made, nbytes) != 0) {
      return Error::MemoryAllocationFailed;
    }
    return reinterpret_cast<void *>(made);
  }
  void deallocate(void *address, DeviceIndex index) override {
    const Current current(index);
    call("cuMemFree_v2", number(address));
  }
  Error copy_host_to_device(void *to, const void *from, size_t nbytes, DeviceIndex index) override {
    ++copies;
    return device_write(index, to, from, nbytes) ? Error::Ok : Error::Internal;
  }
  Error copy_device_to_host(void *to, const void *from, size_t nbytes, DeviceIndex index) override {
    ++copies;
    return device_read(index, from, to, nbytes) ? Error::Ok : Error::Internal;
  }
  DeviceType device_type() const override { return DeviceType::CUDA; }
};

CudaAllocator allocator;
const bool registered = (executorch::runtime::register_device_allocator(&allocator), true);

} // namespace

bool device_read(int index, const void *device, void *to, size_t nbytes) {
  const Current current(index);
  return current.ok && call("cuMemcpyDtoH_v2", to, number(device), nbytes) == 0;
}

bool device_write(int index, void *device, const void *from, size_t nbytes) {
  const Current current(index);
  return current.ok && call("cuMemcpyHtoD_v2", number(device), from, nbytes) == 0;
}

extern "C" int64_t test_device_copies(void) {
  return copies;
}

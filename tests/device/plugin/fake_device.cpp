// Two devices, "cuda:0" and "cuda:1", in the host's memory where the host cannot reach it: each block is one
// file in memory that is mapped twice, and the address handed out is of the mapping without access. Whoever
// reads or writes there ends the process; the allocator and the backend use the other mapping.
#include "device.h"

#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include <executorch/runtime/core/device_allocator.h>

#include "et_cffi.h"

using executorch::runtime::Error;
using executorch::runtime::Result;
using executorch::runtime::etensor::DeviceIndex;
using executorch::runtime::etensor::DeviceType;

namespace {

constexpr int kDevices = 2;

struct Block {
  char *hidden; // the mapping that can be read and written
  size_t nbytes;
  size_t mapped;
  int index;
  bool counted; // allocated by the runtime, and not by an array library of the tests
};

// In the order of Counters in tests/device/device_plugin.py.
struct Counters {
  int64_t allocations, frees, live_blocks, live_bytes;
  int64_t host_to_device, host_to_device_bytes, device_to_host, device_to_host_bytes;
};

std::mutex mutex; // over everything below
std::map<const char *, Block> blocks;
Counters counters[kDevices];
int64_t leases = 0;
std::string faults; // what was asked of the device and cannot be, a line each
enum Failing { kNothing, kAllocate, kHostToDevice, kDeviceToHost };
int failing = kNothing;

void fault(const std::string &what) {
  faults += what + "\n";
}

// The block that the address is in, on any device, or none.
const std::pair<const char *const, Block> *block_at(const void *address) {
  const char *at = static_cast<const char *>(address);
  auto next = blocks.upper_bound(at);
  if (next == blocks.begin() || at >= std::prev(next)->first + std::prev(next)->second.mapped) {
    return nullptr;
  }
  return &*std::prev(next);
}

// Where [address, address + nbytes) can be read and written, or nullptr where it is not on that device.
char *reach(int index, const void *address, size_t nbytes) {
  const auto *found = block_at(address);
  if (found == nullptr || found->second.index != index) {
    return nullptr;
  }
  const size_t offset = static_cast<size_t>(static_cast<const char *>(address) - found->first);
  return offset + nbytes <= found->second.nbytes ? found->second.hidden + offset : nullptr;
}

void *map_block(int index, size_t nbytes, bool counted) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t mapped = (nbytes + page - 1) / page * page;
  const int file = memfd_create("et_cffi test device", MFD_CLOEXEC);
  if (mapped == 0 || file < 0 || ftruncate(file, static_cast<off_t>(mapped)) != 0) {
    return nullptr;
  }
  void *hidden = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  void *handed = mmap(nullptr, mapped, PROT_NONE, MAP_SHARED, file, 0);
  close(file);
  if (hidden == MAP_FAILED || handed == MAP_FAILED) {
    return nullptr;
  }
  std::memset(hidden, 0xA5, mapped); // nothing may count on a device's memory being zeroed
  blocks[static_cast<char *>(handed)] = {static_cast<char *>(hidden), nbytes, mapped, index, counted};
  return handed;
}

void unmap_block(void *address, int index, bool counted) {
  const auto found = blocks.find(static_cast<char *>(address));
  if (found == blocks.end() || found->second.index != index || found->second.counted != counted) {
    return fault("freed what was not allocated there");
  }
  if (counted) {
    ++counters[index].frees;
    --counters[index].live_blocks;
    counters[index].live_bytes -= static_cast<int64_t>(found->second.nbytes);
  }
  munmap(found->second.hidden, found->second.mapped);
  munmap(address, found->second.mapped);
  blocks.erase(found);
}

class TestAllocator final : public executorch::runtime::DeviceAllocator {
public:
  Result<void *> allocate(size_t nbytes, DeviceIndex index, size_t alignment) override {
    std::lock_guard<std::mutex> lock(mutex);
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    if (index < 0 || index >= kDevices || alignment > page || (alignment & (alignment - 1)) != 0) {
      return Error::InvalidArgument;
    }
    void *made = take_failure(kAllocate) ? nullptr : map_block(index, nbytes, true);
    if (made == nullptr) {
      return Error::MemoryAllocationFailed;
    }
    ++counters[index].allocations;
    ++counters[index].live_blocks;
    counters[index].live_bytes += static_cast<int64_t>(nbytes);
    return made;
  }

  void deallocate(void *address, DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(mutex);
    unmap_block(address, index, true);
  }

  Error copy_host_to_device(void *to, const void *from, size_t nbytes, DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(mutex);
    char *reached = reach(index, to, nbytes);
    if (reached == nullptr || block_at(from) != nullptr) {
      fault("a copy from the host to a device with a wrong address");
      return Error::InvalidArgument;
    }
    if (take_failure(kHostToDevice)) {
      return Error::Internal;
    }
    std::memcpy(reached, from, nbytes);
    ++counters[index].host_to_device;
    counters[index].host_to_device_bytes += static_cast<int64_t>(nbytes);
    return Error::Ok;
  }

  Error copy_device_to_host(void *to, const void *from, size_t nbytes, DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(mutex);
    const char *reached = reach(index, from, nbytes);
    if (reached == nullptr || block_at(to) != nullptr) {
      fault("a copy from a device to the host with a wrong address");
      return Error::InvalidArgument;
    }
    if (take_failure(kDeviceToHost)) {
      return Error::Internal;
    }
    std::memcpy(to, reached, nbytes);
    ++counters[index].device_to_host;
    counters[index].device_to_host_bytes += static_cast<int64_t>(nbytes);
    return Error::Ok;
  }

  DeviceType device_type() const override { return DeviceType::CUDA; }

private:
  static bool take_failure(int what) {
    if (failing != what) {
      return false;
    }
    failing = kNothing;
    return true;
  }
};

TestAllocator allocator;
const bool registered = (executorch::runtime::register_device_allocator(&allocator), true);

// A DLPack tensor whose deleter is C, as it has to be: it may run without an interpreter.
template <typename Managed> struct Lease {
  Managed managed{};
  int64_t shape[ETCFFI_MAX_DIM];
  int64_t strides[ETCFFI_MAX_DIM];
};

template <typename Managed> Managed *lend(const DLTensor &tensor) {
  auto *made = new Lease<Managed>;
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    made->shape[i] = tensor.shape[i];
    made->strides[i] = tensor.strides[i];
  }
  made->managed.dl_tensor = tensor;
  made->managed.dl_tensor.shape = made->shape;
  made->managed.dl_tensor.strides = made->strides;
  made->managed.manager_ctx = made;
  made->managed.deleter = [](Managed *self) {
    std::lock_guard<std::mutex> lock(mutex);
    --leases;
    delete static_cast<Lease<Managed> *>(self->manager_ctx);
  };
  ++leases;
  return &made->managed;
}

} // namespace

bool device_read(int index, const void *device, void *to, size_t nbytes) {
  std::lock_guard<std::mutex> lock(mutex);
  const char *reached = reach(index, device, nbytes);
  if (reached != nullptr) {
    std::memcpy(to, reached, nbytes);
  }
  return reached != nullptr;
}

bool device_write(int index, void *device, const void *from, size_t nbytes) {
  std::lock_guard<std::mutex> lock(mutex);
  char *reached = reach(index, device, nbytes);
  if (reached != nullptr) {
    std::memcpy(reached, from, nbytes);
  }
  return reached != nullptr;
}

extern "C" {

void test_device_counters(int index, Counters *out) {
  std::lock_guard<std::mutex> lock(mutex);
  *out = counters[index];
}

// As in cuda_device.cpp: how many copies the allocator made.
int64_t test_device_copies(void) {
  std::lock_guard<std::mutex> lock(mutex);
  int64_t sum = 0;
  for (const Counters &each : counters) {
    sum += each.host_to_device + each.device_to_host;
  }
  return sum;
}

// Sets the counters back, all but those of what is alive.
void test_device_reset(void) {
  std::lock_guard<std::mutex> lock(mutex);
  for (Counters &each : counters) {
    each = {0, 0, each.live_blocks, each.live_bytes, 0, 0, 0, 0};
  }
  faults.clear();
  failing = kNothing;
}

size_t test_device_faults(char *out, size_t size) {
  std::lock_guard<std::mutex> lock(mutex);
  return faults.copy(out, size);
}

// The next operation of that kind fails: 1 an allocation, 2 a copy to a device, 3 a copy from one.
void test_device_fail_next(int what) {
  std::lock_guard<std::mutex> lock(mutex);
  failing = what;
}

// Memory of an array library: on the device, and in none of the counters.
void *test_device_foreign(int index, size_t nbytes) {
  std::lock_guard<std::mutex> lock(mutex);
  return map_block(index, nbytes, false);
}

void test_device_foreign_free(int index, void *address) {
  std::lock_guard<std::mutex> lock(mutex);
  unmap_block(address, index, false);
}

int test_device_read(int index, const void *device, void *to, size_t nbytes) {
  return device_read(index, device, to, nbytes);
}

int test_device_write(int index, void *device, const void *from, size_t nbytes) {
  return device_write(index, device, from, nbytes);
}

void *test_device_lend(const DLTensor *tensor, int versioned, uint64_t flags) {
  std::lock_guard<std::mutex> lock(mutex);
  if (versioned == 0) {
    return lend<DLManagedTensor>(*tensor);
  }
  auto *made = lend<DLManagedTensorVersioned>(*tensor);
  made->version = {ETCFFI_DLPACK_MAJOR, ETCFFI_DLPACK_MINOR};
  made->flags = flags;
  return made;
}

// How many lent tensors are not given back.
int64_t test_device_leases(void) {
  std::lock_guard<std::mutex> lock(mutex);
  return leases;
}
}

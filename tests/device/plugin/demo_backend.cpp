// The backend that the device models delegate to: one addition, where its tensors are. The exporter's blob
// names what there is to do ("1version:0#op:demo::aten.add.Tensor, numel:4, ..."), the compile spec
// "target_device" where.
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>

#include "device.h"

namespace runtime = executorch::runtime;
using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using runtime::Error;

namespace {

constexpr size_t kArguments = 3; // x, y and x + y

std::atomic<int64_t> runs{0};
std::atomic<int64_t> handles{0};
std::atomic<const void *> seen[kArguments]; // the addresses in the last run

bool read(const Tensor &tensor, void *to) {
  const auto *impl = tensor.unsafeGetTensorImpl();
  if (impl->device_type() != runtime::etensor::DeviceType::CPU) {
    return tensor.nbytes() == 0 || device_read(impl->device_index(), impl->data(), to, tensor.nbytes());
  }
  std::memcpy(to, impl->data(), tensor.nbytes());
  return true;
}

bool write(const Tensor &tensor, const void *from) {
  const auto *impl = tensor.unsafeGetTensorImpl();
  if (impl->device_type() != runtime::etensor::DeviceType::CPU) {
    return tensor.nbytes() == 0 ||
           device_write(impl->device_index(), impl->mutable_data(), from, tensor.nbytes());
  }
  std::memcpy(impl->mutable_data(), from, tensor.nbytes());
  return true;
}

template <typename T> bool add(const Tensor &x, const Tensor &y, const Tensor &out) {
  const auto count = static_cast<size_t>(out.numel());
  std::vector<T> left(count), right(count);
  if (!read(x, left.data()) || !read(y, right.data())) {
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    left[i] += right[i];
  }
  return write(out, left.data());
}

class DemoBackend final : public runtime::BackendInterface {
public:
  bool is_available() const override { return true; }

  runtime::Result<runtime::DelegateHandle *>
  init(runtime::BackendInitContext &, runtime::FreeableBuffer *processed,
       runtime::ArrayRef<runtime::CompileSpec> specs) const override {
    const std::string blob(static_cast<const char *>(processed->data()), processed->size());
    if (blob.find("1version:0#op:demo::aten.add.Tensor,") != 0) {
      return Error::DelegateInvalidCompatibility;
    }
    int device = -1; // the host
    for (const auto &spec : specs) {
      if (std::strcmp(spec.key, "target_device") == 0) {
        const std::string target(static_cast<const char *>(spec.value.buffer), spec.value.nbytes);
        if (target != "cuda:0" && target != "cuda:1") {
          return Error::DelegateInvalidCompatibility;
        }
        device = target.back() - '0';
      }
    }
    ++handles;
    return new int(device);
  }

  Error execute(runtime::BackendExecutionContext &, runtime::DelegateHandle *handle,
                runtime::Span<runtime::EValue *> args) const override {
    if (args.size() != kArguments) {
      return Error::InvalidArgument;
    }
    const int device = *static_cast<int *>(handle);
    for (size_t i = 0; i < kArguments; ++i) {
      const auto *impl = args[i]->toTensor().unsafeGetTensorImpl();
      const bool on_host = impl->device_type() == runtime::etensor::DeviceType::CPU;
      if (device != (on_host ? -1 : impl->device_index())) {
        return Error::InvalidArgument;
      }
      seen[i] = impl->data();
    }
    const Tensor &x = args[0]->toTensor(), &y = args[1]->toTensor();
    Tensor &out = args[2]->toTensor();
    if (runtime::resize_tensor(out, x.sizes()) != Error::Ok || y.numel() != x.numel()) {
      return Error::InvalidArgument;
    }
    const bool done = x.scalar_type() == ScalarType::Float  ? add<float>(x, y, out)
                      : x.scalar_type() == ScalarType::Long ? add<int64_t>(x, y, out)
                                                            : false;
    ++runs;
    return done ? Error::Ok : Error::InvalidArgument;
  }

  void destroy(runtime::DelegateHandle *handle) const override {
    --handles;
    delete static_cast<int *>(handle);
  }
};

DemoBackend backend;
const Error registered = runtime::register_backend({"BackendWithCompilerDemo", &backend});

} // namespace

extern "C" {

int64_t test_backend_runs(void) {
  return runs;
}
// How many delegates are loaded.
int64_t test_backend_handles(void) {
  return handles;
}
const void *test_backend_seen(int argument) {
  return seen[argument];
}
}

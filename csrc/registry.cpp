// The runtime's registries of kernels and backends.
#include <string>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include "status.h"

namespace runtime = executorch::runtime;
using namespace etcffi;

size_t etcffi_num_backends(void) {
  return runtime::get_num_registered_backends();
}

etcffi_status etcffi_backend_name(size_t index, const char **out) {
  return guard([&] {
    auto name = runtime::get_backend_name(index);
    check(name.error(), "reading the backend registry");
    *out = name.get();
  });
}

int32_t etcffi_has_backend(const char *name) {
  return runtime::get_backend_class(name) != nullptr ? 1 : 0;
}

int32_t etcffi_backend_is_available(const char *name) {
  int32_t available = 0;
  const etcffi_status status = guard([&] {
    const runtime::BackendInterface *backend = runtime::get_backend_class(name);
    available = backend != nullptr && backend->is_available() ? 1 : 0;
  });
  return status == 0 ? available : 0;
}

size_t etcffi_num_kernels(void) {
  return runtime::get_registered_kernels().size();
}

etcffi_status etcffi_kernel_name(size_t index, const char **out) {
  return guard([&] {
    const auto kernels = runtime::get_registered_kernels();
    if (index >= kernels.size()) {
      fail(ETCFFI_BadArgument, "no kernel has the number " + std::to_string(index));
    }
    *out = kernels[index].name_;
  });
}

int32_t etcffi_has_kernel(const char *name) {
  // By name alone: a kernel may be registered for certain dtypes only.
  for (const auto &kernel : runtime::get_registered_kernels()) {
    if (kernel.name_ != nullptr && std::string(kernel.name_) == name) {
      return 1;
    }
  }
  return 0;
}

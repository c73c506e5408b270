// The runtime's registries of kernels and backends, and the libraries that fill them.
#include <dlfcn.h>

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

etcffi_status etcffi_load_library(const char *path) {
  return guard([&] {
    if (dlopen(path, RTLD_NOW | RTLD_LOCAL) == nullptr) {
      const char *reason = dlerror();
      fail(ETCFFI_BadFile,
           std::string("loading the library '") + path + "' failed: " + (reason == nullptr ? "" : reason));
    }
  });
}

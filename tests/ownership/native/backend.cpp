// A backend for the tests: it adds, and calls back while it runs. It is registered by several names, so that
// each test has one of which nothing has been said.
#include <executorch/runtime/backend/interface.h>

using namespace executorch::runtime;

namespace {

void (*hook)() = nullptr;

class TestBackend final : public BackendInterface {
public:
  bool is_available() const override { return true; }

  Result<DelegateHandle *> init(BackendInitContext &, FreeableBuffer *,
                                ArrayRef<CompileSpec>) const override {
    return nullptr;
  }

  Error execute(BackendExecutionContext &, DelegateHandle *, Span<EValue *> args) const override {
    if (hook != nullptr) {
      hook();
    }
    if (args.size() != 3) {
      return Error::InvalidArgument;
    }
    const auto &a = args[0]->toTensor();
    const auto &b = args[1]->toTensor();
    auto &out = args[2]->toTensor();
    for (ssize_t i = 0; i < out.numel(); ++i) {
      out.mutable_data_ptr<float>()[i] = a.const_data_ptr<float>()[i] + b.const_data_ptr<float>()[i];
    }
    return Error::Ok;
  }
};

TestBackend backend;

// As long as the name in the models, which is replaced by one of these.
const char *const names[] = {
    "EtCffiOwnershipTest0000", "EtCffiOwnershipTest0001", "EtCffiOwnershipTest0002",
    "EtCffiOwnershipTest0003", "EtCffiOwnershipTest0004", "EtCffiOwnershipTest0005",
};

const bool registered = [] {
  for (const char *name : names) {
    if (register_backend({name, &backend}) != Error::Ok) {
      return false;
    }
  }
  return true;
}();

} // namespace

extern "C" __attribute__((visibility("default"))) int ownership_registered() {
  return registered ? 1 : 0;
}
extern "C" __attribute__((visibility("default"))) void ownership_set_hook(void (*called)()) {
  hook = called;
}

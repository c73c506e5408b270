// A backend that logs the options it is loaded with, and computes nothing.
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/platform/log.h>

using namespace executorch::runtime;

namespace {

class OptionsBackend final : public BackendInterface {
public:
  bool is_available() const override { return true; }

  Result<DelegateHandle *> init(BackendInitContext &context, FreeableBuffer *,
                                ArrayRef<CompileSpec>) const override {
    auto flag = context.get_runtime_spec<bool>("flag");
    auto number = context.get_runtime_spec<int>("number");
    auto text = context.get_runtime_spec<const char *>("text");
    ET_LOG(Error, "flag=%d number=%d text=%s", flag.ok() ? flag.get() : -1, number.ok() ? number.get() : -1,
           text.ok() ? text.get() : "none");
    return nullptr;
  }

  Error execute(BackendExecutionContext &, DelegateHandle *, Span<EValue *>) const override {
    return Error::NotSupported;
  }
};

OptionsBackend backend;
const auto registered = register_backend({"BackendWithCompilerDemo", &backend});

} // namespace

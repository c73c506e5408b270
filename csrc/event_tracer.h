// What a program's methods did and when: an ETDump, and the buffer of intermediate results beside it.
#pragma once

#include <mutex>
#include <optional>
#include <utility>

#include <executorch/devtools/etdump/data_sinks/data_sink_base.h>
#include <executorch/devtools/etdump/etdump_flatcc.h>

#include "block.h"
#include "et_cffi.h"
#include "ref.h"
#include "tensor.h"

namespace etcffi {

// Holds intermediate results. Where they do not fit it goes on counting, so that the run ends well and says
// how many bytes it would have needed; the runtime's own sink would fail a check in the middle of it.
class DebugBuffer final : public executorch::etdump::DataSinkBase {
public:
  explicit DebugBuffer(Ref<etcffi_block> block) : block_(std::move(block)) {}

  executorch::runtime::Result<size_t> write(const void *data, size_t nbytes) override;
  size_t get_used_bytes() const override { return used_; }
  bool overflowed() const { return used_ > block_->nbytes(); }
  size_t nbytes() const { return block_->nbytes(); }
  // Moves the memory out, and goes on with new memory of the same size.
  Ref<etcffi_block> take();
  void clear();

private:
  // Who writes here: the generator, until take() or the tracer's end.
  Ref<etcffi_block> block_;
  size_t used_ = 0;
};

// ETDumpGen fails a check on a value that its format has no name for; this leaves such values out.
class Generator final : public executorch::etdump::ETDumpGen {
public:
  using ETDumpGen::log_intermediate_output_delegate;
  executorch::runtime::Result<bool> log_evalue(const executorch::runtime::EValue &value,
                                               executorch::runtime::LoggedEValueType type) override;
  executorch::runtime::Result<bool>
  log_intermediate_output_delegate(const char *name, executorch::runtime::DelegateDebugIntId index,
                                   const executorch::aten::Tensor &output) override;
  executorch::runtime::Result<bool>
  log_intermediate_output_delegate(const char *name, executorch::runtime::DelegateDebugIntId index,
                                   executorch::runtime::ArrayRef<executorch::aten::Tensor> output) override;
};

} // namespace etcffi

// One for a program, as in the official binding. The runtime's ETDumpGen builds one flatbuffer and has no
// locks, so whatever writes to it holds lock() meanwhile: methods of a traced program run one at a time.
struct etcffi_event_tracer final : etcffi::Counted {
  static etcffi::Ref<etcffi_event_tracer> create(size_t debug_buffer_size);

  // For the whole of a call into the runtime that may trace. What the call left half built, because a check
  // in the runtime failed in the middle of it, is thrown away with everything traced before.
  class Scope {
  public:
    // `tracer` may be NULL: nothing is traced then.
    explicit Scope(etcffi_event_tracer *tracer);
    ~Scope();
    Scope(const Scope &) = delete;
    Scope &operator=(const Scope &) = delete;
    // Says that the call came to its end, well or with an error of the runtime. Fails where the debug buffer
    // was too small for it.
    void done();

  private:
    etcffi_event_tracer *tracer_;
    bool done_ = false;
  };

  executorch::runtime::EventTracer *generator() { return &generator_; }
  // Moves out what was traced since the last time, and starts afresh.
  void take(etcffi::Ref<etcffi_tensor> *dump, etcffi::Ref<etcffi_tensor> *debug);

private:
  etcffi_event_tracer() = default;
  ~etcffi_event_tracer() override = default;
  void start();

  std::optional<etcffi::DebugBuffer> debug_; // the generator writes to it, so it goes after it
  etcffi::Generator generator_;
  std::mutex mutex_;
};

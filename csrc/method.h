// A loaded method: its memory, its inputs, one run after the other, its outputs.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <executorch/runtime/core/event_tracer.h>
#include <executorch/runtime/core/hierarchical_allocator.h>
#include <executorch/runtime/core/span.h>
#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/method.h>

#include "allocator.h"
#include "backend_options.h"
#include "block.h"
#include "data_map.h"
#include "et_cffi.h"
#include "event_tracer.h"
#include "input.h"
#include "program.h"
#include "ref.h"
#include "status.h"
#include "tensor.h"
#include "threads.h"

namespace etcffi {

struct OutputSlot : TensorSlot {
  bool is_tensor = false;
  // A tensor without planned memory, which is no input and no earlier output either: giving an output that
  // is an input a buffer of its own would move the input there too.
  bool wants_memory = false;
  // The output before this one that is the same value, whose memory it shares; or -1.
  int32_t same_as = -1;

  // Who writes here: the runtime, in the run under way. A new block for each run, so that a result that
  // was handed over is never written through.
  Ref<etcffi_block> fresh;
  // Host memory of earlier results, used again once nobody else has a reference to it: a loop then pays for
  // no pages. Two are enough where a caller drops a result as it gets the next; more are never kept.
  std::array<Ref<etcffi_block>, 2> recent;
  Ref<etcffi_block> take_memory(size_t size);
  // What was handed over for the last run, cloned and lent, so that reading twice gives the same.
  Ref<etcffi_tensor> cloned;
  Ref<etcffi_tensor> lent;
};

} // namespace etcffi

struct etcffi_method final : etcffi::Counted {
  static etcffi::Ref<etcffi_method> load(etcffi_program *program, const char *name,
                                         const etcffi_load_options &options);

  // guard(), for a call that may leave the method half way through something: once a check inside the
  // runtime has failed, the method does not run again.
  template <typename Body> etcffi_status call(Body &&body) noexcept {
    return etcffi::guard([&] {
      if (in_use_.exchange(true, std::memory_order_acquire)) {
        etcffi::fail(ETCFFI_Busy, "the method is being used by another thread; load one for each thread");
      }
      struct Leave {
        std::atomic<bool> &in_use;
        ~Leave() { in_use.store(false, std::memory_order_release); }
      } leave{in_use_};
      const StateUse use(shared_);
      try {
        body();
      } catch (const etcffi::RuntimeAbort &) {
        broken_ = true;
        throw;
      }
    });
  }

  void set_inputs(etcffi_value *values, size_t count);
  void refuse_inputs();
  bool has_inputs() const { return state_ == Inputs::kSet || state_ == Inputs::kSpent; }
  void execute() { execute(nullptr); }
  // Runs it with outputs written to the memory that `into` gives, one value for each; the others are got.
  void run_into(const etcffi_value *into, bool clone, etcffi_value *values, size_t count);
  void get_outputs(bool clone, etcffi_value *values, size_t count);
  etcffi::Ref<etcffi_tensor> get_attribute(const char *name);
  etcffi_planned_buffer planned_buffer(size_t index) const;
  size_t structures() const { return method_allocator_.peak(); }
  size_t temporary_peak() const { return temp_allocator_.peak(); }

private:
  // Claims the state that the method shares with others, for one call.
  class StateUse {
  public:
    explicit StateUse(etcffi::SharedState *state);
    ~StateUse();
    StateUse(const StateUse &) = delete;
    StateUse &operator=(const StateUse &) = delete;

  private:
    etcffi::SharedState *state_; // NULL: it shares none
  };

  enum class Inputs {
    kUnset,
    kSet,
    // A call was refused: the runtime may hold pointers of two calls. Nothing runs and nothing is read
    // until a whole set is there.
    kRefused,
    // The last run overwrote planned inputs, so running again would read something else.
    kSpent,
  };

  etcffi_method(etcffi_program *program, const etcffi_load_options &options)
      : program_(program), data_(options.data), event_tracer_(options.tracer) {}
  ~etcffi_method() override = default;

  void load_method(const char *name, size_t index, const etcffi_load_options &options);
  void place_planned_buffers(size_t index, const etcffi_load_options &options, const std::string &doing);
  void require_allocators(size_t index, const std::string &doing) const;
  void describe_inputs(size_t index);
  void describe_outputs(size_t index);
  void require_usable() const;
  void require_inputs() const;
  bool is_lent(const etcffi_memory &memory) const;
  void execute(const etcffi_value *into);
  void check_into(const etcffi_value *into, size_t count) const;
  bool may_write_to(const etcffi::OutputSlot &slot, const etcffi_memory &memory) const;
  void place(const etcffi_value *into);
  void install(size_t index, etcffi_value &value);
  void give(size_t index, const executorch::runtime::EValue &value);
  etcffi::Ref<etcffi_tensor> make_result(const executorch::aten::Tensor &tensor, bool clone,
                                         etcffi::OutputSlot *slot);
  template <typename List> void write_items(const List &list, bool clone, etcffi_value &out);
  void write_values(bool clone, const etcffi_value *into, etcffi_value *values);
  void write_value(const executorch::runtime::EValue &value, bool clone, etcffi::OutputSlot &slot,
                   etcffi_value &out);

  // In this order: each is used by those below it until they are destroyed. The method reads the program's
  // bytes, and its planned buffers, until its own destructor has run.
  etcffi::Ref<etcffi_program> program_;
  etcffi::Ref<etcffi_data_map> data_;
  etcffi::Ref<etcffi_event_tracer> event_tracer_;
  etcffi::SharedState *shared_ = nullptr; // the program's
  std::optional<etcffi::PoolHolder> pool_holder_;
  etcffi::CountingAllocator method_allocator_;
  etcffi::CountingAllocator temp_allocator_;
  std::vector<etcffi::Ref<etcffi_block>> planned_;
  std::vector<executorch::runtime::Span<uint8_t>> spans_;
  std::vector<etcffi::Device> devices_;
  std::optional<executorch::runtime::HierarchicalAllocator> planned_memory_;
  std::optional<executorch::runtime::MemoryManager> memory_manager_;
  std::unique_ptr<etcffi::BackendOptions> backend_options_;
  std::vector<etcffi::InputSlot> inputs_;
  std::vector<etcffi::OutputSlot> outputs_;
  std::optional<executorch::runtime::Method> method_;

  Inputs state_ = Inputs::kUnset;
  // Whether a run overwrites the planned memory that an input was copied into.
  bool inputs_spent_by_run_ = false;
  bool executed_ = false;
  // Whether the last run had memory of its caller's for outputs, which lasts through the call and no longer:
  // they are not read again, since others may lie in it too. The next run gives the runtime other pointers.
  bool placed_ = false;
  bool broken_ = false;
  std::atomic<bool> in_use_{false};
};

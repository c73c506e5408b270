// A loaded program, and who keeps the bytes it is read from.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <executorch/runtime/core/data_loader.h>
#include <executorch/runtime/core/freeable_buffer.h>
#include <executorch/runtime/executor/program.h>

#include "et_cffi.h"
#include "ref.h"
#include "schema.h"
#include "shared_state.h"

struct etcffi_program final : etcffi::Counted {
  // Who owns the bytes, until when: the loader reads them as long as the program lives, which is until its
  // last method is gone. A file's are mapped by the loader itself. A buffer's are the caller's, who must
  // keep them that long, except where they were copied into copied_.
  static etcffi::Ref<etcffi_program> load_file(const char *path, int32_t verification);
  static etcffi::Ref<etcffi_program> load_buffer(const void *data, size_t nbytes, bool copy,
                                                 int32_t verification);

  const executorch::runtime::Program &program() const { return *program_; }
  // The verified flatbuffer, which begins where the file does.
  const executorch::runtime::FreeableBuffer &flatbuffer() const { return *flatbuffer_; }
  size_t num_methods() const { return plans_.size(); }
  // Fails with ETCFFI_BadArgument where there is none of that index.
  const etcffi::fb::ExecutionPlan *plan(size_t method) const;
  // Fails with ETCFFI_UnknownMethod, naming those there are.
  size_t find_method(const char *name) const;
  // What this method shares with others, or NULL.
  etcffi::SharedState *shared_state(size_t method) const {
    return shared_state_ && shared_state_->used_by(plan(method)) ? shared_state_.get() : nullptr;
  }
  executorch::runtime::MethodMeta meta(size_t method) const;
  etcffi_tensor_info tensor_info(size_t method, int32_t side, size_t index) const;
  // Fails with ETCFFI_BadFile where the data of one of a method's delegates does not belong to the program.
  void check_delegates(size_t method) const;

private:
  explicit etcffi_program(std::string what) : what_(std::move(what)) {}
  ~etcffi_program() override = default;
  void load(int32_t verification);

  // In this order: each is used by those below it until they are destroyed.
  std::string what_;
  std::vector<uint8_t> copied_;
  std::unique_ptr<executorch::runtime::DataLoader> loader_;
  std::optional<executorch::runtime::FreeableBuffer> flatbuffer_;
  const etcffi::fb::Program *parsed_ = nullptr;
  uint64_t segments_at_ = 0;
  std::vector<const etcffi::fb::ExecutionPlan *> plans_;
  std::unique_ptr<etcffi::SharedState> shared_state_;
  std::optional<executorch::runtime::Program> program_;
};

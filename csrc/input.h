// What a method was exported to take and to return, the check of the memory that a caller gives for it, and
// the memory of a copy where one is needed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "block.h"
#include "et_cffi.h"
#include "ref.h"

namespace etcffi {

// An input, or an output, as far as both are memory that a caller may give.
struct TensorSlot {
  std::string label; // "input 0 ('x')"
  bool is_output = false;
  etcffi_tensor_info info{}; // of a tensor
  // What the delegates that may read it need of its memory, or which of them never said; "" if none.
  std::string unknown_backend;
  size_t needs_padding = 0;
  size_t needs_alignment = 1;
};

struct InputSlot : TensorSlot {
  int32_t tag = 0;
  // The memory of an input that could not be pointed at. Who reads it: the runtime, in every run until the
  // input is replaced. Kept for the next input of this slot, which is then copied over it.
  Ref<etcffi_block> copy;
  // The block of this library that the input points into, on a device. Who reads it: the runtime, likewise.
  Ref<etcffi_block> pointed_into;
  // Whether the input being set is in `copy` already.
  bool copied = false;
  // The caller's memory that the runtime reads, or NULL.
  const void *reads = nullptr;
  size_t reads_nbytes = 0;
};

// Fails, naming the input and what to do, where `value` is not what the slot takes. On success a tensor's
// shape, strides, dtype and device are those the method was exported for, within its bounds.
void check_input(const InputSlot &slot, const etcffi_value &value);
// Fails, naming the output and what to do, where `value` is no memory that the output can be written to.
void check_output(const TensorSlot &slot, bool is_tensor, const etcffi_value &value);

// Fails where a run gave another shape or layout than the memory that was given for the output has.
void check_result(const TensorSlot &slot, const etcffi_memory &given, const etcffi_memory &result);

// The one rule of copying or pointing: whether the runtime may keep a pointer to this memory, of `nbytes`
// bytes, until the input is replaced, or for a run where it is an output's. Planned inputs are copied inside
// the call that sets them, and so is memory that is not where the method takes it. Otherwise the source must
// promise that its memory stays put and may be written, since a kernel may write to its input; and a delegate
// that reads it must have said what it needs, since it may read past the end of what it was given. Memory in
// a `block` of this library needs no promise, and has at its end the room that a copy would have.
bool may_point_at(const TensorSlot &slot, const etcffi_memory &memory, size_t nbytes,
                  const etcffi_block *block);

// The block of this library on a device that memory of `nbytes` bytes is in, or none; see etcffi_block::find.
Ref<etcffi_block> device_block_of(const etcffi_memory &memory, size_t nbytes);

// What the backends have answered; see etcffi_set_backend_needs.
struct BackendNeeds {
  size_t padding;
  size_t alignment;
};
std::optional<BackendNeeds> needs_of_backend(const std::string &backend);
// Writes down what the backends that may read the slot's memory have answered.
void ask_backends(TensorSlot &slot, const std::vector<std::string> &backends);

// The strides, in elements, that `sizes` have in `dim_order`.
void strides_in_dim_order(int32_t ndim, const int64_t *sizes, const uint8_t *dim_order, int64_t *strides);

} // namespace etcffi

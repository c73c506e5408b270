// What a program's flatbuffer says that MethodMeta does not: devices, dynamic shapes, which planned
// memory is used twice. Read through the accessors generated from ExecuTorch's schema, and only after the
// whole buffer was verified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "block.h"
#include "et_cffi.h"

namespace executorch_flatbuffer {
struct EValue;
struct ExecutionPlan;
struct Program;
struct Tensor;
} // namespace executorch_flatbuffer

namespace etcffi {

namespace fb = executorch_flatbuffer;

// How many bytes of a program's file the flatbuffer and the segments take.
struct FileExtent {
  uint64_t flatbuffer;
  uint64_t whole;
  uint64_t segments_at; // 0: the header names no segments
};

constexpr size_t kHeadBytes = 64;

// Reads the first kHeadBytes (or fewer, of a shorter file) and fails with ETCFFI_BadFile, in words, on
// whatever is no whole .pte of this version: empty, truncated, bundled, a .ptd, something else.
FileExtent check_head(const uint8_t *head, size_t head_size, uint64_t file_size, const std::string &what);

// Fails with ETCFFI_BadFile where an offset or a length in the flatbuffer leads outside of it.
const fb::Program *verify(const uint8_t *flatbuffer, size_t size, const std::string &what);
// The same, where a segment that the flatbuffer names is not in the file behind it.
void check_segments(const fb::Program *program, const FileExtent &extent, uint64_t file_size,
                    const std::string &what);

// The value behind a method's input or output, or NULL where the index is off.
const fb::EValue *value_of(const fb::ExecutionPlan *plan, int32_t side, size_t index);
// The same value's tensor, or NULL where it is none.
const fb::Tensor *tensor_of(const fb::ExecutionPlan *plan, int32_t side, size_t index);
// The index into the plan's values, or -1.
int32_t value_index(const fb::ExecutionPlan *plan, int32_t side, size_t index);

bool is_dynamic(const fb::Tensor *tensor);
Device device_of(const fb::Tensor *tensor);

// Where a tensor's planned memory is.
struct PlannedRange {
  uint32_t memory_id;
  uint64_t begin;
  uint64_t end;
};
// False where the tensor is NULL or has none.
bool planned_range(const fb::Tensor *tensor, PlannedRange *out);
// A tensor that the file brings the bytes of and puts on a device, or NULL. The runtime leaves the bytes in
// the host's memory and calls it the device's.
const fb::Tensor *constant_on_device(const fb::ExecutionPlan *plan);

// Whether an input's planned memory is given to another value too, so that a run overwrites the input.
bool planned_memory_is_reused(const fb::ExecutionPlan *plan, size_t input);

// The backends whose delegates may read the memory of an input or an output: as an argument of their own, or
// through a value that shares it (a view of it, or a moved value).
std::vector<std::string> backends_reached(const fb::ExecutionPlan *plan, int32_t side, size_t index);

size_t num_instructions(const fb::ExecutionPlan *plan);

// The names of all operators and of all backends that a method uses, as the registries spell them.
std::vector<std::string> operator_names(const fb::ExecutionPlan *plan);
std::vector<std::string> backend_names(const fb::ExecutionPlan *plan);

// The names of the tensors whose data is outside of the program's file.
std::vector<std::string> external_names(const fb::ExecutionPlan *plan);

} // namespace etcffi

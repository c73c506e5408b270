// Checks, when compiled, that include/et_cffi.h says what the runtime's own headers say.

#include "et_cffi.h"

#include <executorch/runtime/core/error.h>
#include <executorch/runtime/core/exec_aten/util/tensor_dimension_limit.h>
#include <executorch/runtime/core/portable_type/device.h>
#include <executorch/runtime/core/portable_type/scalar_type.h>
#include <executorch/runtime/core/tag.h>
#include <executorch/runtime/executor/program.h>

// An enumerator that the runtime has and the header has not is an error, whatever the other flags are.
#pragma GCC diagnostic error "-Wswitch"

namespace {

#include "tables.inc"

static_assert(executorch::runtime::kTensorDimensionLimit == ETCFFI_MAX_DIM);
static_assert(sizeof(etcffi_memory::sizes) == ETCFFI_MAX_DIM * sizeof(int64_t));
static_assert(sizeof(etcffi_memory::strides) == ETCFFI_MAX_DIM * sizeof(int64_t));
static_assert(sizeof(etcffi_tensor_info::sizes) == ETCFFI_MAX_DIM * sizeof(int32_t));
static_assert(sizeof(etcffi_tensor_info::dim_order) == ETCFFI_MAX_DIM * sizeof(uint8_t));

using Verification = executorch::runtime::Program::Verification;
static_assert(static_cast<int>(Verification::Minimal) == ETCFFI_Verification_Minimal);
static_assert(static_cast<int>(Verification::InternalConsistency) == ETCFFI_Verification_InternalConsistency);

} // namespace

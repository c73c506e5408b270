// The one table of scalar types: names, sizes, buffer formats and DLPack codes, in both directions.
#pragma once

#include <executorch/runtime/core/exec_aten/exec_aten.h>

#include "et_cffi.h"

namespace etcffi {

using ScalarType = executorch::aten::ScalarType;

// Fails with ETCFFI_BadDtype where the number names no scalar type.
const etcffi_dtype &dtype_of(int32_t scalar_type);

inline const etcffi_dtype &dtype_of(ScalarType scalar_type) {
  return dtype_of(static_cast<int32_t>(scalar_type));
}

// The scalar type of a DLPack name, or -1.
int32_t scalar_type_of(const DLDataType &dtype) noexcept;

} // namespace etcffi

// The data of an XNNPACK delegate, which the backend reads for itself, as far as it has to agree with the
// program around it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "schema.h"

namespace etcffi {

// Fails with ETCFFI_BadFile where XNNPACK would read or write memory that is not there, because the program
// passes the delegate other arguments than its data was made for, or weights that are too small. What the
// data says of the operations themselves is XNNPACK's to check.
void check_xnnpack(const fb::Program *program, const fb::ExecutionPlan *plan, size_t delegate,
                   const uint8_t *data, size_t size, const std::string &what);

} // namespace etcffi

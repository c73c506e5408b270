// Whether what a program says makes sense, which its flatbuffer's verifier does not ask.
#pragma once

#include <cstdint>
#include <string>

#include "schema.h"

namespace etcffi {

// Fails with ETCFFI_BadFile, saying where, on a program that the runtime, a kernel or this library would read
// or write memory for that is not there: an index, a size or an offset out of range, a missing table, a
// kernel that writes to a constant, a tensor without memory. In time linear in the flatbuffer, which was
// verified.
//
// What it cannot see: where the jumps of a loop lead in the end, what is in a delegate's own data, and which
// arguments of a delegate it writes to.
void validate(const fb::Program *program, const FileExtent &extent, const std::string &what);

} // namespace etcffi

// Verifies the files that Python reads with flatbuffers, whose Python library verifies nothing.
#include <cstddef>
#include <cstdint>

#include "schema/bundled_program_schema_generated.h"
#include "schema/etdump_schema_flatcc_generated.h"
#include "status.h"

using namespace etcffi;

etcffi_status etcffi_verify_file(int32_t kind, const void *data, size_t nbytes) {
  return guard([&] {
    flatbuffers::Verifier::Options options;
    options.max_tables = UINT32_MAX;
    // Python reads it byte by byte; and flatcc, which writes ETDumps, aligns to the start with the size in
    // it.
    options.check_alignment = false;
    flatbuffers::Verifier verifier(static_cast<const uint8_t *>(data), nbytes, options);
    bool whole = false;
    if (kind == ETCFFI_FILE_ETDUMP) {
      whole = etdump::VerifySizePrefixedETDumpBuffer(verifier);
    } else if (kind == ETCFFI_FILE_BUNDLED_PROGRAM) {
      whole = bundled_program_flatbuffer::VerifyBundledProgramBuffer(verifier);
    } else {
      fail(ETCFFI_BadArgument, "no kind of file has the number " + std::to_string(kind));
    }
    if (!whole) {
      fail(ETCFFI_BadFile, "its flatbuffer does not verify");
    }
  });
}

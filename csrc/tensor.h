// A result: a description of memory, and the block that the memory is in.
#pragma once

#include <utility>

#include "block.h"
#include "et_cffi.h"
#include "ref.h"

struct etcffi_tensor final : etcffi::Counted {
  etcffi_tensor(const etcffi_memory &described, etcffi::Ref<etcffi_block> holder)
      : memory(described), block(std::move(holder)) {}

  const etcffi_memory memory;
  // Who reads it: whoever holds this tensor or a DLPack capsule made of it. Until when: the last of them.
  const etcffi::Ref<etcffi_block> block;
};

namespace etcffi {

// A tensor in memory of its own on `device`. The memory is packed: its nbytes are those of its elements.
Ref<etcffi_tensor> copy_of(const etcffi_memory &memory, const Device &device);

} // namespace etcffi

#include "input.h"

#include <algorithm>
#include <climits>
#include <map>
#include <mutex>

#include <executorch/runtime/core/tag.h>

#include "dtype.h"
#include "status.h"

namespace etcffi {
namespace {

template <typename T> std::string tuple(const T *items, int32_t count) {
  std::string text = "(";
  for (int32_t i = 0; i < count; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(items[i]);
  }
  return text + (count == 1 ? ",)" : ")");
}

// How a Python reader calls a value of that tag.
std::string kind_name(int32_t tag) {
  switch (tag) {
  case ETCFFI_Tag_None:
    return "None";
  case ETCFFI_Tag_Tensor:
    return "a tensor";
  case ETCFFI_Tag_String:
    return "a str";
  case ETCFFI_Tag_Double:
    return "a float";
  case ETCFFI_Tag_Int:
    return "an int";
  case ETCFFI_Tag_Bool:
    return "a bool";
  default:
    return "a value of tag " + std::to_string(tag);
  }
}

// How a message begins, and what it then says of the method.
std::string named(const TensorSlot &slot) {
  return (slot.is_output ? "the memory given for " : "") + slot.label;
}
const char *and_takes(const TensorSlot &slot) {
  return slot.is_output ? ", and the method returns " : ", and the method takes ";
}

// The product of the sizes in bytes, checked at every step.
size_t bytes_of(const TensorSlot &slot, const etcffi_memory &memory) {
  size_t nbytes = static_cast<size_t>(dtype_of(memory.scalar_type).itemsize);
  for (int32_t i = 0; i < memory.ndim; ++i) {
    if (__builtin_mul_overflow(nbytes, static_cast<size_t>(memory.sizes[i]), &nbytes)) {
      fail(ETCFFI_BadShape, named(slot) + ": its shape " + tuple(memory.sizes, memory.ndim) + " overflows");
    }
  }
  return nbytes;
}

[[noreturn]] void fail_for_shape(const TensorSlot &slot, const etcffi_memory &memory,
                                 const std::string &why) {
  fail(ETCFFI_BadShape, named(slot) + " has the shape " + tuple(memory.sizes, memory.ndim) + why);
}

void check_shape(const TensorSlot &slot, const etcffi_memory &memory) {
  const etcffi_tensor_info &info = slot.info;
  if (memory.ndim < 0 || memory.ndim > ETCFFI_MAX_DIM) {
    fail(ETCFFI_BadShape, named(slot) + " has " + std::to_string(memory.ndim) +
                              " dimensions, and the runtime describes at most " +
                              std::to_string(ETCFFI_MAX_DIM));
  }
  const bool dynamic = info.is_dynamic != 0;
  for (int32_t i = 0; i < memory.ndim; ++i) {
    if (memory.sizes[i] < 0 || memory.sizes[i] > INT32_MAX) {
      fail_for_shape(slot, memory, ", and the runtime holds sizes from 0 to " + std::to_string(INT32_MAX));
    }
  }
  if (memory.ndim != info.ndim) {
    fail_for_shape(slot, memory,
                   ", of rank " + std::to_string(memory.ndim) + and_takes(slot) + "rank " +
                       std::to_string(info.ndim) + ", " + (dynamic ? "at most " : "") +
                       tuple(info.sizes, info.ndim));
  }
  for (int32_t i = 0; i < memory.ndim; ++i) {
    if (dynamic ? memory.sizes[i] > info.sizes[i] : memory.sizes[i] != info.sizes[i]) {
      const std::string wanted = tuple(info.sizes, info.ndim);
      fail_for_shape(slot, memory,
                     and_takes(slot) +
                         (dynamic ? "shapes up to " + wanted + " (the file's bound in each dimension)"
                                  : wanted + " only"));
    }
  }
}

// Strides are compared with strides, never a dim order with strides: a dimension of size one may stand
// anywhere in a dim order, and says nothing of the layout. Memory without elements has none either.
void check_layout(const TensorSlot &slot, const etcffi_memory &memory) {
  const etcffi_tensor_info &info = slot.info;
  int64_t wanted[ETCFFI_MAX_DIM];
  strides_in_dim_order(memory.ndim, memory.sizes, info.dim_order, wanted);
  for (int32_t i = 0; i < memory.ndim; ++i) {
    if (memory.sizes[i] > 1 && memory.strides[i] != wanted[i]) {
      bool contiguous = true;
      for (int32_t j = 0; j < info.ndim; ++j) {
        contiguous = contiguous && info.dim_order[j] == j;
      }
      fail(ETCFFI_BadLayout,
           named(slot) + " of shape " + tuple(memory.sizes, memory.ndim) + " has the strides " +
               tuple(memory.strides, memory.ndim) + " (in elements), and the method was exported for the " +
               (contiguous ? "contiguous layout" : "dim order " + tuple(info.dim_order, info.ndim)) +
               ", which has the strides " + tuple(wanted, memory.ndim) +
               (slot.is_output ? ""
                : contiguous   ? "; make it contiguous first (numpy.ascontiguousarray, torch's .contiguous())"
                               : "; make it contiguous first and lay it out with et_cffi.lay_out(array, "
                                 "info), where info is the input's TensorInfo"));
    }
  }
}

bool same_place(const etcffi_device &one, const etcffi_device &other) {
  return one.type == other.type && (one.type == ETCFFI_DeviceType_CPU || one.index == other.index);
}

// The host's memory can be copied to any device. Memory on a device is taken there only: to bring it anywhere
// else would be a copy that nobody asked for.
void check_device(const TensorSlot &slot, const etcffi_memory &memory, size_t nbytes) {
  const etcffi_tensor_info &info = slot.info;
  if (memory.device.type == ETCFFI_DeviceType_CPU) {
    return;
  }
  if (!same_place(memory.device, info.device)) {
    fail(ETCFFI_BadDevice,
         named(slot) + " is on " + describe(memory.device) + and_takes(slot) + "it on " +
             describe(info.device) +
             (slot.is_output ? "; give memory that is there, or on the host"
              : info.device.type == ETCFFI_DeviceType_CPU
                  ? "; copy it to the host first (to_host() of a TensorBuffer, cupy.asnumpy, torch's .cpu())"
                  : "; copy it there first"));
  }
  // On the host a copy would do. On a device it would go through the host, which is not to happen silently
  // to memory whose owner promised everything that was asked for.
  if (info.is_memory_planned == 0 && nbytes > 0 && !slot.unknown_backend.empty() &&
      (memory.flags & ETCFFI_PINNED) != 0 && !device_block_of(memory, nbytes)) {
    fail(ETCFFI_BadDevice, slot.label + " is borrowed memory on " + describe(memory.device) +
                               ", which the backend " + slot.unknown_backend +
                               " reads, and it never said what it needs of such memory; say so with " +
                               "Runtime.get().backend_registry.set_input_needs('" + slot.unknown_backend +
                               "', padding=..., alignment=...) and load the method again");
  }
}

void check_tensor(const TensorSlot &slot, const etcffi_memory &memory) {
  const etcffi_tensor_info &info = slot.info;
  if (memory.scalar_type != info.scalar_type) {
    fail(ETCFFI_BadDtype, named(slot) + " has the dtype " + dtype_of(memory.scalar_type).name +
                              and_takes(slot) + dtype_of(info.scalar_type).name +
                              (slot.is_output ? "" : "; convert it first"));
  }
  check_shape(slot, memory);
  const size_t nbytes = bytes_of(slot, memory);
  if (memory.has_strides != 0 && nbytes > 0) {
    check_layout(slot, memory);
  }
  check_device(slot, memory, nbytes);
  if (nbytes > 0 && memory.data == nullptr) {
    fail(ETCFFI_NoMemory, named(slot) + " has elements but no memory");
  }
  if (memory.nbytes < nbytes) {
    fail(ETCFFI_NoMemory, named(slot) + " holds " + std::to_string(memory.nbytes) +
                              " bytes, and its shape needs " + std::to_string(nbytes));
  }
}

} // namespace

void strides_in_dim_order(int32_t ndim, const int64_t *sizes, const uint8_t *dim_order, int64_t *strides) {
  int64_t step = 1;
  for (int32_t i = ndim - 1; i >= 0; --i) {
    const uint8_t dim = dim_order[i];
    strides[dim] = step;
    step *= sizes[dim];
  }
}

void check_input(const InputSlot &slot, const etcffi_value &value) {
  if (value.tag != slot.tag) {
    fail(ETCFFI_BadKind,
         slot.label + " is " + kind_name(value.tag) + ", and the method takes " + kind_name(slot.tag));
  }
  if (value.tag == ETCFFI_Tag_Tensor) {
    check_tensor(slot, value.memory);
  }
}

void check_output(const TensorSlot &slot, bool is_tensor, const etcffi_value &value) {
  if (value.tag == ETCFFI_Tag_None) {
    return;
  }
  if (value.tag != ETCFFI_Tag_Tensor || !is_tensor) {
    fail(ETCFFI_BadKind, !is_tensor
                             ? slot.label + " is no tensor, so no memory can be given for it; pass None"
                             : named(slot) + " is " + kind_name(value.tag) + ", and no memory");
  }
  if ((value.memory.flags & ETCFFI_READ_ONLY) != 0) {
    fail(ETCFFI_BadArgument, named(slot) + " is read-only; give memory that may be written");
  }
  check_tensor(slot, value.memory);
}

void check_result(const TensorSlot &slot, const etcffi_memory &given, const etcffi_memory &result) {
  const std::string what = "the run gave " + slot.label;
  bool same = given.ndim == result.ndim && given.scalar_type == result.scalar_type;
  bool empty = false;
  for (int32_t i = 0; same && i < result.ndim; ++i) {
    same = given.sizes[i] == result.sizes[i];
    empty = empty || result.sizes[i] == 0;
  }
  if (!same) {
    fail(ETCFFI_BadShape, what + " the shape " + tuple(result.sizes, result.ndim) +
                              ", and the memory given for it has the shape " +
                              tuple(given.sizes, given.ndim));
  }
  int64_t wanted[ETCFFI_MAX_DIM];
  strides_in_dim_order(given.ndim, given.sizes, slot.info.dim_order, wanted);
  const int64_t *strides = given.has_strides != 0 ? given.strides : wanted;
  for (int32_t i = 0; !empty && i < result.ndim; ++i) {
    if (result.sizes[i] > 1 && result.strides[i] != strides[i]) {
      fail(ETCFFI_BadLayout,
           what + " the strides " + tuple(result.strides, result.ndim) +
               " (in elements), other than the method states, and the memory given for it has " +
               tuple(strides, given.ndim) + "; leave it out of `out`");
    }
  }
}

Ref<etcffi_block> device_block_of(const etcffi_memory &memory, size_t nbytes) {
  if (memory.device.type == ETCFFI_DeviceType_CPU) {
    return {};
  }
  return etcffi_block::find(from_c(memory.device), memory.data, nbytes);
}

bool may_point_at(const TensorSlot &slot, const etcffi_memory &memory, size_t nbytes,
                  const etcffi_block *block) {
  if (slot.info.is_memory_planned != 0 || memory.data == nullptr ||
      !same_place(memory.device, slot.info.device) || (memory.flags & ETCFFI_READ_ONLY) != 0) {
    return false;
  }
  const auto address = reinterpret_cast<uintptr_t>(memory.data);
  if (address % static_cast<uintptr_t>(dtype_of(memory.scalar_type).itemsize) != 0) {
    return false;
  }
  if (block == nullptr && ((memory.flags & ETCFFI_PINNED) == 0 || !slot.unknown_backend.empty())) {
    return false;
  }
  const size_t readable = block == nullptr ? memory.nbytes : block->readable_from(memory.data);
  return readable - nbytes >= slot.needs_padding && address % slot.needs_alignment == 0;
}

namespace {
std::mutex needs_mutex;
std::map<std::string, BackendNeeds> &needs_by_backend() {
  // XNNPACK's micro-kernels may read XNN_EXTRA_BYTES past the end of an input (its public header).
  static std::map<std::string, BackendNeeds> needs = {{"XnnpackBackend", {16, 1}}};
  return needs;
}
} // namespace

std::optional<BackendNeeds> needs_of_backend(const std::string &backend) {
  std::lock_guard<std::mutex> lock(needs_mutex);
  const auto found = needs_by_backend().find(backend);
  return found == needs_by_backend().end() ? std::nullopt : std::optional(found->second);
}

void ask_backends(TensorSlot &slot, const std::vector<std::string> &backends) {
  for (const std::string &backend : backends) {
    const auto needs = needs_of_backend(backend);
    if (!needs) {
      slot.unknown_backend = backend;
    } else {
      slot.needs_padding = std::max(slot.needs_padding, needs->padding);
      slot.needs_alignment = std::max(slot.needs_alignment, needs->alignment);
    }
  }
}

} // namespace etcffi

etcffi_status etcffi_set_backend_needs(const char *backend, size_t padding, size_t alignment) {
  using namespace etcffi;
  return guard([&] {
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
      fail(ETCFFI_BadArgument, "an alignment is a power of two, and not " + std::to_string(alignment));
    }
    std::lock_guard<std::mutex> lock(needs_mutex);
    needs_by_backend()[backend] = {padding, alignment};
  });
}

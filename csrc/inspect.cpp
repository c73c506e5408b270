// What a program's file holds, read through the accessors generated from ExecuTorch's schema: operators,
// delegates, constants. The runtime is not asked, so that it works where operators or backends are missing.
#include <algorithm>
#include <cstring>

#include "dtype.h"
#include "program.h"
#include "schema/program_generated.h"
#include "status.h"

using namespace etcffi;

namespace {

const char *text(const flatbuffers::String *string) {
  return string == nullptr ? "" : string->c_str();
}

// Where the segments begin: in the extended header, whose sizes were checked when the program was loaded.
uint64_t segments_base(const uint8_t *file) {
  constexpr size_t kMagic = 8, kBase = 24;
  if (std::memcmp(file + kMagic, "eh00", 4) != 0) {
    return 0;
  }
  uint64_t base = 0;
  for (size_t i = 8; i > 0; --i) {
    base = base << 8 | file[kBase + i - 1];
  }
  return base;
}

class File {
public:
  explicit File(const etcffi_program *program)
      : bytes_(static_cast<const uint8_t *>(program->flatbuffer().data())), root_(fb::GetProgram(bytes_)) {}

  const fb::Program *root() const { return root_; }

  etcffi_named_data inlined(const flatbuffers::Vector<uint8_t> *data) const {
    return data == nullptr
               ? etcffi_named_data{"", 0, 0}
               : etcffi_named_data{"", static_cast<uint64_t>(data->data() - bytes_), data->size()};
  }

  etcffi_named_data segment(uint64_t index) const {
    const auto *segments = root_->segments();
    if (segments == nullptr || index >= segments->size()) {
      return {"", 0, 0};
    }
    const auto *found = segments->Get(static_cast<flatbuffers::uoffset_t>(index));
    return {"", segments_base(bytes_) + found->offset(), found->size()};
  }

  // Item `index` of a segment that holds many.
  etcffi_named_data part(const fb::SubsegmentOffsets *parts, uint32_t index, uint64_t nbytes) const {
    if (parts == nullptr || parts->offsets() == nullptr || index >= parts->offsets()->size()) {
      return {"", 0, nbytes};
    }
    return {"", segment(parts->segment_index()).offset + parts->offsets()->Get(index), nbytes};
  }

  etcffi_named_data constant(uint32_t index, uint64_t nbytes) const {
    const auto *buffers = root_->constant_buffer();
    if (buffers != nullptr && index < buffers->size()) { // files of old exporters
      return {"", inlined(buffers->Get(index)->storage()).offset, nbytes};
    }
    return part(root_->constant_segment(), index, nbytes);
  }

  etcffi_named_data initial_state(const fb::Tensor *tensor, uint64_t nbytes) const {
    const auto *parts = root_->mutable_data_segments();
    const auto *extra = tensor->extra_tensor_info();
    const uint64_t at = extra == nullptr ? 0 : extra->mutable_data_segments_idx();
    if (parts == nullptr || at >= parts->size()) {
      return {"", 0, nbytes};
    }
    return part(parts->Get(static_cast<flatbuffers::uoffset_t>(at)), tensor->data_buffer_idx(), nbytes);
  }

  uint64_t constants_nbytes() const {
    uint64_t nbytes = 0;
    if (const auto *buffers = root_->constant_buffer()) {
      for (const auto *buffer : *buffers) {
        nbytes += inlined(buffer->storage()).nbytes;
      }
    }
    const auto *parts = root_->constant_segment();
    const bool any = parts != nullptr && parts->offsets() != nullptr && parts->offsets()->size() > 0;
    return nbytes + (any ? segment(parts->segment_index()).nbytes : 0);
  }

private:
  const uint8_t *bytes_;
  const fb::Program *root_;
};

template <typename T> void hand_out(const std::vector<T> &items, T *out, size_t capacity, size_t *count) {
  std::copy_n(items.begin(), std::min(capacity, items.size()), out);
  *count = items.size();
}

// How many instructions call each of `size` things, whose index `index_of` reads from an instruction (or -1).
template <typename F> std::vector<size_t> calls(const fb::ExecutionPlan *plan, size_t size, F index_of) {
  std::vector<size_t> counts(size);
  if (plan->chains() == nullptr) {
    return counts;
  }
  for (const auto *chain : *plan->chains()) {
    if (chain->instructions() == nullptr) {
      continue;
    }
    for (const auto *instruction : *chain->instructions()) {
      const auto index = static_cast<size_t>(index_of(instruction)); // -1 is beyond any size
      if (index < size) {
        ++counts[index];
      }
    }
  }
  return counts;
}

etcffi_tensor_info describe(const fb::Tensor *tensor) {
  etcffi_tensor_info out{};
  const auto *sizes = tensor->sizes();
  const auto *order = tensor->dim_order();
  const size_t ndim = sizes == nullptr ? 0 : sizes->size();
  if (ndim > ETCFFI_MAX_DIM || (order != nullptr && order->size() != ndim)) {
    fail(ETCFFI_BadFile, "the program states a tensor of " + std::to_string(ndim) +
                             " dimensions, and the runtime describes at most " +
                             std::to_string(ETCFFI_MAX_DIM));
  }
  uint64_t nbytes = static_cast<uint64_t>(dtype_of(static_cast<int32_t>(tensor->scalar_type())).itemsize);
  for (size_t i = 0; i < ndim; ++i) {
    const auto at = static_cast<flatbuffers::uoffset_t>(i);
    out.sizes[i] = sizes->Get(at);
    out.dim_order[i] = order == nullptr ? static_cast<uint8_t>(i) : order->Get(at);
    if (out.sizes[i] < 0 || __builtin_mul_overflow(nbytes, static_cast<uint64_t>(out.sizes[i]), &nbytes)) {
      fail(ETCFFI_BadFile, "the program states a tensor whose size cannot be");
    }
  }
  const auto *extra = tensor->extra_tensor_info();
  const auto *name = extra == nullptr ? nullptr : extra->fully_qualified_name();
  out.name = text(name);
  out.name_size = name == nullptr ? 0 : name->size();
  out.nbytes = nbytes;
  out.scalar_type = static_cast<int32_t>(tensor->scalar_type());
  out.ndim = static_cast<int32_t>(ndim);
  out.is_memory_planned = tensor->allocation_info() != nullptr ? 1 : 0;
  out.is_dynamic = is_dynamic(tensor) ? 1 : 0;
  out.device = to_c(device_of(tensor));
  return out;
}

} // namespace

etcffi_status etcffi_program_file_facts(const etcffi_program *program, etcffi_file_facts *out) {
  return guard([&] {
    const File file(program);
    const auto *segments = file.root()->segments();
    *out = {fb::ProgramIdentifier(), file.root()->version(), program->flatbuffer().size(),
            file.constants_nbytes(), segments == nullptr ? 0 : segments->size()};
  });
}

etcffi_status etcffi_program_named_data(const etcffi_program *program, etcffi_named_data *out,
                                        size_t capacity, size_t *count) {
  return guard([&] {
    const File file(program);
    std::vector<etcffi_named_data> found;
    if (const auto *named = file.root()->named_data()) {
      for (const auto *item : *named) {
        found.push_back(file.segment(item->segment_index()));
        found.back().key = text(item->key());
      }
    }
    hand_out(found, out, capacity, count);
  });
}

etcffi_status etcffi_program_operators(const etcffi_program *program, size_t method,
                                       etcffi_operator_facts *out, size_t capacity, size_t *count) {
  return guard([&] {
    const auto *plan = program->plan(method);
    std::vector<etcffi_operator_facts> found;
    if (const auto *operators = plan->operators()) {
      const auto counts = calls(plan, operators->size(), [](const fb::Instruction *instruction) {
        const auto *call = instruction->instr_args_as_KernelCall();
        return call == nullptr ? -1 : call->op_index();
      });
      for (flatbuffers::uoffset_t i = 0; i < operators->size(); ++i) {
        found.push_back({text(operators->Get(i)->name()), text(operators->Get(i)->overload()), counts[i]});
      }
    }
    hand_out(found, out, capacity, count);
  });
}

etcffi_status etcffi_program_delegates(const etcffi_program *program, size_t method,
                                       etcffi_delegate_facts *out, size_t capacity, size_t *count) {
  return guard([&] {
    const File file(program);
    const auto *plan = program->plan(method);
    std::vector<etcffi_delegate_facts> found;
    if (const auto *delegates = plan->delegates()) {
      const auto counts = calls(plan, delegates->size(), [](const fb::Instruction *instruction) {
        const auto *call = instruction->instr_args_as_DelegateCall();
        return call == nullptr ? -1 : call->delegate_index();
      });
      for (flatbuffers::uoffset_t i = 0; i < delegates->size(); ++i) {
        const auto *delegate = delegates->Get(i);
        etcffi_named_data payload{"", 0, 0};
        const auto *where = delegate->processed();
        const auto *inlined = file.root()->backend_delegate_data();
        if (where != nullptr && where->location() == fb::DataLocation::SEGMENT) {
          payload = file.segment(where->index());
        } else if (where != nullptr && inlined != nullptr && where->index() < inlined->size()) {
          payload = file.inlined(inlined->Get(where->index())->data());
        }
        const auto *options = delegate->compile_specs();
        found.push_back({text(delegate->id()), counts[i], options == nullptr ? 0 : options->size(), payload});
      }
    }
    hand_out(found, out, capacity, count);
  });
}

etcffi_status etcffi_program_stored_tensors(const etcffi_program *program, size_t method,
                                            etcffi_stored_tensor *out, size_t capacity, size_t *count) {
  return guard([&] {
    const File file(program);
    std::vector<etcffi_stored_tensor> found;
    const auto *values = program->plan(method)->values();
    for (flatbuffers::uoffset_t i = 0; values != nullptr && i < values->size(); ++i) {
      const fb::EValue *value = values->Get(i);
      const fb::Tensor *tensor = value == nullptr ? nullptr : value->val_as_Tensor();
      if (tensor == nullptr) {
        continue;
      }
      const auto *extra = tensor->extra_tensor_info();
      const bool external = extra != nullptr && extra->location() == fb::TensorDataLocation::EXTERNAL;
      if (!external && tensor->data_buffer_idx() == 0) {
        continue; // buffer 0 is nobody's: the tensor has no stored values
      }
      etcffi_stored_tensor stored{};
      stored.tensor = describe(tensor);
      if (external) {
        stored.kind = ETCFFI_EXTERNAL;
        stored.data = {"", 0, stored.tensor.nbytes};
      } else if (tensor->allocation_info() != nullptr) {
        stored.kind = ETCFFI_INITIAL_STATE;
        stored.data = file.initial_state(tensor, stored.tensor.nbytes);
      } else {
        stored.kind = ETCFFI_CONSTANT;
        stored.data = file.constant(tensor->data_buffer_idx(), stored.tensor.nbytes);
      }
      found.push_back(stored);
    }
    hand_out(found, out, capacity, count);
  });
}

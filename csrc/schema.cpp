#include "schema.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "dtype.h"
#include "schema/program_generated.h"
#include "status.h"

namespace etcffi {
namespace {

// The extended header that stands behind the flatbuffer's root offset and file identifier: the magic, then
// little-endian its own length, the flatbuffer's size, where the segments begin and how long they are.
constexpr size_t kHeaderOffset = 8;
constexpr char kHeaderMagic[] = "eh00";
constexpr uint32_t kShortHeader = 24;
constexpr uint32_t kHeaderWithSegmentSize = 32;

uint64_t little_endian(const uint8_t *bytes, size_t count) {
  uint64_t value = 0;
  for (size_t i = count; i > 0; --i) {
    value = value << 8 | bytes[i - 1];
  }
  return value;
}

std::string printable(const uint8_t *bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += bytes[i] >= 0x20 && bytes[i] < 0x7f ? static_cast<char>(bytes[i]) : '.';
  }
  return text;
}

} // namespace

bool planned_range(const fb::Tensor *tensor, PlannedRange *out) {
  if (tensor == nullptr || tensor->allocation_info() == nullptr || tensor->sizes() == nullptr) {
    return false;
  }
  const auto *place = tensor->allocation_info();
  uint64_t nbytes = static_cast<uint64_t>(dtype_of(static_cast<int32_t>(tensor->scalar_type())).itemsize);
  for (const int32_t size : *tensor->sizes()) {
    if (size < 0 || __builtin_mul_overflow(nbytes, static_cast<uint64_t>(size), &nbytes)) {
      return false;
    }
  }
  out->memory_id = place->memory_id();
  out->begin = static_cast<uint64_t>(place->memory_offset_high()) << 32 | place->memory_offset_low();
  out->end = out->begin + nbytes;
  return true;
}

FileExtent check_head(const uint8_t *head, size_t head_size, uint64_t file_size, const std::string &what) {
  if (file_size == 0) {
    fail(ETCFFI_BadFile, what + " is empty");
  }
  if (head_size < 8) {
    fail(ETCFFI_BadFile,
         what + " is no ExecuTorch program: it has only " + std::to_string(file_size) + " bytes");
  }
  const std::string identifier = printable(head + 4, 4);
  if (identifier == "BP08" || identifier.compare(0, 2, "BP") == 0) {
    fail(ETCFFI_BadFile,
         what + " is a bundled program (a .bpte: a program together with its test cases), and a program "
                "is expected here");
  }
  if (identifier == "FT01") {
    fail(ETCFFI_BadFile,
         what +
             " is a data file (a .ptd: weights kept outside of a program), and a program is expected here");
  }
  if (identifier.compare(0, 2, "ET") != 0) {
    fail(ETCFFI_BadFile, what + " is no ExecuTorch program: a .pte has the identifier \"" +
                             std::string(fb::ProgramIdentifier()) + "\" at byte 4, and this has \"" +
                             identifier + "\"");
  }
  if (identifier != fb::ProgramIdentifier()) {
    fail(ETCFFI_BadFile, what + " has the file version \"" + identifier + "\", and this runtime reads \"" +
                             fb::ProgramIdentifier() + "\"; export it again with a matching ExecuTorch");
  }
  const std::string truncated = what + " is truncated: it has " + std::to_string(file_size) + " bytes of ";
  if (file_size < kHeadBytes) {
    fail(ETCFFI_BadFile, truncated + "at least " + std::to_string(kHeadBytes));
  }
  if (std::memcmp(head + kHeaderOffset, kHeaderMagic, 4) != 0) {
    return {file_size, file_size, 0};
  }
  const uint64_t length = little_endian(head + kHeaderOffset + 4, 4);
  if (length < kShortHeader) {
    fail(ETCFFI_BadFile, what + " is damaged: its header claims a length of " + std::to_string(length));
  }
  const uint64_t flatbuffer = little_endian(head + kHeaderOffset + 8, 8);
  const uint64_t segments_at = little_endian(head + kHeaderOffset + 16, 8);
  const uint64_t segments =
      length >= kHeaderWithSegmentSize ? little_endian(head + kHeaderOffset + 24, 8) : 0;
  uint64_t whole = flatbuffer;
  if (segments_at > 0 && __builtin_add_overflow(segments_at, segments, &whole)) {
    fail(ETCFFI_BadFile, what + " is damaged: its header states sizes that cannot be");
  }
  if (whole < flatbuffer) {
    whole = flatbuffer;
  }
  if (file_size < whole) {
    fail(ETCFFI_BadFile, truncated + std::to_string(whole));
  }
  if (flatbuffer < kHeadBytes) {
    fail(ETCFFI_BadFile, what + " is damaged: its header states sizes that cannot be");
  }
  return {flatbuffer, whole, segments_at};
}

const fb::Program *verify(const uint8_t *flatbuffer, size_t size, const std::string &what) {
  // The depth is the schema's own nesting with room to spare; the number of tables grows with the model.
  flatbuffers::Verifier::Options options;
  options.max_depth = 64;
  options.max_tables = UINT32_MAX;
  flatbuffers::Verifier verifier(flatbuffer, size, options);
  if (!fb::VerifyProgramBuffer(verifier)) {
    fail(ETCFFI_BadFile, what + " is truncated or damaged: its flatbuffer does not verify");
  }
  return fb::GetProgram(flatbuffer);
}

void check_segments(const fb::Program *program, const FileExtent &extent, uint64_t file_size,
                    const std::string &what) {
  if (program->segments() == nullptr) {
    return;
  }
  for (const auto *segment : *program->segments()) {
    uint64_t end = extent.segments_at;
    // Some files list segments of no bytes that stand nowhere.
    if (segment->size() > 0 &&
        (extent.segments_at < extent.flatbuffer || __builtin_add_overflow(end, segment->offset(), &end) ||
         __builtin_add_overflow(end, segment->size(), &end) || end > file_size)) {
      fail(ETCFFI_BadFile, what + " is truncated or damaged: a segment of it lies outside of the file");
    }
  }
}

int32_t value_index(const fb::ExecutionPlan *plan, int32_t side, size_t index) {
  const auto *indices = side == ETCFFI_INPUT ? plan->inputs() : plan->outputs();
  if (indices == nullptr || index >= indices->size()) {
    return -1;
  }
  return indices->Get(static_cast<flatbuffers::uoffset_t>(index));
}

const fb::EValue *value_of(const fb::ExecutionPlan *plan, int32_t side, size_t index) {
  const int32_t at = value_index(plan, side, index);
  if (at < 0 || plan->values() == nullptr || static_cast<uint32_t>(at) >= plan->values()->size()) {
    return nullptr;
  }
  return plan->values()->Get(static_cast<flatbuffers::uoffset_t>(at));
}

const fb::Tensor *tensor_of(const fb::ExecutionPlan *plan, int32_t side, size_t index) {
  const fb::EValue *value = value_of(plan, side, index);
  return value == nullptr ? nullptr : value->val_as_Tensor();
}

bool is_dynamic(const fb::Tensor *tensor) {
  return tensor->shape_dynamism() != fb::TensorShapeDynamism::STATIC;
}

Device device_of(const fb::Tensor *tensor) {
  const auto *extra = tensor->extra_tensor_info();
  if (extra == nullptr) {
    return DeviceType::CPU;
  }
  return Device(static_cast<DeviceType>(extra->device_type()),
                static_cast<DeviceIndex>(extra->device_index()));
}

const fb::Tensor *constant_on_device(const fb::ExecutionPlan *plan) {
  for (const fb::EValue *value : *plan->values()) {
    const fb::Tensor *tensor = value->val_as_Tensor();
    if (tensor != nullptr && tensor->data_buffer_idx() > 0 && !device_of(tensor).is_cpu()) {
      return tensor;
    }
  }
  return nullptr;
}

bool planned_memory_is_reused(const fb::ExecutionPlan *plan, size_t input) {
  const int32_t own = value_index(plan, ETCFFI_INPUT, input);
  PlannedRange mine{};
  if (!planned_range(tensor_of(plan, ETCFFI_INPUT, input), &mine)) {
    return false;
  }
  const auto *values = plan->values();
  for (flatbuffers::uoffset_t i = 0; i < values->size(); ++i) {
    PlannedRange other{};
    const fb::EValue *value = values->Get(i);
    if (static_cast<int32_t>(i) == own || value == nullptr ||
        !planned_range(value->val_as_Tensor(), &other)) {
      continue;
    }
    if (other.memory_id == mine.memory_id && other.begin < mine.end && mine.begin < other.end) {
      return true;
    }
  }
  return false;
}

namespace {

// Kernels write to memory of their own. Those of the runtime itself do not: et_view makes its output a view
// of its input.
bool shares_memory(const fb::ExecutionPlan *plan, const fb::KernelCall *call) {
  const auto *operators = plan->operators();
  const auto index = static_cast<flatbuffers::uoffset_t>(call->op_index());
  if (operators == nullptr || index >= operators->size() || operators->Get(index)->name() == nullptr) {
    return true;
  }
  return operators->Get(index)->name()->str().rfind("executorch_prim::", 0) == 0;
}

using Indices = flatbuffers::Vector<int32_t>;

bool meets(const Indices *args, const std::set<int32_t> &values) {
  return args != nullptr &&
         std::any_of(args->begin(), args->end(), [&](int32_t arg) { return values.count(arg) > 0; });
}

} // namespace

std::vector<std::string> backends_reached(const fb::ExecutionPlan *plan, int32_t side, size_t index) {
  const std::vector<std::string> backends = backend_names(plan);
  std::set<std::string> reached;
  std::set<int32_t> values = {value_index(plan, side, index)};
  // Until nothing is added: a jump may lead back to an instruction before.
  for (size_t before = 0; before != values.size() && plan->chains() != nullptr;) {
    before = values.size();
    for (const auto *chain : *plan->chains()) {
      if (chain->instructions() == nullptr) {
        continue;
      }
      for (const auto *instruction : *chain->instructions()) {
        if (const auto *kernel = instruction->instr_args_as_KernelCall()) {
          if (meets(kernel->args(), values) && shares_memory(plan, kernel)) {
            values.insert(kernel->args()->begin(), kernel->args()->end());
          }
        } else if (const auto *move = instruction->instr_args_as_MoveCall()) {
          if (values.count(move->move_from()) > 0) {
            values.insert(move->move_to());
          }
        } else if (const auto *delegate = instruction->instr_args_as_DelegateCall()) {
          const auto number = static_cast<size_t>(delegate->delegate_index());
          if (number < backends.size() && meets(delegate->args(), values)) {
            reached.insert(backends[number]);
          }
        }
      }
    }
  }
  return {reached.begin(), reached.end()};
}

size_t num_instructions(const fb::ExecutionPlan *plan) {
  size_t count = 0;
  if (plan->chains() != nullptr) {
    for (const auto *chain : *plan->chains()) {
      count += chain->instructions() == nullptr ? 0 : chain->instructions()->size();
    }
  }
  return count;
}

std::vector<std::string> operator_names(const fb::ExecutionPlan *plan) {
  std::vector<std::string> names;
  if (plan->operators() != nullptr) {
    for (const auto *op : *plan->operators()) {
      std::string name = op->name() == nullptr ? "" : op->name()->str();
      if (op->overload() != nullptr && op->overload()->size() > 0) {
        name += "." + op->overload()->str();
      }
      names.push_back(std::move(name));
    }
  }
  return names;
}

std::vector<std::string> external_names(const fb::ExecutionPlan *plan) {
  std::set<std::string> names;
  if (plan->values() != nullptr) {
    for (const auto *value : *plan->values()) {
      const fb::Tensor *tensor = value == nullptr ? nullptr : value->val_as_Tensor();
      const auto *extra = tensor == nullptr ? nullptr : tensor->extra_tensor_info();
      if (extra != nullptr && extra->location() == fb::TensorDataLocation::EXTERNAL &&
          extra->fully_qualified_name() != nullptr) {
        names.insert(extra->fully_qualified_name()->str());
      }
    }
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> backend_names(const fb::ExecutionPlan *plan) {
  std::vector<std::string> names;
  if (plan->delegates() != nullptr) {
    for (const auto *delegate : *plan->delegates()) {
      names.push_back(delegate->id() == nullptr ? "" : delegate->id()->str());
    }
  }
  return names;
}

} // namespace etcffi

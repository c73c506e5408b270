#include "validate.h"

#include <cstring>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <executorch/runtime/core/exec_aten/util/tensor_dimension_limit.h>

#include "dtype.h"
#include "schema/program_generated.h"
#include "status.h"

namespace etcffi {
namespace {

using Kind = fb::KernelTypes;
using Indices = flatbuffers::Vector<int32_t>;
using Texts = flatbuffers::String;

// The runtime puts an operator's name and its overload's into a buffer of this size. Where they do not fit,
// it leaves the instruction without a kernel, and calls it all the same if a later one has one.
constexpr size_t kOperatorName = 100;

constexpr char kPrims[] = "executorch_prim::";

template <typename T> size_t count(const flatbuffers::Vector<T> *vector) {
  return vector == nullptr ? 0 : vector->size();
}

// An element, of a vector that has as many.
template <typename T> auto at(const flatbuffers::Vector<T> *vector, size_t index) {
  return vector->Get(static_cast<flatbuffers::uoffset_t>(index));
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

std::string_view view(const Texts *text) {
  return text == nullptr ? std::string_view() : std::string_view(text->c_str(), text->size());
}

// Whether Python can decode it, with the "surrogatepass" that it encodes with.
bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const size_t length = first < 0x80   ? 1
                          : first < 0xc2 ? 0
                          : first < 0xe0 ? 2
                          : first < 0xf0 ? 3
                          : first < 0xf5 ? 4
                                         : 0;
    if (length == 0 || length > text.size() - i) {
      return false;
    }
    for (size_t j = 1; j < length; ++j) {
      const auto next = static_cast<unsigned char>(text[i + j]);
      // The second byte must make the number no smaller than the length allows, and no larger than there are.
      const unsigned char least = j > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
      const unsigned char most = j == 1 && first == 0xf4 ? 0x8f : 0xbf;
      if (next < least || next > most) {
        return false;
      }
    }
    i += length;
  }
  return true;
}

// What a kernel is known by, as far as it matters here.
enum class Convention {
  kOut,    // the arguments before the last are written to; the last repeats them
  kView,   // et_view: the last becomes a view of the first
  kFirst,  // in place: the first is written to
  kUnknown // written to where the last arguments look like those of kOut
};

class Validator {
public:
  Validator(const fb::Program *program, const FileExtent &extent, const std::string &what)
      : program_(program), extent_(extent), what_(what) {}

  void run() {
    require(program_->execution_plan() != nullptr, "it has no list of methods");
    constants();
    named_data();
    std::set<std::string_view> names;
    for (const fb::ExecutionPlan *plan : *program_->execution_plan()) {
      where_ = "method " + std::to_string(names.size());
      require(text(plan->name()), "it has no name");
      require(names.insert(view(plan->name())).second, "another method has its name");
      where_ = "method '" + plan->name()->str() + "'";
      plan_ = plan;
      method();
    }
  }

private:
  [[noreturn]] void damaged(const std::string &problem) const {
    std::string place = where_;
    if (part_ != nullptr) {
      place += std::string(place.empty() ? "" : ", ") + part_ + " " + std::to_string(index_);
    }
    fail(ETCFFI_BadFile, what_ + " is damaged: " + place + (place.empty() ? "" : ": ") + problem);
  }

  void require(bool holds, const char *problem) const {
    if (!holds) {
      damaged(problem);
    }
  }

  // Says what is being looked at, for damaged(), at no cost while nothing is.
  void looking_at(const char *part, size_t index) {
    part_ = part;
    index_ = index;
  }

  // A string that C and Python may read: there, without a zero before its end, and in UTF-8.
  static bool text(const Texts *text) {
    return text != nullptr && std::memchr(text->c_str(), 0, text->size()) == nullptr && is_utf8(view(text));
  }

  // ---- the program ----------------------------------------------------------------------------------

  void constants() {
    const fb::SubsegmentOffsets *segment = program_->constant_segment();
    if (segment == nullptr || count(segment->offsets()) < 2) { // the first stands for "no constant"
      return;
    }
    require(segment->segment_index() < count(program_->segments()), "its constants are in no segment");
    require(count(program_->constant_buffer()) == 0, "its constants are in two places");
    constant_segment_ = at(program_->segments(), segment->segment_index());
  }

  void named_data() {
    for (size_t i = 0; i < count(program_->named_data()); ++i) {
      looking_at("named data", i);
      const fb::NamedData *data = at(program_->named_data(), i);
      require(text(data->key()), "it has no name");
      require(data->segment_index() < count(program_->segments()), "it is in no segment");
    }
    part_ = nullptr;
  }

  // ---- a method -------------------------------------------------------------------------------------

  void method() {
    require(plan_->values() != nullptr, "it has no list of values");
    require(plan_->inputs() != nullptr, "it has no list of inputs");
    require(plan_->outputs() != nullptr, "it has no list of outputs");
    require(plan_->delegates() != nullptr, "it has no list of delegates");
    require(count(plan_->chains()) > 0, "it has no instructions");
    require(count(plan_->non_const_buffer_sizes()) > 0, "it has no list of planned buffers");
    buffers();
    values_ = plan_->values()->size();
    constant_.assign(values_, false);
    has_memory_.assign(values_, true);
    list_has_memory_.assign(values_, false);
    for (size_t i = 0; i < values_; ++i) {
      looking_at("value", i);
      value(i);
    }
    ends(plan_->inputs(), "input");
    ends(plan_->outputs(), "output");
    delegates();
    operators();
    aliases_of_constants();
    // The runtime copies an input to where its value is, or points its value to it, before every run.
    for (size_t i = 0; i < plan_->inputs()->size(); ++i) {
      looking_at("input", i);
      require(!constant_[static_cast<size_t>(at(plan_->inputs(), i))], "it is a constant");
    }
    part_ = nullptr;
    const std::string method = where_;
    for (size_t i = 0; i < plan_->chains()->size(); ++i) {
      where_ = method + ", chain " + std::to_string(i);
      chain(at(plan_->chains(), i));
    }
    part_ = nullptr;
  }

  void buffers() {
    const size_t buffers = plan_->non_const_buffer_sizes()->size();
    for (size_t i = 1; i < buffers; ++i) { // the first is reserved
      looking_at("planned buffer", i);
      require(at(plan_->non_const_buffer_sizes(), i) >= 0, "its size is negative");
    }
    buffer_devices_.assign(buffers, DeviceType::CPU);
    for (size_t i = 0; i < count(plan_->non_const_buffer_device()); ++i) {
      looking_at("device of a planned buffer", i);
      const fb::NonConstBufferDevice *device = at(plan_->non_const_buffer_device(), i);
      require(device->buffer_idx() > 0 && static_cast<size_t>(device->buffer_idx()) < buffers,
              "there is no such buffer");
      require(is_device(device->device_type()), "there is no such kind of device");
      buffer_devices_[static_cast<size_t>(device->buffer_idx())] =
          static_cast<DeviceType>(device->device_type());
    }
    part_ = nullptr;
  }

  void ends(const Indices *indices, const char *side) {
    for (size_t i = 0; i < indices->size(); ++i) {
      looking_at(side, i);
      // What is given memory before each run.
      has_memory_[index(at(indices, i))] = true;
    }
    part_ = nullptr;
  }

  void delegates() {
    for (size_t i = 0; i < plan_->delegates()->size(); ++i) {
      looking_at("delegate", i);
      const fb::BackendDelegate *delegate = at(plan_->delegates(), i);
      require(text(delegate->id()), "it names no backend");
      const fb::BackendDelegateDataReference *data = delegate->processed();
      require(data != nullptr, "it has no data");
      if (data->location() == fb::DataLocation::SEGMENT) {
        require(data->index() < count(program_->segments()), "its data is in no segment");
      } else {
        require(data->location() == fb::DataLocation::INLINE, "its data is nowhere");
        require(data->index() < count(program_->backend_delegate_data()) &&
                    at(program_->backend_delegate_data(), data->index())->data() != nullptr,
                "its data is missing");
      }
      for (size_t j = 0; j < count(delegate->compile_specs()); ++j) {
        const fb::CompileSpec *spec = at(delegate->compile_specs(), j);
        require(text(spec->key()) && spec->value() != nullptr, "an option of it is missing");
      }
    }
    part_ = nullptr;
  }

  void operators() {
    conventions_.clear();
    for (size_t i = 0; i < count(plan_->operators()); ++i) {
      looking_at("operator", i);
      const fb::Operator *op = at(plan_->operators(), i);
      require(text(op->name()) && text(op->overload()), "it has no name");
      const std::string_view name = view(op->name());
      const std::string_view overload = view(op->overload());
      require(name.size() + overload.size() + 2 <= kOperatorName, "its name is too long");
      conventions_.push_back(convention(name, overload));
    }
    part_ = nullptr;
  }

  static Convention convention(std::string_view name, std::string_view overload) {
    if (name.substr(0, sizeof(kPrims) - 1) == kPrims) {
      const std::string_view prim = name.substr(sizeof(kPrims) - 1);
      return prim == "et_view"         ? Convention::kView
             : prim == "et_copy_index" ? Convention::kFirst
                                       : Convention::kUnknown;
    }
    if (overload == "out" || ends_with(overload, "_out")) {
      return Convention::kOut;
    }
    return ends_with(name, "_") && !ends_with(name, "__") ? Convention::kFirst : Convention::kUnknown;
  }

  // ---- values ---------------------------------------------------------------------------------------

  size_t index(int32_t index) const {
    if (index < 0 || static_cast<size_t>(index) >= values_) {
      damaged("there is no value " + std::to_string(index) + "; there are " + std::to_string(values_));
    }
    return static_cast<size_t>(index);
  }

  Kind kind(size_t index) const { return at(plan_->values(), index)->val_type(); }

  void value(size_t own) {
    const fb::EValue *value = at(plan_->values(), own);
    require(value->val_type() == Kind::Null || value->val() != nullptr, "it is missing");
    switch (value->val_type()) {
    case Kind::Null:
    case Kind::Int:
    case Kind::Double:
    case Kind::Bool:
      return;
    case Kind::String:
      require(value->val_as_String()->string_val() != nullptr, "its text is missing");
      return require(is_utf8(view(value->val_as_String()->string_val())), "its text is no text");
    case Kind::DoubleList:
      return require(value->val_as_DoubleList()->items() != nullptr, "its items are missing");
    case Kind::BoolList: {
      const auto *items = value->val_as_BoolList()->items();
      require(items != nullptr, "its items are missing");
      for (const uint8_t item : *items) {
        require(item <= 1, "an item is no bool"); // the runtime reads them as bools where they are
      }
      return;
    }
    case Kind::IntList: {
      const auto *items = value->val_as_IntList()->items();
      require(items != nullptr, "its items are missing");
      for (const int64_t item : *items) {
        require(item >= 0 && item < static_cast<int64_t>(values_), "an item is no value of the method");
        require(kind(static_cast<size_t>(item)) == Kind::Int, "an item is no int");
      }
      return;
    }
    case Kind::TensorList:
      return tensors(value->val_as_TensorList()->items(), own, false);
    case Kind::OptionalTensorList:
      return tensors(value->val_as_OptionalTensorList()->items(), own, true);
    case Kind::Tensor:
      return tensor(value->val_as_Tensor(), own);
    default:
      damaged("it is of a kind that the runtime does not know");
    }
  }

  void tensors(const Indices *items, size_t own, bool optional) {
    require(items != nullptr, "its items are missing");
    for (const int32_t item : *items) {
      if (optional && item == -1) {
        continue;
      }
      const Kind kind_of_item = kind(index(item));
      require(kind_of_item == Kind::Tensor || (optional && kind_of_item == Kind::Null),
              "an item is no tensor");
      // The runtime reads an item while it makes the list, in the order of the values.
      require(static_cast<size_t>(item) < own, "an item comes after the list");
    }
  }

  static bool is_device(fb::DeviceType type) {
    return type == fb::DeviceType::CPU || type == fb::DeviceType::CUDA;
  }

  void tensor(const fb::Tensor *tensor, size_t own) {
    const auto scalar_type = static_cast<int32_t>(tensor->scalar_type());
    require(etcffi_dtype_of(scalar_type) != nullptr, "its dtype is none");
    require(tensor->storage_offset() == 0, "it begins inside of its memory, which the runtime cannot read");
    require(tensor->shape_dynamism() >= fb::TensorShapeDynamism::MIN &&
                tensor->shape_dynamism() <= fb::TensorShapeDynamism::MAX,
            "its shape is neither static nor dynamic");
    const size_t nbytes = bytes_of(tensor, static_cast<size_t>(dtype_of(scalar_type).itemsize));
    const fb::ExtraTensorInfo *extra = tensor->extra_tensor_info();
    auto device = fb::DeviceType::CPU;
    bool external = false;
    if (extra != nullptr) {
      require(extra->fully_qualified_name() == nullptr || text(extra->fully_qualified_name()),
              "its name is none");
      require(extra->location() == fb::TensorDataLocation::SEGMENT ||
                  extra->location() == fb::TensorDataLocation::EXTERNAL,
              "its data is nowhere");
      device = extra->device_type();
      require(is_device(device), "there is no such kind of device");
      external = extra->location() == fb::TensorDataLocation::EXTERNAL;
    }
    const size_t itemsize = static_cast<size_t>(dtype_of(scalar_type).itemsize);
    if (tensor->allocation_info() != nullptr) {
      planned(tensor->allocation_info(), nbytes, itemsize, static_cast<DeviceType>(device));
    } else if (external) {
      require(extra->fully_qualified_name() != nullptr, "its data is outside of the file and has no name");
      constant_[own] = nbytes > 0;
    } else if (tensor->data_buffer_idx() > 0) {
      constant(tensor->data_buffer_idx(), nbytes, itemsize);
      constant_[own] = nbytes > 0;
    } else {
      has_memory_[own] = nbytes == 0;
    }
  }

  size_t bytes_of(const fb::Tensor *tensor, size_t itemsize) const {
    const auto *sizes = tensor->sizes();
    const auto *dim_order = tensor->dim_order();
    require(sizes != nullptr && dim_order != nullptr, "its shape is missing");
    const size_t ndim = sizes->size();
    if (ndim > executorch::runtime::kTensorDimensionLimit) {
      damaged("it has " + std::to_string(ndim) + " dimensions, and the runtime describes at most " +
              std::to_string(executorch::runtime::kTensorDimensionLimit));
    }
    require(dim_order->size() == ndim, "its dim order is not that of its shape");
    size_t nbytes = itemsize;
    uint32_t seen = 0;
    bool overflows = false;
    bool empty = false;
    for (size_t i = 0; i < ndim; ++i) {
      const int32_t size = at(sizes, i);
      if (size < 0) {
        damaged("its size " + std::to_string(size) + " in dimension " + std::to_string(i) + " is negative");
      }
      empty = empty || size == 0;
      overflows = __builtin_mul_overflow(nbytes, static_cast<size_t>(size), &nbytes) || overflows;
      const uint8_t dim = at(dim_order, i);
      require(dim < ndim && (seen >> dim & 1) == 0, "its dim order is no order of its dimensions");
      seen |= 1U << dim;
    }
    // The runtime multiplies in a signed type, from the first to the last, and does not stop at a zero.
    require(!overflows && nbytes <= INT64_MAX, "its size overflows");
    return empty ? 0 : nbytes;
  }

  void planned(const fb::AllocationDetails *place, size_t nbytes, size_t itemsize, DeviceType device) const {
    require(place->memory_id() > 0 && place->memory_id() < buffer_devices_.size(),
            "it is in no planned buffer");
    const uint64_t offset =
        static_cast<uint64_t>(place->memory_offset_high()) << 32 | place->memory_offset_low();
    const auto size = static_cast<uint64_t>(at(plan_->non_const_buffer_sizes(), place->memory_id()));
    require(offset <= size && nbytes <= size - offset, "it reaches beyond the end of its planned buffer");
    require(offset % itemsize == 0, "its memory is not aligned");
    require(device == buffer_devices_[place->memory_id()], "its planned buffer is on another device");
  }

  void constant(uint32_t index, size_t nbytes, size_t itemsize) const {
    if (constant_segment_ == nullptr) {
      // An old file: the constants are in the flatbuffer.
      const auto *buffers = program_->constant_buffer();
      require(index < count(buffers), "there is no such constant");
      require(nbytes <= count(at(buffers, index)->storage()), "it is larger than its constant");
      return;
    }
    const auto *offsets = program_->constant_segment()->offsets();
    require(index < offsets->size(), "there is no such constant");
    const uint64_t offset = at(offsets, index);
    const uint64_t size = constant_segment_->size();
    require(offset <= size && nbytes <= size - offset, "it reaches beyond the end of the constants");
    require((extent_.segments_at + constant_segment_->offset() + offset) % itemsize == 0,
            "its memory is not aligned");
  }

  // ---- instructions ---------------------------------------------------------------------------------

  // A view of a constant, and whatever a constant is moved to, is a constant too.
  void aliases_of_constants() {
    std::vector<std::pair<size_t, size_t>> edges; // from, to
    for (size_t i = 0; i < plan_->chains()->size(); ++i) {
      const auto *instructions = at(plan_->chains(), i)->instructions();
      for (size_t j = 0; j < count(instructions); ++j) {
        looking_at("instruction", j);
        if (const auto *move = at(instructions, j)->instr_args_as_MoveCall()) {
          edges.emplace_back(index(move->move_from()), index(move->move_to()));
        } else if (const auto *call = at(instructions, j)->instr_args_as_KernelCall()) {
          if (convention_of(call) == Convention::kView && count(call->args()) > 0) {
            edges.emplace_back(index(at(call->args(), 0)), index(at(call->args(), call->args()->size() - 1)));
          }
        }
      }
    }
    part_ = nullptr;
    if (edges.empty()) {
      return;
    }
    std::vector<std::vector<size_t>> next(values_);
    for (const auto &[from, to] : edges) {
      next[from].push_back(to);
    }
    std::vector<size_t> pending;
    for (size_t i = 0; i < values_; ++i) {
      if (constant_[i]) {
        pending.push_back(i);
      }
    }
    while (!pending.empty()) {
      const size_t from = pending.back();
      pending.pop_back();
      for (const size_t to : next[from]) {
        if (!constant_[to]) {
          constant_[to] = true;
          pending.push_back(to);
        }
      }
    }
  }

  void chain(const fb::Chain *chain) {
    const auto *instructions = chain->instructions();
    require(instructions != nullptr, "it has no list of instructions");
    for (size_t i = 0; i < instructions->size(); ++i) {
      looking_at("instruction", i);
      const fb::Instruction *instruction = at(instructions, i);
      require(instruction->instr_args() != nullptr, "it is missing");
      if (const auto *call = instruction->instr_args_as_KernelCall()) {
        kernel(call);
      } else if (const auto *delegate = instruction->instr_args_as_DelegateCall()) {
        require(delegate->delegate_index() >= 0 &&
                    static_cast<size_t>(delegate->delegate_index()) < plan_->delegates()->size(),
                "there is no such delegate");
        require(delegate->args() != nullptr, "its arguments are missing");
        for (const int32_t arg : *delegate->args()) {
          // A backend may give a result on its own device memory that the file knows nothing of.
          if (on_device(index(arg))) {
            has_memory_[index(arg)] = true;
          }
          readable(index(arg));
        }
      } else if (const auto *move = instruction->instr_args_as_MoveCall()) {
        const size_t from = index(move->move_from());
        const size_t to = index(move->move_to());
        require((kind(from) == Kind::Tensor) == (kind(to) == Kind::Tensor),
                "it moves a tensor to where none is, or something else to where one is");
        has_memory_[to] = has_memory_[to] || has_memory_[from];
      } else if (const auto *jump = instruction->instr_args_as_JumpFalseCall()) {
        index(jump->cond_value_index());
        require(jump->destination_instruction() >= 0 &&
                    static_cast<size_t>(jump->destination_instruction()) <= instructions->size(),
                "it jumps to no instruction");
      } else if (const auto *free = instruction->instr_args_as_FreeCall()) {
        const fb::Tensor *tensor = at(plan_->values(), index(free->value_index()))->val_as_Tensor();
        require(tensor != nullptr && tensor->shape_dynamism() == fb::TensorShapeDynamism::DYNAMIC_UNBOUND,
                "it frees what is not the runtime's to free");
      } else {
        damaged("it is of a kind that the runtime does not know");
      }
    }
  }

  Convention convention_of(const fb::KernelCall *call) const {
    // The runtime leaves an instruction without a kernel where this is out of range, and calls it all the
    // same, if a later one has one.
    require(call->op_index() >= 0 && static_cast<size_t>(call->op_index()) < conventions_.size(),
            "there is no such operator");
    return conventions_[static_cast<size_t>(call->op_index())];
  }

  void kernel(const fb::KernelCall *call) {
    const Convention how = convention_of(call);
    const Indices *args = call->args();
    require(args != nullptr, "its arguments are missing");
    const size_t n = args->size();
    for (size_t i = 0; i < n; ++i) {
      const size_t arg = index(at(args, i));
      if (how == Convention::kView && i + 1 == n) {
        has_memory_[arg] = true;
      } else {
        readable(arg);
      }
    }
    if (n == 0 || how == Convention::kView) {
      return;
    }
    if (how == Convention::kFirst) {
      writable(index(at(args, 0)));
      return;
    }
    const auto last = static_cast<size_t>(at(args, n - 1));
    if (kind(last) == Kind::Tensor) {
      const bool repeated = n > 1 && at(args, n - 2) == at(args, n - 1);
      if (how == Convention::kOut) {
        require(repeated || n < 2 || kind(static_cast<size_t>(at(args, n - 2))) != Kind::Tensor,
                "what it writes to is not what it returns");
      }
      if (repeated || how == Convention::kOut) {
        writable(last);
      }
    } else if (kind(last) == Kind::TensorList) {
      const Indices *items = at(plan_->values(), last)->val_as_TensorList()->items();
      bool repeated = items->size() < n;
      for (size_t i = 0; repeated && i < items->size(); ++i) {
        repeated = at(args, n - 1 - items->size() + i) == at(items, i);
      }
      if (how == Convention::kOut) {
        require(repeated || n < 2 || kind(static_cast<size_t>(at(args, n - 2))) != Kind::Tensor,
                "what it writes to is not what it returns");
      }
      if (repeated || how == Convention::kOut) {
        for (const int32_t item : *items) {
          writable(static_cast<size_t>(item));
        }
      }
    }
  }

  // Whether a tensor, or each of a list, has been given memory by the time an instruction uses it. Jumps only
  // skip instructions, or lead back to some that were passed before.
  void readable(size_t value) {
    if (has_memory_[value]) {
      const Indices *items = list_has_memory_[value] ? nullptr : items_of(value);
      if (items != nullptr) {
        for (const int32_t item : *items) {
          if (item >= 0) {
            readable(static_cast<size_t>(item));
          }
        }
        list_has_memory_[value] = true;
      }
      return;
    }
    damaged("it uses the tensor " + std::to_string(value) + ", which has no memory");
  }

  bool on_device(size_t value) const {
    const fb::Tensor *tensor = at(plan_->values(), value)->val_as_Tensor();
    return tensor != nullptr && !device_of(tensor).is_cpu();
  }

  const Indices *items_of(size_t value) const {
    const fb::EValue *list = at(plan_->values(), value);
    if (const auto *tensors = list->val_as_TensorList()) {
      return tensors->items();
    }
    if (const auto *tensors = list->val_as_OptionalTensorList()) {
      return tensors->items();
    }
    return nullptr;
  }

  void writable(size_t value) const {
    if (constant_[value]) {
      damaged("it writes to the value " + std::to_string(value) + ", which is a constant");
    }
  }

  const fb::Program *program_;
  const FileExtent &extent_;
  const std::string &what_;

  // Where it is, in words.
  std::string where_;
  const char *part_ = nullptr;
  size_t index_ = 0;

  const fb::DataSegment *constant_segment_ = nullptr;
  const fb::ExecutionPlan *plan_ = nullptr;
  size_t values_ = 0;
  std::vector<DeviceType> buffer_devices_;
  std::vector<Convention> conventions_;
  std::vector<bool> constant_;        // by value: it is in the file, where nothing may write
  std::vector<bool> has_memory_;      // by value: not a tensor without, as far as has been looked
  std::vector<bool> list_has_memory_; // by value: a list whose items all have, so that none is asked twice
};

} // namespace

void validate(const fb::Program *program, const FileExtent &extent, const std::string &what) {
  Validator(program, extent, what).run();
}

} // namespace etcffi

#include "method.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>
#include <executorch/runtime/core/named_data_map.h>
#include <executorch/runtime/platform/log.h>

#include "dtype.h"
#include "status.h"

namespace runtime = executorch::runtime;
namespace aten = executorch::aten;

using namespace etcffi;
using aten::Tensor;
using aten::TensorImpl;
using runtime::EValue;
using runtime::Method;

namespace {

// Method has no other way to name the value behind an input.
const EValue &input_value(const Method &method, size_t index) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return method.get_input(index);
#pragma GCC diagnostic pop
}

std::string label(const char *side, size_t index, const etcffi_tensor_info &info) {
  std::string text = std::string(side) + " " + std::to_string(index);
  if (info.name_size > 0) {
    text += " ('" + std::string(info.name, info.name_size) + "')";
  }
  return text;
}

std::string joined(const std::vector<std::string> &names) {
  std::string text;
  for (const std::string &name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

std::string registered_backends() {
  std::vector<std::string> names;
  for (size_t i = 0; i < runtime::get_num_registered_backends(); ++i) {
    auto name = runtime::get_backend_name(i);
    if (name.ok()) {
      names.emplace_back(name.get());
    }
  }
  return names.empty() ? "none" : joined(names);
}

// A list of numbers as a tensor of one dimension.
template <typename List> etcffi_tensor *make_list(const List &list, ScalarType scalar_type) {
  etcffi_memory memory{};
  memory.scalar_type = static_cast<int32_t>(scalar_type);
  memory.ndim = 1;
  memory.has_strides = 1;
  memory.sizes[0] = static_cast<int64_t>(list.size());
  memory.strides[0] = 1;
  memory.nbytes = list.size() * sizeof(*list.data());
  auto block = etcffi_block::allocate(memory.nbytes, DeviceType::CPU);
  memory.data = block->data();
  if (memory.nbytes > 0) {
    std::memcpy(memory.data, list.data(), memory.nbytes);
  }
  return new etcffi_tensor(memory, std::move(block));
}

const Tensor *tensor_in(const Tensor &item) {
  return &item;
}
const Tensor *tensor_in(const std::optional<Tensor> &item) {
  return item.has_value() ? &*item : nullptr;
}

// Where a tensor's elements are, and in which layout.
etcffi_memory memory_of(const Tensor &tensor) {
  const TensorImpl *impl = tensor.unsafeGetTensorImpl();
  etcffi_memory memory{};
  memory.data = impl->mutable_data();
  memory.nbytes = impl->nbytes();
  memory.scalar_type = static_cast<int32_t>(impl->scalar_type());
  memory.ndim = static_cast<int32_t>(impl->dim());
  memory.device = to_c(impl->device());
  memory.has_strides = 1;
  for (int32_t i = 0; i < memory.ndim; ++i) {
    memory.sizes[i] = impl->sizes()[static_cast<size_t>(i)];
    memory.strides[i] = impl->strides()[static_cast<size_t>(i)];
  }
  if (memory.nbytes > 0 && memory.data == nullptr) {
    fail(ETCFFI_NoMemory, "the method left a result without memory");
  }
  return memory;
}

bool is_placed(const etcffi_value *into, size_t index) {
  return into != nullptr && into[index].tag == ETCFFI_Tag_Tensor;
}

bool overlap(const void *one, size_t one_nbytes, const void *other, size_t other_nbytes) {
  const auto first = reinterpret_cast<uintptr_t>(one), second = reinterpret_cast<uintptr_t>(other);
  return first < second + other_nbytes && second < first + one_nbytes && one_nbytes > 0 && other_nbytes > 0;
}

void release_values(etcffi_value *values, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    release_values(values[i].items, values[i].items == nullptr ? 0 : values[i].size);
    values[i].items = nullptr;
    etcffi_tensor_release(std::exchange(values[i].tensor, nullptr));
  }
}

// The bytes that a tensor's elements take, after its check.
size_t element_bytes(const etcffi_memory &memory) {
  size_t nbytes = static_cast<size_t>(dtype_of(memory.scalar_type).itemsize);
  for (int32_t i = 0; i < memory.ndim; ++i) {
    nbytes *= static_cast<size_t>(memory.sizes[i]);
  }
  return nbytes;
}

// Copies an input into memory of the slot's own, where the method takes it and with what the delegates that
// read it need.
void *copy_of(InputSlot &slot, const etcffi_memory &memory, size_t nbytes) {
  const Device device = from_c(slot.info.device);
  if (!slot.copy || slot.copy->nbytes() < nbytes) {
    slot.copy = etcffi_block::allocate(std::max(slot.info.nbytes, nbytes), device,
                                       std::max(slot.needs_padding, etcffi_block::kRoom),
                                       std::max(slot.needs_alignment, etcffi_block::kAlignment));
  }
  copy_bytes(slot.copy->data(), device, memory.data, from_c(memory.device), nbytes);
  return slot.copy->data();
}

// A planned buffer in its caller's memory.
Ref<etcffi_block> borrowed_block(const etcffi_region &region, size_t nbytes, const Device &device,
                                 bool is_shared, size_t index, const std::string &doing) {
  const std::string what = doing + " failed: the memory given for planned buffer " + std::to_string(index);
  if (!device.is_cpu()) {
    fail(ETCFFI_BadDevice,
         what + " is the host's, and the buffer is on " + describe(to_c(device)) + "; pass None for it");
  }
  if (is_shared) {
    fail(ETCFFI_BadArgument,
         what +
             " would be this method's alone, and the buffer is shared with the program's other methods; pass "
             "None for it");
  }
  if (region.nbytes < nbytes || region.nbytes - nbytes < ETCFFI_PLANNED_ROOM) {
    fail(ETCFFI_NoMemory, what + " has " + std::to_string(region.nbytes) + " bytes, and " +
                              std::to_string(nbytes + ETCFFI_PLANNED_ROOM) + " are needed: the buffer's " +
                              std::to_string(nbytes) + " and " + std::to_string(ETCFFI_PLANNED_ROOM) +
                              " that a kernel may read behind them");
  }
  if (reinterpret_cast<uintptr_t>(region.data) % ETCFFI_PLANNED_ALIGNMENT != 0) {
    fail(ETCFFI_BadLayout,
         what + " begins at an address that is no multiple of " + std::to_string(ETCFFI_PLANNED_ALIGNMENT));
  }
  std::memset(region.data, 0, nbytes);
  return etcffi_block::borrow(region.data, region.nbytes);
}

// The loaded tensor says where it is too, and has to agree with the metadata: memory is allocated by the one
// and used by the other.
void require_device(const std::string &what, const etcffi_tensor_info &info, const Tensor &loaded) {
  const etcffi_device device = to_c(loaded.unsafeGetTensorImpl()->device());
  if (device.type != info.device.type || device.index != info.device.index) {
    fail(ETCFFI_BadFile,
         what + " is on " + describe(info.device) + " by the file, and was loaded for " + describe(device));
  }
}

// Puts into words what the runtime says with a number and a log line each.
void fail_for_what_is_missing(const fb::ExecutionPlan *plan, const etcffi_data_map *data,
                              const std::string &doing) {
  std::vector<std::string> missing;
  for (const std::string &name : operator_names(plan)) {
    if (etcffi_has_kernel(name.c_str()) == 0) {
      missing.push_back(name);
    }
  }
  if (!missing.empty()) {
    fail(ETCFFI_MissingOperator, doing + " failed: this runtime has no kernel for " + joined(missing) +
                                     "; load the library that brings it (Runtime.load_library)");
  }
  for (const std::string &name : backend_names(plan)) {
    if (etcffi_has_backend(name.c_str()) == 0) {
      fail(ETCFFI_MissingBackend, doing + " failed: it delegates to the backend " + name +
                                      ", which is not registered; registered: " + registered_backends() +
                                      "; load the library that brings it (Runtime.load_library)");
    }
  }
  missing.clear();
  for (const std::string &name : external_names(plan)) {
    if (data == nullptr || !data->has(name)) {
      missing.push_back("'" + name + "'");
    }
  }
  if (!missing.empty()) {
    fail(ETCFFI_MissingData,
         doing + " failed: its weights are kept outside of the program, and " +
             (data == nullptr ? "no data file was given" : "not all of them are in " + data->files()) + ": " +
             joined(missing) + "; pass the .ptd files exported with it (data_path=...)");
  }
}

// The data files of a program that was given none. The runtime takes a null pointer for that too, but a
// backend that looks for its weights there (XNNPACK) does not ask whether it is one.
class NoDataFiles final : public runtime::NamedDataMap {
public:
  runtime::Result<const runtime::TensorLayout> get_tensor_layout(std::string_view key) const override {
    return missing(key);
  }
  runtime::Result<runtime::FreeableBuffer> get_data(std::string_view key) const override {
    return missing(key);
  }
  runtime::Error load_data_into(std::string_view key, void *, size_t) const override { return missing(key); }
  runtime::Result<uint32_t> get_num_keys() const override { return 0; }
  runtime::Result<const char *> get_key(uint32_t) const override { return runtime::Error::NotFound; }

private:
  static runtime::Error missing(std::string_view key) {
    ET_LOG(Error, "'%.*s' is not in the program, but in a data file (.ptd), and none was given",
           static_cast<int>(key.size()), key.data());
    return runtime::Error::NotFound;
  }
};

const NoDataFiles no_data_files;

} // namespace

etcffi_method::StateUse::StateUse(SharedState *state) : state_(state) {
  if (state_ != nullptr && state_->in_use.exchange(true, std::memory_order_acquire)) {
    fail(ETCFFI_Busy, "another thread is using a method that shares its state with this one; use them on one "
                      "thread at a time, "
                      "or load the program again for a state of its own");
  }
}

etcffi_method::StateUse::~StateUse() {
  if (state_ != nullptr) {
    state_->in_use.store(false, std::memory_order_release);
  }
}

Ref<etcffi_method> etcffi_method::load(etcffi_program *program, const char *name,
                                       const etcffi_load_options &options) {
  auto loaded = Ref<etcffi_method>::adopt(new etcffi_method(program, options));
  const size_t index = program->find_method(name);
  loaded->load_method(name, index, options);
  loaded->describe_inputs(index);
  loaded->describe_outputs(index);
  return loaded;
}

void etcffi_method::place_planned_buffers(size_t index, const etcffi_load_options &options,
                                          const std::string &doing) {
  const runtime::MethodMeta meta = program_->meta(index);
  const size_t count = meta.num_memory_planned_buffers();
  if (options.planned != nullptr && options.num_planned != count) {
    fail(ETCFFI_BadCount, doing + " failed: the method has " + std::to_string(count) +
                              " planned buffers, and memory for " + std::to_string(options.num_planned) +
                              " was given");
  }
  for (size_t i = 0; i < count; ++i) {
    auto size = meta.memory_planned_buffer_size(i);
    check(size.error(), doing);
    auto device = meta.memory_planned_buffer_device(i);
    check(device.error(), doing);
    if (size.get() < 0) {
      fail(ETCFFI_BadFile, doing + " failed: the file states a planned buffer of negative size");
    }
    const auto nbytes = static_cast<size_t>(size.get());
    const bool is_shared = shared_ != nullptr && i == SharedState::kPlannedBuffer;
    if (options.planned != nullptr && options.planned[i].data != nullptr) {
      planned_.push_back(borrowed_block(options.planned[i], nbytes, device.get(), is_shared, i, doing));
    } else if (is_shared) {
      planned_.push_back(shared_->block());
    } else {
      planned_.push_back(etcffi_block::allocate(nbytes, device.get()));
    }
    spans_.emplace_back(static_cast<uint8_t *>(planned_.back()->data()), nbytes);
    devices_.push_back(device.get());
  }
}

void etcffi_method::load_method(const char *name, size_t index, const etcffi_load_options &options) {
  const std::string doing = std::string("loading the method '") + name + "'";
  program_->check_delegates(index);
  const fb::ExecutionPlan *plan = program_->plan(index);
  const std::vector<std::string> backends = backend_names(plan);
  backend_options_ =
      std::make_unique<BackendOptions>(options.backend_options, options.num_backend_options, backends, doing);
  require_allocators(index, doing);
  if (const fb::Tensor *constant = constant_on_device(plan)) {
    fail(ETCFFI_BadFile,
         doing + " failed: the file puts a constant on " + describe(to_c(device_of(constant))) +
             ", and the runtime leaves it in the host's memory, where the device cannot read it; export with "
             "a partitioner that takes constants into its delegates, or without "
             "skip_h2d_for_method_inputs");
  }
  shared_ = program_->shared_state(index);
  const StateUse use(shared_);
  place_planned_buffers(index, options, doing);
  const runtime::Span<runtime::Span<uint8_t>> spans(spans_.data(), spans_.size());
  if (std::all_of(devices_.begin(), devices_.end(), [](const Device &device) { return device.is_cpu(); })) {
    planned_memory_.emplace(spans);
  } else {
    planned_memory_.emplace(spans, runtime::Span<const Device>(devices_.data(), devices_.size()));
  }
  memory_manager_.emplace(&method_allocator_, &*planned_memory_, &temp_allocator_);
  if (!backends.empty()) {
    pool_holder_.emplace();
  }
  std::vector<uint8_t> state;
  if (shared_ != nullptr) {
    state = shared_->save();
  }
  const runtime::NamedDataMap *data = data_.get();
  // Beside weights with names in the program itself, the runtime would merge the two, which takes time.
  if (data == nullptr && !program_->program().get_named_data_map().ok()) {
    data = &no_data_files;
  }
  const PoolUse pool_use;
  etcffi_event_tracer::Scope trace(event_tracer_.get());
  auto method = program_->program().load_method(name, &*memory_manager_,
                                                event_tracer_ ? event_tracer_->generator() : nullptr, data,
                                                backend_options_->map());
  if (shared_ != nullptr) {
    shared_->restore(state, plan);
  }
  trace.done();
  if (!method.ok()) {
    fail_for_what_is_missing(plan, data_.get(), doing);
    check(method.error(), doing);
  }
  method_.emplace(std::move(method.get()));
}

// Memory is needed on the device of every input and output, if not at load then in a run: a method that could
// not have it is refused before anything is allocated for it.
void etcffi_method::require_allocators(size_t index, const std::string &doing) const {
  const runtime::MethodMeta meta = program_->meta(index);
  for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
    auto device = meta.memory_planned_buffer_device(i);
    check(device.error(), doing);
    require_allocator(device.get(), doing);
  }
  for (const int32_t side : {ETCFFI_INPUT, ETCFFI_OUTPUT}) {
    const size_t count = side == ETCFFI_INPUT ? meta.num_inputs() : meta.num_outputs();
    for (size_t i = 0; i < count; ++i) {
      if (const fb::Tensor *tensor = tensor_of(program_->plan(index), side, i)) {
        require_allocator(device_of(tensor), doing);
      }
    }
  }
}

void etcffi_method::describe_inputs(size_t index) {
  const runtime::MethodMeta meta = program_->meta(index);
  inputs_.resize(meta.num_inputs());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    InputSlot &slot = inputs_[i];
    auto tag = meta.input_tag(i);
    check(tag.error(), "reading the kind of an input");
    slot.tag = static_cast<int32_t>(tag.get());
    if (slot.tag == ETCFFI_Tag_Tensor) {
      // The layout and the bounds come from the metadata: the tensor that the runtime copies into is
      // resized by each input, and no longer says what the method was exported for.
      slot.info = program_->tensor_info(index, ETCFFI_INPUT, i);
      inputs_spent_by_run_ = inputs_spent_by_run_ || planned_memory_is_reused(program_->plan(index), i);
      ask_backends(slot, backends_reached(program_->plan(index), ETCFFI_INPUT, i));
    }
    slot.label = label("input", i, slot.info);
    if (slot.tag == ETCFFI_Tag_Tensor) {
      require_device(slot.label, slot.info, input_value(*method_, i).toTensor());
    }
  }
  state_ = inputs_.empty() ? Inputs::kSet : Inputs::kUnset;
}

void etcffi_method::describe_outputs(size_t index) {
  const runtime::MethodMeta meta = program_->meta(index);
  outputs_.resize(meta.num_outputs());
  for (size_t i = 0; i < outputs_.size(); ++i) {
    OutputSlot &slot = outputs_[i];
    const EValue &value = method_->get_output(i);
    slot.label = "output " + std::to_string(i);
    slot.is_output = true;
    slot.is_tensor = value.isTensor();
    if (!slot.is_tensor) {
      continue;
    }
    slot.info = program_->tensor_info(index, ETCFFI_OUTPUT, i);
    slot.label = label("output", i, slot.info);
    ask_backends(slot, backends_reached(program_->plan(index), ETCFFI_OUTPUT, i));
    require_device(slot.label, slot.info, value.toTensor());
    const TensorImpl *impl = value.toTensor().unsafeGetTensorImpl();
    slot.wants_memory = slot.info.is_memory_planned == 0;
    for (size_t j = 0; j < inputs_.size(); ++j) {
      const EValue &input = input_value(*method_, j);
      if (input.isTensor() && input.toTensor().unsafeGetTensorImpl() == impl) {
        slot.wants_memory = false;
      }
    }
    for (size_t j = 0; j < i && slot.same_as < 0; ++j) {
      const EValue &earlier = method_->get_output(j);
      if (earlier.isTensor() && earlier.toTensor().unsafeGetTensorImpl() == impl) {
        slot.wants_memory = false;
        slot.same_as = static_cast<int32_t>(j);
      }
    }
  }
}

void etcffi_method::require_usable() const {
  if (broken_) {
    fail(ETCFFI_MethodBroken,
         "a check inside the runtime failed in this method before, which left it in no known state; load it "
         "again");
  }
}

void etcffi_method::require_inputs() const {
  require_usable();
  switch (state_) {
  case Inputs::kSet:
    return;
  case Inputs::kUnset:
    fail(ETCFFI_InputsIncomplete, "the method's inputs were never set; set all of them first");
  case Inputs::kRefused:
    fail(ETCFFI_InputsIncomplete,
         "the last call that set the method's inputs was refused, so they are incomplete; set all of them "
         "first");
  case Inputs::kSpent:
    fail(ETCFFI_InputsIncomplete,
         "the last run used the memory of the method's planned inputs for something else; set all of them "
         "again before the next run");
  }
}

void etcffi_method::refuse_inputs() {
  state_ = Inputs::kRefused;
  executed_ = false;
  placed_ = false;
}

void etcffi_method::set_inputs(etcffi_value *values, size_t count) {
  require_usable();
  refuse_inputs();
  if (count != inputs_.size()) {
    fail(ETCFFI_BadCount, "the method takes " + std::to_string(inputs_.size()) +
                              (inputs_.size() == 1 ? " input" : " inputs") + ", and " +
                              std::to_string(count) + (count == 1 ? " was given" : " were given"));
  }
  for (size_t i = 0; i < count; ++i) {
    values[i].pointed_at = 0;
    check_input(inputs_[i], values[i]);
  }
  // Before any is installed: that may write where the memory of one that is lent is.
  for (size_t i = 0; i < count; ++i) {
    inputs_[i].copied = values[i].tag == ETCFFI_Tag_Tensor && is_lent(values[i].memory);
    if (inputs_[i].copied) {
      copy_of(inputs_[i], values[i].memory, element_bytes(values[i].memory));
    }
  }
  // The runtime takes them one by one and may refuse any, which leaves some of this set and some of the
  // last installed: state_ stays at kRefused until all are in.
  for (size_t i = 0; i < count; ++i) {
    install(i, values[i]);
  }
  state_ = Inputs::kSet;
}

// Whether memory is in what this method lends out (get_outputs without clone): the method writes there.
bool etcffi_method::is_lent(const etcffi_memory &memory) const {
  return std::any_of(planned_.begin(), planned_.end(), [&](const Ref<etcffi_block> &block) {
    return block->device() == from_c(memory.device) && block->contains(memory.data, 0);
  });
}

void etcffi_method::install(size_t index, etcffi_value &value) {
  InputSlot &slot = inputs_[index];
  switch (value.tag) {
  case ETCFFI_Tag_None:
    return give(index, EValue());
  case ETCFFI_Tag_Int:
    return give(index, EValue(value.as_int));
  case ETCFFI_Tag_Bool:
    return give(index, EValue(value.as_int != 0));
  case ETCFFI_Tag_Double:
    return give(index, EValue(value.as_double));
  case ETCFFI_Tag_String: {
    aten::ArrayRef<char> text(value.as_string, value.size);
    return give(index, EValue(&text));
  }
  default:
    break;
  }
  const etcffi_memory &memory = value.memory;
  int32_t sizes[ETCFFI_MAX_DIM];
  int32_t strides[ETCFFI_MAX_DIM];
  uint8_t dim_order[ETCFFI_MAX_DIM];
  int64_t dense[ETCFFI_MAX_DIM];
  strides_in_dim_order(memory.ndim, memory.sizes, slot.info.dim_order, dense);
  for (int32_t i = 0; i < memory.ndim; ++i) {
    sizes[i] = static_cast<int32_t>(memory.sizes[i]);
    strides[i] = static_cast<int32_t>(dense[i]);
    dim_order[i] = slot.info.dim_order[i];
  }
  const size_t nbytes = element_bytes(memory);
  const Device device = from_c(slot.info.device);
  const bool planned = slot.info.is_memory_planned != 0;
  // The runtime copies a planned input with the host's memcpy. Of a tensor without memory it copies nothing,
  // and only resizes its own and notes that the input is set; so that is what it is given for a device.
  const bool planned_on_device = planned && !device.is_cpu();
  Ref<etcffi_block> block = device_block_of(memory, nbytes);
  const bool pointed_at = !slot.copied && may_point_at(slot, memory, nbytes, block.get());
  void *data = memory.data;
  if (planned_on_device) {
    data = nullptr;
  } else if (slot.copied) {
    data = slot.copy->data();
  } else if (!pointed_at && (!planned || data == nullptr)) {
    data = copy_of(slot, memory, nbytes);
  }
  TensorImpl impl(static_cast<ScalarType>(memory.scalar_type), memory.ndim, sizes, data, dim_order, strides,
                  aten::TensorShapeDynamism::STATIC, device.type(), device.index());
  // Set before the runtime sees the pointer: a caller whose set is refused later keeps this memory too.
  value.pointed_at = pointed_at ? 1 : 0;
  give(index, EValue(Tensor(&impl)));
  slot.reads = pointed_at ? data : nullptr;
  slot.reads_nbytes = nbytes;
  slot.pointed_into = pointed_at ? std::move(block) : Ref<etcffi_block>();
  if (planned_on_device) {
    void *own = input_value(*method_, index).toTensor().mutable_data_ptr();
    if (slot.copied) {
      copy_bytes(own, device, slot.copy->data(), device, nbytes);
    } else {
      copy_bytes(own, device, memory.data, from_c(memory.device), nbytes);
    }
  }
}

void etcffi_method::give(size_t index, const EValue &value) {
  const runtime::Error error = method_->set_input(value, index);
  if (error != runtime::Error::Ok) {
    check(error, "setting " + inputs_[index].label);
  }
}

void etcffi_method::execute(const etcffi_value *into) {
  require_inputs();
  executed_ = false;
  placed_ = false;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    OutputSlot &slot = outputs_[i];
    slot.cloned = Ref<etcffi_tensor>();
    slot.lent = Ref<etcffi_tensor>();
    if (slot.wants_memory) {
      const size_t nbytes = slot.info.nbytes;
      const Device device = from_c(slot.info.device);
      slot.fresh = Ref<etcffi_block>();
      void *data;
      if (is_placed(into, i) && may_write_to(slot, into[i].memory)) {
        data = into[i].memory.data;
      } else {
        slot.fresh = device.is_cpu() ? slot.take_memory(nbytes) : etcffi_block::allocate(nbytes, device);
        data = slot.fresh->data();
      }
      const runtime::Error error = method_->set_output_data_ptr(data, nbytes, i);
      if (error != runtime::Error::Ok) {
        check(error, "giving memory to " + slot.label);
      }
    }
  }
  const PoolUse pool_use;
  etcffi_event_tracer::Scope trace(event_tracer_.get());
  const runtime::Error error = method_->execute();
  if (inputs_spent_by_run_) {
    state_ = Inputs::kSpent;
  }
  trace.done();
  check(error, "running the method");
  executed_ = true;
}

// A block that no result, capsule or input refers to any more, or a new one.
Ref<etcffi_block> etcffi::OutputSlot::take_memory(size_t size) {
  for (const Ref<etcffi_block> &block : recent) {
    if (block && !block->shared() && block->nbytes() >= size) {
      return block;
    }
  }
  std::swap(recent[0], recent[1]);
  recent[0] = etcffi_block::allocate(size, DeviceType::CPU);
  return recent[0];
}

Ref<etcffi_tensor> etcffi_method::make_result(const Tensor &tensor, bool clone, OutputSlot *slot) {
  const TensorImpl *impl = tensor.unsafeGetTensorImpl();
  etcffi_memory memory = memory_of(tensor);
  // Written into the buffer that was allocated for this run: that buffer is the result.
  if (slot != nullptr) {
    const OutputSlot &owner = slot->same_as < 0 ? *slot : outputs_[static_cast<size_t>(slot->same_as)];
    if (owner.fresh && memory.data == owner.fresh->data()) {
      return Ref<etcffi_tensor>::adopt(new etcffi_tensor(memory, owner.fresh));
    }
  }
  // In planned memory: it lasts as long as the block that the result shares with the method, but the next
  // run writes to it, so it is lent only to a caller who asked for that.
  if (!clone) {
    for (const auto &block : planned_) {
      if (block->device() == impl->device() && block->contains(memory.data, memory.nbytes)) {
        return Ref<etcffi_tensor>::adopt(new etcffi_tensor(memory, block));
      }
    }
  }
  // Anything else (an input that is an output, a constant) is memory that somebody else may write or free.
  // The copy stays on its device, and goes there through the host.
  if (slot != nullptr && impl->device().is_cpu()) {
    Ref<etcffi_block> block = slot->take_memory(memory.nbytes);
    if (memory.nbytes > 0) {
      std::memcpy(block->data(), memory.data, memory.nbytes);
    }
    memory.data = block->data();
    return Ref<etcffi_tensor>::adopt(new etcffi_tensor(memory, std::move(block)));
  }
  return etcffi::copy_of(memory, impl->device());
}

template <typename List> void etcffi_method::write_items(const List &list, bool clone, etcffi_value &out) {
  etcffi_memory memory{};
  memory.nbytes = list.size() * sizeof(etcffi_value);
  auto block = etcffi_block::allocate(memory.nbytes, DeviceType::CPU);
  memory.data = block->data();
  out.tensor = new etcffi_tensor(memory, std::move(block));
  out.items = static_cast<etcffi_value *>(memory.data);
  for (const auto &item : list) {
    const Tensor *tensor = tensor_in(item);
    etcffi_value &value = out.items[out.size];
    if (tensor != nullptr) {
      value.tensor = make_result(*tensor, clone, nullptr).detach();
      value.tag = ETCFFI_Tag_Tensor;
    }
    ++out.size; // after it is whole: a failure releases the items that are
  }
}

void etcffi_method::check_into(const etcffi_value *into, size_t count) const {
  if (count != outputs_.size()) {
    fail(ETCFFI_BadCount, "the method has " + std::to_string(outputs_.size()) +
                              (outputs_.size() == 1 ? " output" : " outputs") + ", and memory for " +
                              std::to_string(count) + " was given; pass None for one that needs none");
  }
  for (size_t i = 0; i < count; ++i) {
    const OutputSlot &slot = outputs_[i];
    check_output(slot, slot.is_tensor, into[i]);
    if (into[i].tag != ETCFFI_Tag_Tensor) {
      continue;
    }
    const etcffi_memory &memory = into[i].memory;
    for (const Ref<etcffi_block> &block : planned_) {
      if (block->device() == from_c(memory.device) &&
          overlap(memory.data, element_bytes(memory), block->data(), block->nbytes())) {
        fail(ETCFFI_BadArgument, "the memory given for " + slot.label +
                                     " is the method's planned memory, which the run itself uses");
      }
    }
    for (size_t j = 0; j < i; ++j) {
      if (into[j].tag == ETCFFI_Tag_Tensor &&
          overlap(memory.data, element_bytes(memory), into[j].memory.data, element_bytes(into[j].memory))) {
        fail(ETCFFI_BadArgument, "the memory given for " + slot.label + " overlaps that for " +
                                     outputs_[j].label + "; give each memory of its own");
      }
    }
  }
}

// Whether the run may write straight to its caller's memory: by the rule of the inputs, and where it is of
// the size that the method states (a dynamic output may come out larger than the memory), and nothing that
// the run reads.
bool etcffi_method::may_write_to(const OutputSlot &slot, const etcffi_memory &memory) const {
  const size_t nbytes = element_bytes(memory);
  if (slot.info.is_dynamic != 0 ||
      !may_point_at(slot, memory, nbytes, device_block_of(memory, nbytes).get())) {
    return false;
  }
  return std::none_of(inputs_.begin(), inputs_.end(), [&](const InputSlot &input) {
    return input.reads != nullptr && overlap(memory.data, nbytes, input.reads, input.reads_nbytes);
  });
}

// Brings the outputs that the run did not write there to the memory that they are wanted in.
void etcffi_method::place(const etcffi_value *into) {
  std::vector<etcffi_memory> results(outputs_.size());
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (!is_placed(into, i)) {
      continue;
    }
    const EValue &value = method_->get_output(i);
    if (!value.isTensor()) {
      fail(ETCFFI_BadKind, outputs_[i].label + " is no tensor any more: the method replaced it");
    }
    results[i] = memory_of(value.toTensor());
    check_result(outputs_[i], into[i].memory, results[i]);
  }
  // An output may be an input, and that in memory which another output is about to be written to.
  std::vector<Ref<etcffi_tensor>> saved(outputs_.size());
  for (size_t i = 0; i < outputs_.size(); ++i) {
    for (size_t j = 0; is_placed(into, i) && !saved[i] && j < outputs_.size(); ++j) {
      if (j != i && is_placed(into, j) && results[j].data != into[j].memory.data &&
          overlap(results[i].data, results[i].nbytes, into[j].memory.data, results[j].nbytes)) {
        saved[i] = etcffi::copy_of(results[i], from_c(results[i].device));
        results[i].data = saved[i]->memory.data;
      }
    }
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const etcffi_memory &to = into[i].memory;
    if (!is_placed(into, i) || results[i].data == to.data || results[i].nbytes == 0) {
      continue;
    }
    if (to.device.type == ETCFFI_DeviceType_CPU && results[i].device.type == ETCFFI_DeviceType_CPU) {
      std::memmove(to.data, results[i].data, results[i].nbytes);
    } else {
      copy_bytes(to.data, from_c(to.device), results[i].data, from_c(results[i].device), results[i].nbytes);
    }
  }
}

void etcffi_method::run_into(const etcffi_value *into, bool clone, etcffi_value *values, size_t count) {
  check_into(into, count);
  execute(into);
  executed_ = false;
  // First what is returned in memory of its own: it may lie in an input's, which is about to be written.
  write_values(clone, into, values);
  try {
    place(into);
  } catch (...) {
    release_values(values, count);
    throw;
  }
  placed_ = true;
}

void etcffi_method::write_value(const EValue &value, bool clone, OutputSlot &slot, etcffi_value &out) {
  out.tag = static_cast<int32_t>(value.tag);
  // A run may overwrite any value with one of another kind; callers know what to do with a tensor's tag only
  // where the file promised a tensor.
  if (value.isTensor() != slot.is_tensor) {
    fail(ETCFFI_BadKind, slot.label + (slot.is_tensor ? " is no tensor any more" : " has become a tensor") +
                             ": the method replaced it");
  }
  switch (value.tag) {
  case runtime::Tag::None:
    break;
  case runtime::Tag::Tensor: {
    Ref<etcffi_tensor> &handed = clone ? slot.cloned : slot.lent;
    if (!handed) {
      handed = make_result(value.toTensor(), clone, &slot);
    }
    out.tensor = Ref<etcffi_tensor>(handed).detach();
    break;
  }
  case runtime::Tag::Int:
    out.as_int = value.toInt();
    break;
  case runtime::Tag::Bool:
    out.as_int = value.toBool() ? 1 : 0;
    break;
  case runtime::Tag::Double:
    out.as_double = value.toDouble();
    break;
  case runtime::Tag::String: {
    const std::string_view text = value.toString();
    out.as_string = text.data();
    out.size = text.size();
    break;
  }
  case runtime::Tag::ListInt:
    out.tensor = make_list(value.toIntList(), ScalarType::Long);
    break;
  case runtime::Tag::ListBool:
    out.tensor = make_list(value.toBoolList(), ScalarType::Bool);
    break;
  case runtime::Tag::ListDouble:
    out.tensor = make_list(value.toDoubleList(), ScalarType::Double);
    break;
  case runtime::Tag::ListTensor:
    write_items(value.toTensorList(), clone, out);
    break;
  case runtime::Tag::ListOptionalTensor:
    write_items(value.toListOptionalTensor(), clone, out);
    break;
  default:
    fail(ETCFFI_BadKind, slot.label + " is of a kind that this runtime does not return");
  }
}

void etcffi_method::get_outputs(bool clone, etcffi_value *values, size_t count) {
  require_usable();
  if (state_ == Inputs::kRefused) {
    require_inputs();
  }
  if (placed_) {
    fail(ETCFFI_NotExecuted,
         "the last run wrote outputs to memory of its caller's, and handed over the others "
         "with that; there is nothing more to be read");
  }
  if (!executed_) {
    fail(ETCFFI_NotExecuted, "the method has not run with its present inputs, so there are no outputs");
  }
  if (count != outputs_.size()) {
    fail(ETCFFI_BadArgument, "the method has " + std::to_string(outputs_.size()) + " outputs");
  }
  write_values(clone, nullptr, values);
}

void etcffi_method::write_values(bool clone, const etcffi_value *into, etcffi_value *values) {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    etcffi_value &value = values[i];
    value.size = 0;
    value.tensor = nullptr;
    value.items = nullptr;
    if (is_placed(into, i)) {
      value.tag = ETCFFI_Tag_None;
      continue;
    }
    try {
      write_value(method_->get_output(i), clone, outputs_[i], value);
    } catch (...) {
      release_values(values, i + 1);
      throw;
    }
  }
}

Ref<etcffi_tensor> etcffi_method::get_attribute(const char *name) {
  require_usable();
  auto tensor = method_->get_attribute(name);
  check(tensor.error(), std::string("reading the attribute '") + name + "'");
  return make_result(tensor.get(), false, nullptr);
}

etcffi_planned_buffer etcffi_method::planned_buffer(size_t index) const {
  if (index >= planned_.size()) {
    fail(ETCFFI_BadArgument, "the method has " + std::to_string(planned_.size()) + " planned buffers");
  }
  etcffi_planned_buffer out{};
  out.nbytes = spans_[index].size();
  out.device = to_c(devices_[index]);
  out.owner = planned_[index]->borrowed()                                             ? ETCFFI_CALLERS
              : shared_ != nullptr && planned_[index].get() == shared_->block().get() ? ETCFFI_SHARED
                                                                                      : ETCFFI_OWN;
  return out;
}

etcffi_status etcffi_method_load(etcffi_program *program, const char *name, etcffi_method **out) {
  const etcffi_load_options none{};
  return etcffi_method_load_with(program, name, &none, out);
}

etcffi_status etcffi_method_load_with(etcffi_program *program, const char *name,
                                      const etcffi_load_options *options, etcffi_method **out) {
  return guard([&] { *out = etcffi_method::load(program, name, *options).detach(); });
}

etcffi_status etcffi_method_planned_buffer(etcffi_method *method, size_t index, etcffi_planned_buffer *out) {
  return method->call([&] { *out = method->planned_buffer(index); });
}

etcffi_status etcffi_method_memory(etcffi_method *method, size_t *structures, size_t *temporary_peak) {
  return method->call([&] {
    *structures = method->structures();
    *temporary_peak = method->temporary_peak();
  });
}

void etcffi_method_retain(etcffi_method *method) {
  method->retain();
}

void etcffi_method_release(etcffi_method *method) {
  if (method != nullptr) {
    method->release();
  }
}

etcffi_status etcffi_method_set_inputs(etcffi_method *method, etcffi_value *inputs, size_t count) {
  return method->call([&] { method->set_inputs(inputs, count); });
}

void etcffi_method_refuse_inputs(etcffi_method *method) {
  method->refuse_inputs();
}

int32_t etcffi_method_has_inputs(const etcffi_method *method) {
  return method->has_inputs() ? 1 : 0;
}

etcffi_status etcffi_method_execute(etcffi_method *method) {
  return method->call([&] { method->execute(); });
}

etcffi_status etcffi_method_run(etcffi_method *method, etcffi_value *inputs, size_t num_inputs, int32_t clone,
                                etcffi_value *outputs, size_t num_outputs) {
  return method->call([&] {
    method->set_inputs(inputs, num_inputs);
    method->execute();
    method->get_outputs(clone != 0, outputs, num_outputs);
  });
}

etcffi_status etcffi_method_run_into(etcffi_method *method, etcffi_value *inputs, size_t num_inputs,
                                     const etcffi_value *into, int32_t clone, etcffi_value *outputs,
                                     size_t num_outputs) {
  return method->call([&] {
    if (inputs != nullptr) {
      method->set_inputs(inputs, num_inputs);
    }
    method->run_into(into, clone != 0, outputs, num_outputs);
  });
}

etcffi_status etcffi_method_get_outputs(etcffi_method *method, int32_t clone, etcffi_value *outputs,
                                        size_t count) {
  return method->call([&] { method->get_outputs(clone != 0, outputs, count); });
}

etcffi_status etcffi_method_get_attribute(etcffi_method *method, const char *name, etcffi_tensor **out) {
  return method->call([&] { *out = method->get_attribute(name).detach(); });
}

#include "program.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/data_loader/mmap_data_loader.h>

#include "schema/program_generated.h"
#include "status.h"
#include "validate.h"
#include "xnnpack.h"

namespace runtime = executorch::runtime;
namespace extension = executorch::extension;

using namespace etcffi;
using runtime::DataLoader;
using runtime::FreeableBuffer;
using runtime::Program;

namespace {

// Flatbuffers and tensors in the file are aligned to this from the file's start, so the start must be too.
constexpr uintptr_t kProgramAlignment = 16;

// Where `copy` asks for a copy or the bytes stand at an address that the runtime would refuse, `storage`
// takes one; the answer is where the program is to be read.
const uint8_t *readable_bytes(const void *data, size_t nbytes, bool copy, std::vector<uint8_t> &storage) {
  const auto *bytes = static_cast<const uint8_t *>(data);
  if (!copy && reinterpret_cast<uintptr_t>(data) % kProgramAlignment == 0) {
    return bytes;
  }
  // vector<uint8_t> is aligned for any scalar, which is kProgramAlignment.
  static_assert(alignof(std::max_align_t) >= kProgramAlignment);
  storage.assign(bytes, bytes + nbytes);
  return storage.data();
}

} // namespace

Ref<etcffi_program> etcffi_program::load_file(const char *path, int32_t verification) {
  auto loaded = Ref<etcffi_program>::adopt(new etcffi_program(std::string("'") + path + "'"));
  auto loader = extension::MmapDataLoader::from(path, extension::MmapDataLoader::MlockConfig::NoMlock);
  check(loader.error(), "opening " + loaded->what_);
  loaded->loader_ = std::make_unique<extension::MmapDataLoader>(std::move(loader.get()));
  loaded->load(verification);
  return loaded;
}

Ref<etcffi_program> etcffi_program::load_buffer(const void *data, size_t nbytes, bool copy,
                                                int32_t verification) {
  auto loaded = Ref<etcffi_program>::adopt(new etcffi_program("the program"));
  const uint8_t *bytes = readable_bytes(data, nbytes, copy, loaded->copied_);
  loaded->loader_ = std::make_unique<extension::BufferDataLoader>(bytes, nbytes);
  loaded->load(verification);
  return loaded;
}

void etcffi_program::load(int32_t verification) {
  const DataLoader::SegmentInfo program_segment(DataLoader::SegmentInfo::Type::Program);
  auto size = loader_->size();
  check(size.error(), "reading the size of " + what_);
  FileExtent extent{};
  if (size.get() == 0) {
    extent = check_head(nullptr, 0, 0, what_);
  } else {
    const size_t head_size = std::min<size_t>(kHeadBytes, size.get());
    auto head = loader_->load(0, head_size, program_segment);
    check(head.error(), "reading " + what_);
    extent = check_head(static_cast<const uint8_t *>(head->data()), head_size, size.get(), what_);
  }
  auto flatbuffer = loader_->load(0, extent.flatbuffer, program_segment);
  check(flatbuffer.error(), "reading " + what_);
  flatbuffer_.emplace(std::move(flatbuffer.get()));
  parsed_ = verify(static_cast<const uint8_t *>(flatbuffer_->data()), flatbuffer_->size(), what_);
  segments_at_ = extent.segments_at;
  check_segments(parsed_, extent, size.get(), what_);
  validate(parsed_, extent, what_);
  auto program = Program::load(loader_.get(), static_cast<Program::Verification>(verification));
  check(program.error(), "loading " + what_);
  program_.emplace(std::move(program.get()));
  for (const auto *plan : *parsed_->execution_plan()) {
    plans_.push_back(plan);
  }
  shared_state_ = SharedState::find(plans_);
}

void etcffi_program::check_delegates(size_t method) const {
  const auto *delegates = plan(method)->delegates();
  for (size_t i = 0; i < delegates->size(); ++i) {
    const auto *delegate = delegates->Get(static_cast<flatbuffers::uoffset_t>(i));
    // The only backend that is brought along, and whose data is known.
    if (delegate->id()->string_view() != "XnnpackBackend") {
      continue;
    }
    const uint32_t index = delegate->processed()->index();
    if (delegate->processed()->location() == fb::DataLocation::INLINE) {
      const auto *data = parsed_->backend_delegate_data()->Get(index)->data();
      check_xnnpack(parsed_, plan(method), i, data->data(), data->size(), what_);
      continue;
    }
    const auto *segment = parsed_->segments()->Get(index);
    const DataLoader::SegmentInfo kind(DataLoader::SegmentInfo::Type::Backend, index);
    auto data = loader_->load(segments_at_ + segment->offset(), segment->size(), kind);
    check(data.error(), "reading the data of a delegate of " + what_);
    check_xnnpack(parsed_, plan(method), i, static_cast<const uint8_t *>(data->data()), data->size(), what_);
  }
}

const fb::ExecutionPlan *etcffi_program::plan(size_t method) const {
  if (method >= plans_.size()) {
    fail(ETCFFI_BadArgument, "the program has no method number " + std::to_string(method));
  }
  return plans_[method];
}

size_t etcffi_program::find_method(const char *name) const {
  std::string names;
  for (size_t i = 0; i < plans_.size(); ++i) {
    const char *own = plans_[i]->name() == nullptr ? "" : plans_[i]->name()->c_str();
    if (std::strcmp(own, name) == 0) {
      return i;
    }
    names += (i == 0 ? "'" : ", '") + std::string(own) + "'";
  }
  fail(ETCFFI_UnknownMethod,
       what_ + " has no method '" + name + "'; it has " + (names.empty() ? "none" : names));
}

runtime::MethodMeta etcffi_program::meta(size_t method) const {
  const auto *name = plan(method)->name();
  auto meta = program_->method_meta(name == nullptr ? "" : name->c_str());
  check(meta.error(), "reading the metadata of " + what_);
  return meta.get();
}

etcffi_tensor_info etcffi_program::tensor_info(size_t method, int32_t side, size_t index) const {
  const runtime::MethodMeta meta = this->meta(method);
  auto result = side == ETCFFI_INPUT    ? meta.input_tensor_meta(index)
                : side == ETCFFI_OUTPUT ? meta.output_tensor_meta(index)
                                        : meta.attribute_tensor_meta(index);
  check(result.error(), "reading the metadata of a tensor");
  const runtime::TensorInfo &info = result.get();
  if (info.sizes().size() > ETCFFI_MAX_DIM || info.dim_order().size() != info.sizes().size()) {
    fail(ETCFFI_BadFile, what_ + " states a tensor of " + std::to_string(info.sizes().size()) +
                             " dimensions, and the runtime describes at most " +
                             std::to_string(ETCFFI_MAX_DIM));
  }
  etcffi_tensor_info out{};
  out.name = info.name().data();
  out.name_size = info.name().size();
  out.nbytes = info.nbytes();
  out.scalar_type = static_cast<int32_t>(info.scalar_type());
  out.ndim = static_cast<int32_t>(info.sizes().size());
  out.is_memory_planned = info.is_memory_planned() ? 1 : 0;
  std::copy(info.sizes().begin(), info.sizes().end(), out.sizes);
  std::copy(info.dim_order().begin(), info.dim_order().end(), out.dim_order);
  if (side != ETCFFI_ATTRIBUTE) {
    const fb::Tensor *tensor = tensor_of(plan(method), side, index);
    if (tensor != nullptr) {
      out.is_dynamic = is_dynamic(tensor) ? 1 : 0;
      out.device = to_c(device_of(tensor));
    }
  }
  return out;
}

etcffi_status etcffi_program_load_file(const char *path, int32_t verification, etcffi_program **out) {
  return guard([&] { *out = etcffi_program::load_file(path, verification).detach(); });
}

etcffi_status etcffi_program_load_buffer(const void *data, size_t nbytes, int32_t copy, int32_t verification,
                                         etcffi_program **out) {
  return guard([&] { *out = etcffi_program::load_buffer(data, nbytes, copy != 0, verification).detach(); });
}

void etcffi_program_release(etcffi_program *program) {
  if (program != nullptr) {
    program->release();
  }
}

size_t etcffi_program_num_methods(const etcffi_program *program) {
  return program->num_methods();
}

etcffi_status etcffi_program_method_name(const etcffi_program *program, size_t index, const char **out) {
  return guard([&] {
    const auto *name = program->plan(index)->name();
    *out = name == nullptr ? "" : name->c_str();
  });
}

etcffi_status etcffi_program_method_info(const etcffi_program *program, size_t method,
                                         etcffi_method_info *out) {
  return guard([&] {
    const runtime::MethodMeta meta = program->meta(method);
    etcffi_method_info info{};
    info.name = meta.name();
    info.num_inputs = meta.num_inputs();
    info.num_outputs = meta.num_outputs();
    info.num_attributes = meta.num_attributes();
    info.num_planned_buffers = meta.num_memory_planned_buffers();
    info.num_backends = meta.num_backends();
    info.num_instructions = num_instructions(program->plan(method));
    *out = info;
  });
}

etcffi_status etcffi_program_value_tag(const etcffi_program *program, size_t method, int32_t side,
                                       size_t index, int32_t *out) {
  return guard([&] {
    const runtime::MethodMeta meta = program->meta(method);
    auto tag = side == ETCFFI_INPUT ? meta.input_tag(index) : meta.output_tag(index);
    check(tag.error(), "reading the kind of a value");
    *out = static_cast<int32_t>(tag.get());
  });
}

etcffi_status etcffi_program_tensor_info(const etcffi_program *program, size_t method, int32_t side,
                                         size_t index, etcffi_tensor_info *out) {
  return guard([&] { *out = program->tensor_info(method, side, index); });
}

etcffi_status etcffi_program_planned_buffer(const etcffi_program *program, size_t method, size_t index,
                                            int64_t *nbytes, etcffi_device *device) {
  return guard([&] {
    const runtime::MethodMeta meta = program->meta(method);
    auto size = meta.memory_planned_buffer_size(index);
    check(size.error(), "reading the size of a planned buffer");
    auto place = meta.memory_planned_buffer_device(index);
    check(place.error(), "reading the device of a planned buffer");
    *nbytes = size.get();
    *device = to_c(place.get());
  });
}

etcffi_status etcffi_program_backend_name(const etcffi_program *program, size_t method, size_t index,
                                          const char **out) {
  return guard([&] {
    auto name = program->meta(method).get_backend_name(index);
    check(name.error(), "reading the name of a backend");
    *out = name.get();
  });
}

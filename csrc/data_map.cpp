#include "data_map.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/data_loader/mmap_data_loader.h>
#include <executorch/extension/flat_tensor/flat_tensor_data_map.h>
#include <executorch/extension/flat_tensor/serialize/flat_tensor_header.h>
#include <executorch/runtime/core/tensor_layout.h>

#include "dtype.h"
#include "schema/flat_tensor_generated.h"
#include "status.h"

namespace runtime = executorch::runtime;
namespace extension = executorch::extension;
namespace ft = flat_tensor_flatbuffer;

using namespace etcffi;
using extension::FlatTensorDataMap;
using extension::FlatTensorHeader;
using runtime::DataLoader;
using runtime::Error;
using runtime::FreeableBuffer;
using runtime::Result;
using runtime::TensorLayout;

namespace {

constexpr uintptr_t kAlignment = alignof(std::max_align_t);

const DataLoader::SegmentInfo kHead(DataLoader::SegmentInfo::Type::Program);

[[noreturn]] void damaged(const std::string &name, const std::string &why) {
  fail(ETCFFI_BadData, name + " is damaged: " + why);
}

FlatTensorHeader read_header(const DataLoader &loader, const std::string &name, uint64_t size) {
  constexpr size_t kBytes = FlatTensorHeader::kNumHeadBytes;
  if (size < kBytes) {
    fail(ETCFFI_BadData, name + " is no data file (.ptd): it has only " + std::to_string(size) + " bytes");
  }
  auto head = loader.load(0, kBytes, kHead);
  check(head.error(), "reading " + name);
  if (!ft::FlatTensorBufferHasIdentifier(head->data())) {
    fail(ETCFFI_BadData, name + " is no data file (.ptd): it lacks the identifier \"FT01\" at byte 4");
  }
  auto header = FlatTensorHeader::Parse(head->data(), kBytes);
  if (!header.ok()) {
    damaged(name, "its header cannot be read");
  }
  uint64_t flatbuffer = 0;
  uint64_t whole = 0;
  if (__builtin_add_overflow(header->flatbuffer_offset, header->flatbuffer_size, &flatbuffer) ||
      __builtin_add_overflow(header->segment_base_offset, header->segment_data_size, &whole) ||
      flatbuffer < kBytes) {
    damaged(name, "its header states sizes that cannot be");
  }
  if (std::max(flatbuffer, whole) > size) {
    fail(ETCFFI_BadData, name + " is truncated: it has " + std::to_string(size) + " bytes of " +
                             std::to_string(std::max(flatbuffer, whole)));
  }
  return header.get();
}

// Fails unless a tensor of this layout is whole within its `nbytes` bytes.
void check_layout(const ft::TensorLayout *layout, uint64_t nbytes, const std::string &name,
                  const std::string &key) {
  const auto *sizes = layout->sizes();
  const auto *dim_order = layout->dim_order();
  const size_t ndim = sizes == nullptr ? 0 : sizes->size();
  if (ndim > ETCFFI_MAX_DIM || ndim != (dim_order == nullptr ? 0 : dim_order->size())) {
    damaged(name,
            "the data '" + key + "' has a layout of " + std::to_string(ndim) + " dimensions that cannot be");
  }
  auto wanted = static_cast<uint64_t>(dtype_of(static_cast<int32_t>(layout->scalar_type())).itemsize);
  bool fits = true;
  for (flatbuffers::uoffset_t i = 0; i < ndim; ++i) {
    const int32_t size = sizes->Get(i);
    fits = fits && size >= 0 && dim_order->Get(i) < ndim &&
           !__builtin_mul_overflow(wanted, static_cast<uint64_t>(size), &wanted);
  }
  if (!fits || wanted > nbytes) {
    damaged(name, "the data '" + key + "' is shorter than its own shape");
  }
}

} // namespace

void etcffi_data_map::add_file(const char *path) {
  auto file = std::make_unique<File>();
  file->name = std::string("'") + path + "'";
  auto loader = extension::MmapDataLoader::from(path, extension::MmapDataLoader::MlockConfig::NoMlock);
  check(loader.error(), "opening " + file->name);
  file->loader = std::make_unique<extension::MmapDataLoader>(std::move(loader.get()));
  add(std::move(file));
}

void etcffi_data_map::add_buffer(const char *name, const void *data, size_t nbytes, bool copy) {
  auto file = std::make_unique<File>();
  file->name = name;
  if (copy || reinterpret_cast<uintptr_t>(data) % kAlignment != 0) {
    const auto *bytes = static_cast<const uint8_t *>(data);
    file->copied.assign(bytes, bytes + nbytes);
    data = file->copied.data();
  }
  file->loader = std::make_unique<extension::BufferDataLoader>(data, nbytes);
  add(std::move(file));
}

void etcffi_data_map::add(std::unique_ptr<File> file) {
  const std::string &name = file->name;
  auto size = file->loader->size();
  check(size.error(), "reading the size of " + name);
  const FlatTensorHeader header = read_header(*file->loader, name, size.get());
  const size_t extent = header.flatbuffer_offset + header.flatbuffer_size;
  auto bytes = file->loader->load(0, extent, kHead);
  check(bytes.error(), "reading " + name);
  file->flatbuffer = std::make_unique<FreeableBuffer>(std::move(bytes.get()));
  flatbuffers::Verifier::Options options;
  options.max_tables = UINT32_MAX;
  flatbuffers::Verifier verifier(static_cast<const uint8_t *>(file->flatbuffer->data()), extent, options);
  if (!ft::VerifyFlatTensorBuffer(verifier)) {
    damaged(name, "its flatbuffer does not verify");
  }
  const ft::FlatTensor *parsed = ft::GetFlatTensor(file->flatbuffer->data());
  if (parsed->version() > FlatTensorDataMap::kMaxSupportedSchemaVersion) {
    fail(ETCFFI_BadData, name + " has the version " + std::to_string(parsed->version()) +
                             " of its format, and this runtime reads " +
                             std::to_string(FlatTensorDataMap::kMaxSupportedSchemaVersion) +
                             "; export it again with a matching ExecuTorch");
  }
  if (parsed->named_data() == nullptr || parsed->segments() == nullptr) {
    damaged(name, "it names no data");
  }
  for (const auto *named : *parsed->named_data()) {
    const std::string key = named->key() == nullptr ? "" : named->key()->str();
    const auto *segment = named->segment_index() < parsed->segments()->size()
                              ? parsed->segments()->Get(named->segment_index())
                              : nullptr;
    uint64_t end = 0;
    if (key.empty() || segment == nullptr ||
        __builtin_add_overflow(segment->offset(), segment->size(), &end) || end > header.segment_data_size) {
      damaged(name, "the data '" + key + "' lies outside of it");
    }
    if (named->tensor_layout() != nullptr) {
      check_layout(named->tensor_layout(), segment->size(), name, key);
    }
    const Entry entry{file.get(), header.segment_base_offset + segment->offset(), segment->size(),
                      named->tensor_layout()};
    const auto added = entries_.emplace(named->key()->string_view(), entry);
    if (!added.second) {
      fail(ETCFFI_BadData, "the data '" + key + "' is in both " + added.first->second.file->name + " and " +
                               name + "; give each name once");
    }
    keys_.push_back(named->key()->c_str());
  }
  files_.push_back(std::move(file));
}

std::string etcffi_data_map::files() const {
  std::string text;
  for (const auto &file : files_) {
    text += (text.empty() ? "" : " and ") + file->name;
  }
  return text;
}

Result<const TensorLayout> etcffi_data_map::get_tensor_layout(std::string_view key) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    return Error::NotFound;
  }
  const ft::TensorLayout *layout = found->second.layout;
  if (layout == nullptr) {
    return Error::InvalidExternalData;
  }
  const size_t ndim = layout->sizes() == nullptr ? 0 : layout->sizes()->size();
  return TensorLayout::create(
      runtime::Span<const int32_t>(ndim == 0 ? nullptr : layout->sizes()->data(), ndim),
      runtime::Span<const uint8_t>(ndim == 0 ? nullptr : layout->dim_order()->data(), ndim),
      static_cast<ScalarType>(layout->scalar_type()));
}

Result<FreeableBuffer> etcffi_data_map::get_data(std::string_view key) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    return Error::NotFound;
  }
  const Entry &entry = found->second;
  return entry.file->loader->load(entry.offset, entry.nbytes,
                                  DataLoader::SegmentInfo(DataLoader::SegmentInfo::Type::Constant));
}

Error etcffi_data_map::load_data_into(std::string_view key, void *buffer, size_t size) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    return Error::NotFound;
  }
  const Entry &entry = found->second;
  if (size > entry.nbytes) {
    return Error::InvalidExternalData;
  }
  return entry.file->loader->load_into(
      entry.offset, size, DataLoader::SegmentInfo(DataLoader::SegmentInfo::Type::Mutable), buffer);
}

Result<const char *> etcffi_data_map::get_key(uint32_t index) const {
  if (index >= keys_.size()) {
    return Error::InvalidArgument;
  }
  return keys_[index];
}

etcffi_status etcffi_data_map_new(etcffi_data_map **out) {
  return guard([&] { *out = etcffi_data_map::create().detach(); });
}

etcffi_status etcffi_data_map_add_file(etcffi_data_map *map, const char *path) {
  return guard([&] { map->add_file(path); });
}

etcffi_status etcffi_data_map_add_buffer(etcffi_data_map *map, const char *name, const void *data,
                                         size_t nbytes, int32_t copy) {
  return guard([&] { map->add_buffer(name, data, nbytes, copy != 0); });
}

void etcffi_data_map_release(etcffi_data_map *map) {
  if (map != nullptr) {
    map->release();
  }
}

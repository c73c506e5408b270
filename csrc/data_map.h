// Data that a program keeps outside of its own file (.ptd files), by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <executorch/runtime/core/data_loader.h>
#include <executorch/runtime/core/freeable_buffer.h>
#include <executorch/runtime/core/named_data_map.h>

#include "et_cffi.h"
#include "ref.h"

namespace flat_tensor_flatbuffer {
struct TensorLayout;
} // namespace flat_tensor_flatbuffer

// The runtime's own FlatTensorDataMap reads one file, trusts it, and finds a name by trying them all. This
// one reads any number of files, and holds nothing that was not checked: a damaged file is refused when it is
// added and not met half way through a load.
//
// Who owns the bytes, until when: the loaders below, as long as the map lives, which is until the last
// program and method that use it are gone. A buffer's bytes are the caller's, who must keep them that long,
// except where they were copied.
struct etcffi_data_map final : etcffi::Counted, executorch::runtime::NamedDataMap {
  static etcffi::Ref<etcffi_data_map> create() {
    return etcffi::Ref<etcffi_data_map>::adopt(new etcffi_data_map());
  }

  // Only while nobody else uses the map. They fail with ETCFFI_BadData, naming the file and the key.
  void add_file(const char *path);
  void add_buffer(const char *name, const void *data, size_t nbytes, bool copy);

  bool has(std::string_view key) const { return entries_.count(key) > 0; }
  // "'a.ptd' and 'b.ptd'"
  std::string files() const;

  // The runtime's side of it; called by any number of threads at once.
  executorch::runtime::Result<const executorch::runtime::TensorLayout>
  get_tensor_layout(std::string_view key) const override;
  executorch::runtime::Result<executorch::runtime::FreeableBuffer>
  get_data(std::string_view key) const override;
  executorch::runtime::Error load_data_into(std::string_view key, void *buffer, size_t size) const override;
  executorch::runtime::Result<uint32_t> get_num_keys() const override {
    return static_cast<uint32_t>(keys_.size());
  }
  executorch::runtime::Result<const char *> get_key(uint32_t index) const override;

private:
  struct File {
    std::string name;
    std::vector<uint8_t> copied; // a buffer that could be written to, or stood at an odd address
    std::unique_ptr<executorch::runtime::DataLoader> loader;
    std::unique_ptr<executorch::runtime::FreeableBuffer> flatbuffer; // the names below point into it
  };
  struct Entry {
    const File *file;
    uint64_t offset; // from the start of the file
    uint64_t nbytes;
    const flat_tensor_flatbuffer::TensorLayout *layout; // NULL where the data is no tensor
  };

  etcffi_data_map() = default;
  ~etcffi_data_map() override = default;
  void add(std::unique_ptr<File> file);

  std::vector<std::unique_ptr<File>> files_;
  std::vector<const char *> keys_;
  std::unordered_map<std::string_view, Entry> entries_;
};

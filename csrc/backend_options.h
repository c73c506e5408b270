// Options of backends, on their way into a load.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <executorch/runtime/backend/backend_options_map.h>

#include "et_cffi.h"

namespace etcffi {

// Owns what the runtime's map points to. Who reads it: the backends, until the method is gone.
class BackendOptions {
public:
  // Fails with ETCFFI_BadArgument on an option for a backend that is none of `backends` (nobody would read
  // it), and on a text longer than the runtime has room for.
  BackendOptions(const etcffi_backend_option *options, size_t count, const std::vector<std::string> &backends,
                 const std::string &doing);

  // NULL where there are no options.
  const executorch::runtime::LoadBackendOptionsMap *map() const { return map_.size() == 0 ? nullptr : &map_; }

private:
  struct Entry {
    std::string backend;
    std::vector<executorch::runtime::BackendOption> options;
  };
  std::vector<Entry> entries_;
  executorch::runtime::LoadBackendOptionsMap map_;
};

} // namespace etcffi

#include "backend_options.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "status.h"

namespace runtime = executorch::runtime;

namespace etcffi {
namespace {

template <size_t Size> void copy_text(char (&target)[Size], const char *source, const std::string &what) {
  const size_t length = std::strlen(source);
  if (length >= Size) {
    fail(ETCFFI_BadArgument,
         what + " is longer than the " + std::to_string(Size - 1) + " bytes there are for it");
  }
  std::memcpy(target, source, length + 1);
}

runtime::BackendOption to_option(const etcffi_backend_option &given) {
  runtime::BackendOption option;
  const std::string what = std::string("the option '") + given.key + "' of " + given.backend;
  copy_text(option.key, given.key, "the name of " + what);
  switch (given.kind) {
  case ETCFFI_OPTION_BOOL:
    option.value = given.as_int != 0;
    break;
  case ETCFFI_OPTION_INT:
    option.value = static_cast<int>(given.as_int);
    break;
  case ETCFFI_OPTION_STRING: {
    char text[runtime::kMaxOptionValueLength] = {};
    copy_text(text, given.as_string, "the value of " + what);
    std::array<char, runtime::kMaxOptionValueLength> value{};
    std::memcpy(value.data(), text, value.size());
    option.value = value;
    break;
  }
  default:
    fail(ETCFFI_BadArgument, what + " is neither a bool, an int nor a string");
  }
  return option;
}

} // namespace

BackendOptions::BackendOptions(const etcffi_backend_option *options, size_t count,
                               const std::vector<std::string> &backends, const std::string &doing) {
  for (size_t i = 0; i < count; ++i) {
    const std::string backend = options[i].backend;
    if (std::find(backends.begin(), backends.end(), backend) == backends.end()) {
      fail(ETCFFI_BadArgument, doing + " failed: there are options for the backend " + backend +
                                   ", to which the method does not delegate");
    }
    auto entry = std::find_if(entries_.begin(), entries_.end(),
                              [&](const Entry &known) { return known.backend == backend; });
    if (entry == entries_.end()) {
      entries_.push_back({backend, {}});
      entry = std::prev(entries_.end());
    }
    entry->options.push_back(to_option(options[i]));
  }
  for (Entry &entry : entries_) {
    const runtime::Span<runtime::BackendOption> span(entry.options.data(), entry.options.size());
    check(map_.set_options(entry.backend.c_str(), span), doing + ": setting the options of " + entry.backend);
  }
}

} // namespace etcffi

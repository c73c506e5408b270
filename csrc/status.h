// How a failure leaves this library: as a status, a message and the runtime's log lines.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include <executorch/runtime/core/error.h>

#include "et_cffi.h"

namespace etcffi {

// Thrown inside the library; the message is what the caller reads.
class Failure final : public std::exception {
public:
  Failure(etcffi_status status, std::string message) : status_(status), message_(std::move(message)) {}
  etcffi_status status() const noexcept { return status_; }
  const char *what() const noexcept override { return message_.c_str(); }

private:
  etcffi_status status_;
  std::string message_;
};

// Thrown by the abort hook, in the place of ending the process, where a call of this library is under way.
class RuntimeAbort final {};

[[noreturn]] void fail(etcffi_status status, std::string message);

// Turns an error of the runtime into a Failure: what was being done, the error's name and number, and the
// error lines that the runtime logged in this call.
void check(executorch::runtime::Error error, const std::string &doing);

// The error lines captured on this thread so far in this call, joined by "; ".
std::string logged_errors();

// In a copy of the process that is to end: from now on a failed check writes the error lines to `descriptor`
// and ends it, with no exception and no exit handler.
void exit_on_abort(int descriptor) noexcept;

namespace internal {
class CallScope {
public:
  CallScope() noexcept;
  ~CallScope();
  CallScope(const CallScope &) = delete;
  CallScope &operator=(const CallScope &) = delete;
};
etcffi_status current_exception_status() noexcept;
} // namespace internal

// The one place where C++ ends and C begins: runs body, and turns whatever it throws into a status.
template <typename Body> etcffi_status guard(Body &&body) noexcept {
  try {
    internal::CallScope scope;
    try {
      body();
      return 0;
    } catch (...) {
      return internal::current_exception_status();
    }
  } catch (...) {
    return ETCFFI_OutOfMemory;
  }
}

} // namespace etcffi

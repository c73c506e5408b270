#include "status.h"

#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <utility>

#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

namespace runtime = executorch::runtime;

namespace etcffi {
namespace {

// What one thread knows of its current call, and of its last.
struct CallState {
  int depth = 0;
  std::string log;    // of the current call, line by line, each ending in a newline
  std::string errors; // the error lines' messages among them, joined by "; "
  std::string last_message;
  std::string last_log;
};

CallState &call_state() {
  thread_local CallState state;
  return state;
}

// Captured lines of all threads, on their way to whoever takes them. Bounded: a program that logs a line
// per element must not fill the memory of a process that never reads them.
constexpr size_t kMostPendingLines = 1000;
std::mutex pending_mutex;
std::deque<std::string> pending;
std::atomic<uint64_t> captured{0};
std::atomic<int> calls_under_way{0};

pal_emit_log_message_method previous_emit = nullptr;
pal_abort_method previous_abort = nullptr;

const char *base_name(const char *path) {
  const char *slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

void emit_log(et_timestamp_t timestamp, et_pal_log_level_t level, const char *filename, const char *function,
              size_t line, const char *message, size_t length) {
  // Lines of a runtime that somebody else drives, in a process that shares it, are theirs.
  if (calls_under_way.load(std::memory_order_relaxed) == 0) {
    previous_emit(timestamp, level, filename, function, line, message, length);
    return;
  }
  try {
    std::string text;
    text += static_cast<char>(level);
    text += ' ';
    text += base_name(filename);
    text += ':';
    text += std::to_string(line);
    text += ' ';
    text.append(message, length);
    CallState &state = call_state();
    // A kernel's helper threads have no call of their own; their lines are pending only.
    if (state.depth > 0) {
      state.log += text;
      state.log += '\n';
      if (level == kError || level == kFatal) {
        if (!state.errors.empty()) {
          state.errors += "; ";
        }
        state.errors.append(message, length);
      }
    }
    std::lock_guard<std::mutex> lock(pending_mutex);
    if (pending.size() == kMostPendingLines) {
      pending.pop_front();
    }
    pending.push_back(std::move(text));
    captured.fetch_add(1, std::memory_order_release);
  } catch (...) {
    // Out of memory while reporting something else: that something matters more.
  }
}

int abort_descriptor = -1;

void on_abort() {
  if (abort_descriptor >= 0) {
    const std::string &errors = call_state().errors;
    const ssize_t written = write(abort_descriptor, errors.data(), errors.size());
    _exit(written < 0 ? 2 : 1);
  }
  if (call_state().depth > 0) {
    throw RuntimeAbort();
  }
  previous_abort();
  std::abort();
}

// Puts the two hooks in place, and keeps whose they were. Not with register_pal(): it takes a second
// registration for a mistake and logs it, and one that comes after ours (the official binding's, in a process
// that imports it later) would silently take our hooks away. So each call looks whether they are there.
void install_hooks() noexcept {
  auto *pal = const_cast<runtime::PalImpl *>(runtime::get_pal_impl());
  if (pal->emit_log_message == emit_log && pal->abort == on_abort) {
    return;
  }
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (pal->emit_log_message != emit_log) {
    previous_emit = std::exchange(pal->emit_log_message, emit_log);
  }
  if (pal->abort != on_abort) {
    previous_abort = std::exchange(pal->abort, on_abort);
  }
}

} // namespace

void fail(etcffi_status status, std::string message) {
  throw Failure(status, std::move(message));
}

void exit_on_abort(int descriptor) noexcept {
  abort_descriptor = descriptor;
}

std::string logged_errors() {
  return call_state().errors;
}

void check(runtime::Error error, const std::string &doing) {
  if (error == runtime::Error::Ok) {
    return;
  }
  char code[16];
  std::snprintf(code, sizeof(code), "0x%" PRIx32, static_cast<uint32_t>(error));
  const auto status = static_cast<etcffi_status>(error);
  std::string message = doing + " failed with " + etcffi_status_name(status) + " (" + code + ")";
  if (!call_state().errors.empty()) {
    message += ": " + call_state().errors;
  }
  fail(status, std::move(message));
}

namespace internal {

CallScope::CallScope() noexcept {
  CallState &state = call_state();
  if (state.depth++ == 0) {
    install_hooks();
    state.log.clear();
    state.errors.clear();
    calls_under_way.fetch_add(1, std::memory_order_relaxed);
  }
}

CallScope::~CallScope() {
  if (--call_state().depth == 0) {
    calls_under_way.fetch_sub(1, std::memory_order_relaxed);
  }
}

etcffi_status current_exception_status() noexcept {
  CallState &state = call_state();
  try {
    state.last_log = state.log;
    try {
      throw;
    } catch (const Failure &failure) {
      state.last_message = failure.what();
      return failure.status();
    } catch (const RuntimeAbort &) {
      state.last_message = "a check inside the ExecuTorch runtime failed: " + state.errors;
      return ETCFFI_Aborted;
    } catch (const std::bad_alloc &) {
      state.last_message = "out of memory";
      return ETCFFI_OutOfMemory;
    } catch (const std::exception &error) {
      state.last_message = std::string("a C++ exception: ") + error.what();
      return ETCFFI_Exception;
    } catch (...) {
      state.last_message = "a C++ exception that is no std::exception";
      return ETCFFI_Exception;
    }
  } catch (...) {
    return ETCFFI_OutOfMemory;
  }
}

} // namespace internal
} // namespace etcffi

using namespace etcffi;

const char *etcffi_last_message(void) {
  return call_state().last_message.c_str();
}

const char *etcffi_last_log(void) {
  return call_state().last_log.c_str();
}

const uint64_t *etcffi_log_counter(void) {
  static_assert(sizeof(captured) == sizeof(uint64_t) && std::atomic<uint64_t>::is_always_lock_free);
  return reinterpret_cast<const uint64_t *>(&captured);
}

size_t etcffi_take_log(char *buffer, size_t size) {
  std::lock_guard<std::mutex> lock(pending_mutex);
  size_t used = 0;
  while (!pending.empty()) {
    const std::string &line = pending.front();
    if (used + line.size() + 2 > size) {
      if (used > 0 || size < 2) {
        break;
      }
      // A single line longer than the whole buffer is cut, or it would stay for ever.
      std::memcpy(buffer, line.data(), size - 2);
      buffer[size - 2] = '\n';
      used = size - 1;
    } else {
      std::memcpy(buffer + used, line.data(), line.size());
      used += line.size();
      buffer[used++] = '\n';
    }
    pending.pop_front();
  }
  if (size > 0) {
    buffer[used] = '\0';
  }
  return used;
}

const char *etcffi_status_name(etcffi_status status) {
  switch (status) {
  case ETCFFI_Aborted:
    return "Aborted";
  case ETCFFI_Exception:
    return "Exception";
  case ETCFFI_OutOfMemory:
    return "OutOfMemory";
  case ETCFFI_BadArgument:
    return "BadArgument";
  case ETCFFI_BadFile:
    return "BadFile";
  case ETCFFI_UnknownMethod:
    return "UnknownMethod";
  case ETCFFI_MissingOperator:
    return "MissingOperator";
  case ETCFFI_MissingBackend:
    return "MissingBackend";
  case ETCFFI_BadCount:
    return "BadCount";
  case ETCFFI_BadKind:
    return "BadKind";
  case ETCFFI_BadDtype:
    return "BadDtype";
  case ETCFFI_BadShape:
    return "BadShape";
  case ETCFFI_BadLayout:
    return "BadLayout";
  case ETCFFI_BadDevice:
    return "BadDevice";
  case ETCFFI_NoMemory:
    return "NoMemory";
  case ETCFFI_InputsIncomplete:
    return "InputsIncomplete";
  case ETCFFI_NotExecuted:
    return "NotExecuted";
  case ETCFFI_Busy:
    return "Busy";
  case ETCFFI_MethodBroken:
    return "MethodBroken";
  case ETCFFI_BadData:
    return "BadData";
  case ETCFFI_MissingData:
    return "MissingData";
  case ETCFFI_BadLibrary:
    return "BadLibrary";
  case ETCFFI_AlreadyRegistered:
    return "AlreadyRegistered";
  default: {
    // The runtime's own names read "Error::InvalidArgument".
    const char *name = runtime::to_string(static_cast<runtime::Error>(status));
    const char *colon = std::strrchr(name, ':');
    return colon == nullptr ? name : colon + 1;
  }
  }
}

etcffi_status etcffi_initialize(void) {
  return guard([] {
    static std::once_flag once;
    std::call_once(once, [] { runtime::runtime_init(); });
  });
}

// Shared libraries of kernels and backends, which register themselves as they are loaded.
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "status.h"

using namespace etcffi;

namespace {

constexpr int kPatience = 60 * 1000; // milliseconds that a library's initialisers may take

[[noreturn]] void cannot_try(const std::string &name) {
  fail(ETCFFI_BadLibrary, "loading the library " + name + " failed: it could not be tried out (errno " +
                              std::to_string(errno) + ")");
}

// Registering a kernel or a backend twice ends the process, from an initialiser inside dlopen, where no
// exception gets out. So the library is first loaded in a copy of this process, which may end. The copy has
// this thread only, touches nothing of Python's and leaves without running any exit handler.
void try_out(const char *path, const std::string &name) {
  int ends[2];
  if (pipe(ends) != 0) {
    cannot_try(name);
  }
  const pid_t child = fork();
  if (child < 0) {
    close(ends[0]);
    close(ends[1]);
    cannot_try(name);
  }
  if (child == 0) {
    close(ends[0]);
    exit_on_abort(ends[1]);
    // Whoever handles such signals (Python's faulthandler) would report an end that is none of the process's.
    for (const int number : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV}) {
      signal(number, SIG_DFL);
    }
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    dlopen(path, RTLD_NOW | RTLD_LOCAL);
    _exit(0); // a library that cannot be loaded at all is told about by the parent's own dlopen
  }
  close(ends[1]);
  std::string said;
  char buffer[512];
  struct pollfd waiting = {ends[0], POLLIN, 0};
  bool hangs = false;
  for (;;) {
    const int ready = poll(&waiting, 1, kPatience);
    if (ready < 0 && errno == EINTR) {
      continue;
    }
    const ssize_t count = ready > 0 ? read(ends[0], buffer, sizeof(buffer)) : 0;
    if (count <= 0) {
      hangs = ready == 0;
      break;
    }
    said.append(buffer, static_cast<size_t>(count));
  }
  close(ends[0]);
  if (hangs) {
    kill(child, SIGKILL);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      return; // whoever ignores SIGCHLD has taken the answer
    }
  }
  if (hangs) {
    fail(ETCFFI_BadLibrary, "loading the library " + name + " failed: its initialisers do not end");
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    return;
  }
  if (WIFEXITED(status)) {
    fail(ETCFFI_AlreadyRegistered, "the library " + name +
                                       " is refused, since loading it would end the process: " + said +
                                       "; what it brings is registered already");
  }
  fail(ETCFFI_BadLibrary, "loading the library " + name +
                              " failed: its initialisers end the process (signal " +
                              std::to_string(WTERMSIG(status)) + ")");
}

} // namespace

etcffi_status etcffi_load_library(const char *path) {
  return guard([&] {
    const std::string name = std::string("'") + path + "'";
    if (void *loaded = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) {
      dlclose(loaded);
      fail(ETCFFI_AlreadyRegistered, "the library " + name + " is loaded already");
    }
    try_out(path, name);
    if (dlopen(path, RTLD_NOW | RTLD_LOCAL) == nullptr) {
      const char *reason = dlerror();
      fail(ETCFFI_BadLibrary,
           "loading the library " + name + " failed: " + (reason == nullptr ? "" : reason));
    }
  });
}

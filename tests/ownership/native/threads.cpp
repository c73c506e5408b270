// The C API under many threads, without Python: what ThreadSanitizer and LeakSanitizer are run on.
//
//   threads MODEL LIBRARY...
//
// MODEL takes two float32 tensors of shape (2, 2), not planned, and adds them. Prints "ok" and ends with 0, or
// says what was wrong.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "et_cffi.h"

namespace {

constexpr int kThreads = 6;
constexpr int kTimes = 200;

void require(bool good, const char *what) {
  if (!good) {
    std::fprintf(stderr, "%s: %s\n", what, etcffi_last_message());
    std::exit(1);
  }
}

void describe(etcffi_value &value, float *data) {
  value = etcffi_value{};
  value.tag = ETCFFI_Tag_Tensor;
  value.memory.data = data;
  value.memory.nbytes = 4 * sizeof(float);
  value.memory.scalar_type = ETCFFI_ScalarType_Float;
  value.memory.ndim = 2;
  value.memory.sizes[0] = value.memory.sizes[1] = 2;
  value.memory.flags = ETCFFI_PINNED;
}

template <typename Work> void in_threads(Work work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back(work, i);
  }
  for (auto &thread : threads) {
    thread.join();
  }
}

etcffi_program *load_program(const char *path) {
  etcffi_program *program = nullptr;
  require(etcffi_program_load_file(path, ETCFFI_Verification_InternalConsistency, &program) == 0, "load");
  return program;
}

etcffi_method *load_method(etcffi_program *program) {
  etcffi_method *method = nullptr;
  require(etcffi_method_load(program, "forward", &method) == 0, "load_method");
  return method;
}

// The status of one run of `a + b`, whose result is checked and handed over.
etcffi_status add(etcffi_method *method, float a, float b, etcffi_tensor **result) {
  float x[4] = {a, a, a, a}, y[4] = {b, b, b, b};
  etcffi_value inputs[2], output{};
  describe(inputs[0], x);
  describe(inputs[1], y);
  const etcffi_status status = etcffi_method_run(method, inputs, 2, 1, &output, 1);
  if (status == 0) {
    require(static_cast<float *>(etcffi_tensor_memory(output.tensor)->data)[3] == a + b, "a wrong number");
    *result = output.tensor;
  }
  return status;
}

} // namespace

int main(int argc, char **argv) {
  require(argc > 2, "usage: threads MODEL LIBRARY...");
  const char *path = argv[1];
  require(etcffi_initialize() == 0, "initialize");
  for (int i = 2; i < argc; ++i) {
    require(etcffi_load_library(argv[i]) == 0, "load_library");
  }
  etcffi_program *program = load_program(path);

  // One program, a method for each thread; a result that outlives its method.
  in_threads([&](int thread) {
    etcffi_method *method = load_method(program);
    etcffi_tensor *result = nullptr;
    for (int i = 0; i < kTimes; ++i) {
      etcffi_tensor_release(result);
      require(add(method, static_cast<float>(thread), static_cast<float>(i), &result) == 0, "run");
    }
    etcffi_method_release(method);
    require(static_cast<float *>(etcffi_tensor_memory(result)->data)[0] == thread + kTimes - 1, "result");
    etcffi_tensor_release(result);
  });

  // One method for all threads: each use works or is refused.
  etcffi_method *shared = load_method(program);
  std::atomic<int> worked{0}, refused{0};
  in_threads([&](int thread) {
    for (int i = 0; i < kTimes; ++i) {
      etcffi_tensor *result = nullptr;
      const etcffi_status status = add(shared, static_cast<float>(thread), static_cast<float>(i), &result);
      require(status == 0 || status == ETCFFI_Busy, "a shared method");
      ++(status == 0 ? worked : refused);
      etcffi_tensor_release(result);
    }
  });
  require(worked > 0 && worked + refused == kThreads * kTimes, "a shared method");

  // One result for all threads, each with capsules of its own; the last to let go frees it.
  etcffi_tensor *result = nullptr;
  require(add(shared, 3, 4, &result) == 0, "run");
  for (int i = 0; i < kThreads; ++i) {
    etcffi_tensor_retain(result);
  }
  etcffi_tensor_release(result);
  in_threads([&](int) {
    for (int i = 0; i < kTimes; ++i) {
      DLManagedTensor *legacy = nullptr;
      DLManagedTensorVersioned *versioned = nullptr;
      require(etcffi_tensor_to_dlpack(result, &legacy) == 0, "dlpack");
      require(etcffi_tensor_to_dlpack_versioned(result, 0, &versioned) == 0, "dlpack");
      require(static_cast<float *>(versioned->dl_tensor.data)[0] == 7, "dlpack");
      legacy->deleter(legacy);
      etcffi_dlpack_release_versioned(versioned);
    }
    etcffi_tensor_release(result);
  });
  etcffi_method_release(shared);

  // Programs come and go; refusals, their words and their log lines; what backends have answered.
  in_threads([&](int thread) {
    char lines[1024];
    for (int i = 0; i < kTimes / 10; ++i) {
      etcffi_program *own = load_program(path);
      etcffi_method *method = load_method(own);
      etcffi_program_release(own);
      etcffi_tensor *sum = nullptr;
      require(add(method, 1, 2, &sum) == 0, "run");
      etcffi_method_release(method);
      etcffi_tensor_release(sum);
      method = nullptr;
      require(etcffi_method_load(program, "backward", &method) == ETCFFI_UnknownMethod, "backward");
      require(std::strstr(etcffi_last_message(), "'backward'") != nullptr, "words");
      etcffi_take_log(lines, sizeof(lines));
      require(etcffi_set_backend_needs(thread % 2 == 0 ? "Even" : "Odd", 1, 1) == 0, "needs");
    }
  });
  etcffi_program_release(program);
  std::puts("ok");
  return 0;
}

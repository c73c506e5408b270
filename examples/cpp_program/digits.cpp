// Reads a handwritten digit: et_cffi from a C++17 program, without Python. Handles are owned, and a status
// that is not 0 is an exception.
//
//   digits MODEL IMAGE
//
// IMAGE is the 8x8 pixels as raw float32. Prints the scores, one a line, and the digit. Built by build.sh.
#include <et_cffi.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Release {
  void operator()(etcffi_program *program) const { etcffi_program_release(program); }
  void operator()(etcffi_method *method) const { etcffi_method_release(method); }
  void operator()(etcffi_tensor *tensor) const { etcffi_tensor_release(tensor); }
};
template <typename Handle> using Owned = std::unique_ptr<Handle, Release>;

void check(etcffi_status status) {
  if (status != 0) {
    throw std::runtime_error(etcffi_last_message());
  }
}

// Memory that a method returned, as floats; it lives as long as this, whatever becomes of the method.
class Floats {
public:
  explicit Floats(etcffi_tensor *tensor) : tensor_(tensor), memory_(etcffi_tensor_memory(tensor)) {
    if (memory_->scalar_type != ETCFFI_ScalarType_Float) {
      throw std::runtime_error("the output is not float32");
    }
  }
  const float *begin() const { return static_cast<const float *>(memory_->data); }
  const float *end() const { return begin() + memory_->nbytes / sizeof(float); }

private:
  Owned<etcffi_tensor> tensor_;
  const etcffi_memory *memory_;
};

// A method with one input and one output, both float32. One thread at a time may use it.
class Model {
public:
  explicit Model(const std::string &path) {
    etcffi_program *program = nullptr;
    check(etcffi_program_load_file(path.c_str(), ETCFFI_Verification_InternalConsistency, &program));
    const Owned<etcffi_program> owned(program); // the method holds it too
    check(etcffi_program_tensor_info(program, 0, ETCFFI_INPUT, 0, &info_));
    etcffi_method *method = nullptr;
    check(etcffi_method_load(program, "forward", &method));
    method_.reset(method);
  }

  // Reads the values during the call only. A wrong number or dtype of them is an exception.
  Floats run(const std::vector<float> &values) {
    etcffi_value input{}, output{};
    input.tag = ETCFFI_Tag_Tensor;
    input.memory.data = const_cast<float *>(values.data()); // it is not ETCFFI_PINNED, hence not written
    input.memory.nbytes = values.size() * sizeof(float);
    input.memory.scalar_type = ETCFFI_ScalarType_Float;
    input.memory.ndim = info_.ndim;
    std::copy_n(info_.sizes, info_.ndim, input.memory.sizes);
    check(etcffi_method_run(method_.get(), &input, 1, 1, &output, 1));
    return Floats(output.tensor);
  }

private:
  etcffi_tensor_info info_{};
  Owned<etcffi_method> method_;
};

std::vector<float> read_image(const char *path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error(std::string("cannot open ") + path);
  }
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<float> values(bytes.size() / sizeof(float));
  std::copy_n(bytes.data(), values.size() * sizeof(float), reinterpret_cast<char *>(values.data()));
  return values;
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s MODEL IMAGE\n", argv[0]);
    return 2;
  }
  try {
    check(etcffi_initialize());
    const Floats scores = Model(argv[1]).run(read_image(argv[2]));
    for (const float score : scores) {
      std::printf("%.9g\n", static_cast<double>(score));
    }
    std::printf("digit %td\n", std::max_element(scores.begin(), scores.end()) - scores.begin());
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

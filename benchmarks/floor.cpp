// The floor: a loop of set_input, execute and get_output over the same libraries, with nothing around it.
//
//   floor MODEL
//
// Each line of its input says how many calls to make, and each line of its output how many seconds one took;
// the line "copied" asks for what copies.c has counted. Inputs are float32 tensors, and hold 1, 2, 3, .... A
// planned output is copied out, as a caller needs it who runs the method again.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include <executorch/extension/module/module.h>

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using executorch::extension::Module;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Method;
using executorch::runtime::Tag;

// Of copies.c, where that is in LD_PRELOAD.
extern "C" uint64_t copied_bytes(void) __attribute__((weak));

namespace {

void check(Error error, const char *doing) {
  if (error != Error::Ok) {
    std::fprintf(stderr, "%s failed: %d\n", doing, static_cast<int>(error));
    std::exit(1);
  }
}

struct Input {
  size_t index;
  std::vector<TensorImpl::SizesType> sizes;
  std::vector<TensorImpl::DimOrderType> dim_order;
  std::vector<TensorImpl::StridesType> strides;
  std::vector<float> values;
  std::unique_ptr<TensorImpl> impl;
};

struct Output {
  size_t index;
  bool planned;
  std::vector<char> memory;
};

} // namespace

int main(int argc, char **argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: floor MODEL\n");
    return 2;
  }
  Module module(argv[1], Module::LoadMode::Mmap);
  check(module.load_method("forward"), "loading");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  Method *method = *module.method("forward");
#pragma GCC diagnostic pop
  const auto meta = method->method_meta();

  std::vector<std::unique_ptr<Input>> inputs;
  for (size_t i = 0; i < meta.num_inputs(); ++i) {
    if (*meta.input_tag(i) != Tag::Tensor || meta.input_tensor_meta(i)->scalar_type() != ScalarType::Float) {
      std::fprintf(stderr, "input %zu is no float32 tensor\n", i);
      return 1;
    }
    const auto info = *meta.input_tensor_meta(i);
    auto input = std::make_unique<Input>();
    input->index = i;
    input->sizes.assign(info.sizes().begin(), info.sizes().end());
    input->dim_order.assign(info.dim_order().begin(), info.dim_order().end());
    input->strides.resize(input->sizes.size());
    TensorImpl::StridesType stride = 1;
    for (size_t j = input->sizes.size(); j-- > 0;) { // outermost dimension first
      input->strides[input->dim_order[j]] = stride;
      stride *= input->sizes[input->dim_order[j]];
    }
    input->values.resize(info.nbytes() / sizeof(float));
    for (size_t j = 0; j < input->values.size(); ++j) {
      input->values[j] = static_cast<float>(j + 1);
    }
    input->impl = std::make_unique<TensorImpl>(ScalarType::Float, static_cast<ssize_t>(input->sizes.size()),
                                               input->sizes.data(), input->values.data(),
                                               input->dim_order.data(), input->strides.data());
    inputs.push_back(std::move(input));
  }
  std::vector<Output> outputs;
  for (size_t i = 0; i < meta.num_outputs(); ++i) {
    if (*meta.output_tag(i) == Tag::Tensor) {
      const auto info = *meta.output_tensor_meta(i);
      outputs.push_back({i, info.is_memory_planned(), std::vector<char>(info.nbytes())});
      if (!info.is_memory_planned()) {
        auto &memory = outputs.back().memory;
        check(method->set_output_data_ptr(memory.data(), memory.size(), i), "giving an output memory");
      }
    }
  }

  char line[32];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    if (std::strcmp(line, "copied\n") == 0) {
      std::printf("%llu\n", copied_bytes == nullptr ? 0 : static_cast<unsigned long long>(copied_bytes()));
      std::fflush(stdout);
      continue;
    }
    const long calls = std::atol(line);
    const auto start = std::chrono::steady_clock::now();
    for (long call = 0; call < calls; ++call) {
      for (const auto &input : inputs) {
        check(method->set_input(EValue(Tensor(input->impl.get())), input->index), "set_input");
      }
      check(method->execute(), "execute");
      for (auto &output : outputs) {
        const Tensor &result = method->get_output(output.index).toTensor();
        if (output.planned) {
          std::memcpy(output.memory.data(), result.const_data_ptr(), result.nbytes());
        }
      }
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%.12g\n", took.count() / static_cast<double>(calls));
    std::fflush(stdout);
  }
  return 0;
}

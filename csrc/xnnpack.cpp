#include "xnnpack.h"

#include <cstring>
#include <map>
#include <string_view>
#include <vector>

#include <flatbuffers/flatbuffers.h>

#include "dtype.h"
#include "schema/program_generated.h"
#include "status.h"

namespace etcffi {
namespace {

using flatbuffers::Offset;
using flatbuffers::String;
using flatbuffers::Vector;
using flatbuffers::Verifier;

// The tables of ExecuTorch's backends/xnnpack/serialization/schema.fbs, with the fields that are read here. A
// field's place in the vtable never changes: 4 for the first, and 2 more for each that follows.

class Constant : private flatbuffers::Table {
public:
  uint64_t size() const { return GetField<uint64_t>(6, 0); }
  const String *key() const { return GetPointer<const String *>(8); }
  bool Verify(Verifier &verifier) const {
    return VerifyTableStart(verifier) && VerifyField<uint64_t>(verifier, 6, 8) && VerifyOffset(verifier, 8) &&
           verifier.VerifyString(key()) && verifier.EndTable();
  }
};

class Tensor : private flatbuffers::Table {
public:
  int16_t datatype() const { return GetField<int16_t>(4, 0); }
  const Vector<uint32_t> *dims() const { return GetPointer<const Vector<uint32_t> *>(8); }
  uint32_t constant() const { return GetField<uint32_t>(10, 0); }
  uint32_t external_id() const { return GetField<uint32_t>(12, 0); }
  uint32_t flags() const { return GetField<uint32_t>(14, 0); }
  bool Verify(Verifier &verifier) const {
    return VerifyTableStart(verifier) && VerifyField<int16_t>(verifier, 4, 2) && VerifyOffset(verifier, 8) &&
           verifier.VerifyVector(dims()) && VerifyField<uint32_t>(verifier, 10, 4) &&
           VerifyField<uint32_t>(verifier, 12, 4) && VerifyField<uint32_t>(verifier, 14, 4) &&
           verifier.EndTable();
  }
};

class PerChannel : private flatbuffers::Table {
public:
  const Vector<float> *scale() const { return GetPointer<const Vector<float> *>(4); }
  int32_t channel_dim() const { return GetField<int32_t>(6, 0); }
  uint32_t scale_constant() const { return GetField<uint32_t>(8, 0); }
  bool Verify(Verifier &verifier) const {
    return VerifyTableStart(verifier) && VerifyOffset(verifier, 4) && verifier.VerifyVector(scale()) &&
           VerifyField<int32_t>(verifier, 6, 4) && VerifyField<uint32_t>(verifier, 8, 4) &&
           verifier.EndTable();
  }
};

class QuantizedTensor : private flatbuffers::Table {
public:
  static constexpr uint8_t kPerChannel = 1;

  const Tensor *tensor() const { return GetPointer<const Tensor *>(4); }
  uint8_t params_type() const { return GetField<uint8_t>(6, 0); }
  const void *params() const { return GetPointer<const void *>(8); }
  const PerChannel *per_channel() const {
    return params_type() == kPerChannel ? GetPointer<const PerChannel *>(8) : nullptr;
  }
  bool Verify(Verifier &verifier) const {
    return VerifyTableStart(verifier) && VerifyOffset(verifier, 4) && verifier.VerifyTable(tensor()) &&
           VerifyField<uint8_t>(verifier, 6, 1) && VerifyOffset(verifier, 8) &&
           (per_channel() == nullptr || verifier.VerifyTable(per_channel())) && verifier.EndTable();
  }
};

class Value : private flatbuffers::Table {
public:
  static constexpr uint8_t kTensor = 1;
  static constexpr uint8_t kQuantizedTensor = 2;

  uint8_t type() const { return GetField<uint8_t>(4, 0); }
  const Tensor *plain() const { return type() == kTensor ? GetPointer<const Tensor *>(6) : nullptr; }
  const QuantizedTensor *quantized() const {
    return type() == kQuantizedTensor ? GetPointer<const QuantizedTensor *>(6) : nullptr;
  }
  bool Verify(Verifier &verifier) const {
    return VerifyTableStart(verifier) && VerifyField<uint8_t>(verifier, 4, 1) && VerifyOffset(verifier, 6) &&
           (plain() == nullptr || verifier.VerifyTable(plain())) &&
           (quantized() == nullptr || verifier.VerifyTable(quantized())) && verifier.EndTable();
  }
};

class Node : private flatbuffers::Table {
public:
  bool is_there() const { return GetPointer<const void *>(6) != nullptr; }
  bool Verify(Verifier &verifier) const {
    return VerifyTableStart(verifier) && VerifyOffset(verifier, 6) && verifier.EndTable();
  }
};

class Graph : private flatbuffers::Table {
public:
  const Vector<Offset<Node>> *nodes() const { return GetPointer<const Vector<Offset<Node>> *>(6); }
  const Vector<Offset<Value>> *values() const { return GetPointer<const Vector<Offset<Value>> *>(8); }
  const Vector<Offset<Constant>> *constants() const {
    return GetPointer<const Vector<Offset<Constant>> *>(20);
  }
  bool Verify(Verifier &verifier) const {
    return VerifyTableStart(verifier) && VerifyOffset(verifier, 6) && verifier.VerifyVector(nodes()) &&
           verifier.VerifyVectorOfTables(nodes()) && VerifyOffset(verifier, 8) &&
           verifier.VerifyVector(values()) && verifier.VerifyVectorOfTables(values()) &&
           VerifyOffset(verifier, 20) && verifier.VerifyVector(constants()) &&
           verifier.VerifyVectorOfTables(constants()) && verifier.EndTable();
  }
};

constexpr uint32_t kExternalInput = 1;
constexpr uint32_t kExternalOutput = 2;

// Bits of one element, by XNNPACK's number for the type; 0 where there is none.
uint64_t bits_of(int16_t datatype) {
  constexpr uint8_t bits[] = {0, 32, 16, 8, 8, 32, 8, 32, 4, 8, 4, 8, 32, 32, 16};
  return datatype < 0 || static_cast<size_t>(datatype) >= sizeof(bits) ? 0
                                                                       : bits[static_cast<size_t>(datatype)];
}

// A tensor that is passed to the delegate when it runs.
struct External {
  uint32_t argument;
  uint64_t bits;
  bool is_output;
};

class Checker {
public:
  Checker(const fb::Program *program, const fb::ExecutionPlan *plan, size_t delegate, const std::string &what)
      : program_(program), plan_(plan), delegate_(delegate), what_(what) {}

  void run(const uint8_t *data, size_t size) {
    const Graph *graph = find(data, size);
    if (graph == nullptr) {
      return;
    }
    constants(graph);
    for (const Node *node : *graph->nodes()) {
      require(node->is_there(), "an operation is missing");
    }
    for (const Value *value : *graph->values()) {
      const QuantizedTensor *quantized = value->quantized();
      const Tensor *tensor = quantized != nullptr ? quantized->tensor() : value->plain();
      require(tensor != nullptr, "a tensor is missing");
      require(quantized == nullptr || quantized->params() != nullptr, "a tensor's scale is missing");
      this->tensor(tensor);
      if (quantized != nullptr && quantized->per_channel() != nullptr) {
        scales(tensor, quantized->per_channel());
      }
    }
    for (const fb::Chain *chain : *plan_->chains()) {
      for (const fb::Instruction *instruction : *chain->instructions()) {
        const fb::DelegateCall *call = instruction->instr_args_as_DelegateCall();
        if (call != nullptr && static_cast<size_t>(call->delegate_index()) == delegate_) {
          arguments(call);
        }
      }
    }
  }

private:
  void require(bool holds, const char *problem) const {
    if (!holds) {
      fail(ETCFFI_BadFile, what_ + " is damaged: method '" + plan_->name()->str() + "', delegate " +
                               std::to_string(delegate_) + " (XnnpackBackend): " + problem);
    }
  }

  // The graph, or NULL in data that XNNPACK would not read anyway.
  const Graph *find(const uint8_t *data, size_t size) const {
    constexpr size_t kHeader = 30;
    if (size < kHeader || std::memcmp(data + 4, "XH00", 4) != 0) {
      return nullptr;
    }
    const uint64_t offset = flatbuffers::ReadScalar<uint32_t>(data + 10);
    const uint64_t length = flatbuffers::ReadScalar<uint32_t>(data + 14);
    if (offset > size || length > size - offset || length < 8) {
      return nullptr;
    }
    Verifier::Options options;
    options.max_tables = UINT32_MAX;
    // XNNPACK verifies all of it, and no more strictly: it asks for no alignment beyond what is so in any
    // file.
    Verifier verifier(data + offset, static_cast<size_t>(length), options);
    require(verifier.VerifyBuffer<Graph>(nullptr), "its flatbuffer does not verify");
    const Graph *graph = flatbuffers::GetRoot<Graph>(data + offset);
    require(graph->nodes() != nullptr && graph->values() != nullptr, "it has no graph");
    return graph;
  }

  void constants(const Graph *graph) {
    std::map<std::string_view, uint64_t> named;
    if (program_->named_data() != nullptr) {
      for (const fb::NamedData *entry : *program_->named_data()) {
        named.emplace(entry->key()->string_view(), program_->segments()->Get(entry->segment_index())->size());
      }
    }
    if (graph->constants() == nullptr) {
      return;
    }
    for (const Constant *constant : *graph->constants()) {
      uint64_t size = constant->size();
      // Weights with a name are in a segment of the program, or in a data file.
      const auto found =
          constant->key() == nullptr ? named.end() : named.find(constant->key()->string_view());
      require(found == named.end() || found->second >= size, "the program has a weight of another size");
      constants_.push_back(size);
    }
  }

  void tensor(const Tensor *tensor) {
    const uint64_t bits = bits_of(tensor->datatype());
    require(bits > 0, "a tensor is of no type");
    uint64_t total = bits;
    bool overflows = false;
    for (const uint32_t dim : dims_of(tensor)) {
      overflows = __builtin_mul_overflow(total, static_cast<uint64_t>(dim), &total) || overflows;
    }
    require(!overflows && total <= INT64_MAX, "a tensor's size overflows");
    if (tensor->constant() != 0 && !constants_.empty()) {
      require(tensor->constant() < constants_.size(), "a tensor's weight is missing");
      require(total / 8 <= constants_[tensor->constant()], "a tensor is larger than its weight");
    }
    if ((tensor->flags() & (kExternalInput | kExternalOutput)) != 0) {
      externals_.push_back({tensor->external_id(), bits, (tensor->flags() & kExternalOutput) != 0});
    }
  }

  static std::vector<uint32_t> dims_of(const Tensor *tensor) {
    return tensor->dims() == nullptr ? std::vector<uint32_t>()
                                     : std::vector<uint32_t>(tensor->dims()->begin(), tensor->dims()->end());
  }

  void scales(const Tensor *tensor, const PerChannel *quantization) const {
    const std::vector<uint32_t> dims = dims_of(tensor);
    const int32_t dim = quantization->channel_dim();
    require(dim >= 0 && static_cast<size_t>(dim) < dims.size(), "a tensor has no such channels");
    const uint64_t channels = dims[static_cast<size_t>(dim)];
    if (quantization->scale_constant() != 0 && !constants_.empty()) {
      require(quantization->scale_constant() < constants_.size(), "a tensor's scales are missing");
      require(channels * sizeof(float) <= constants_[quantization->scale_constant()],
              "a tensor has fewer scales than channels");
    } else {
      require(quantization->scale() != nullptr && channels <= quantization->scale()->size(),
              "a tensor has fewer scales than channels");
    }
  }

  void arguments(const fb::DelegateCall *call) const {
    for (const External &external : externals_) {
      require(external.argument < call->args()->size(), "it is called with too few arguments");
      const auto index = static_cast<flatbuffers::uoffset_t>(call->args()->Get(external.argument));
      const fb::Tensor *tensor = plan_->values()->Get(index)->val_as_Tensor();
      require(tensor != nullptr, "it is called with something else than a tensor");
      const auto itemsize = dtype_of(static_cast<int32_t>(tensor->scalar_type())).itemsize;
      require(external.bits <= 8 * static_cast<uint64_t>(itemsize), "it is called with a smaller dtype");
      require(!external.is_output || tensor->allocation_info() != nullptr || tensor->data_buffer_idx() == 0,
              "it writes to a constant");
    }
  }

  const fb::Program *program_;
  const fb::ExecutionPlan *plan_;
  size_t delegate_;
  const std::string &what_;
  std::vector<uint64_t> constants_; // their sizes, by index
  std::vector<External> externals_;
};

} // namespace

void check_xnnpack(const fb::Program *program, const fb::ExecutionPlan *plan, size_t delegate,
                   const uint8_t *data, size_t size, const std::string &what) {
  Checker(program, plan, delegate, what).run(data, size);
}

} // namespace etcffi

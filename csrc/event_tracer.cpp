#include "event_tracer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include <executorch/runtime/core/evalue.h>

#include "dtype.h"
#include "status.h"

namespace runtime = executorch::runtime;

using namespace etcffi;
using executorch::aten::Tensor;
using runtime::EValue;
using runtime::Result;

namespace {

// Results begin at a multiple of this in the debug buffer, as the runtime's own sink has them.
constexpr size_t kStep = 64;

bool can_log(const Tensor &tensor) {
  if (tensor.unsafeGetTensorImpl()->device_type() != DeviceType::CPU) {
    return false; // the buffer is the host's
  }
  switch (tensor.scalar_type()) {
  case ScalarType::Byte:
  case ScalarType::Char:
  case ScalarType::Short:
  case ScalarType::Int:
  case ScalarType::Long:
  case ScalarType::Float:
  case ScalarType::Double:
  case ScalarType::Bool:
  case ScalarType::Bits16:
  case ScalarType::UInt16:
    return tensor.nbytes() == 0 || tensor.const_data_ptr() != nullptr;
  default:
    return false;
  }
}

bool can_log(const runtime::ArrayRef<Tensor> &tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor &tensor) { return can_log(tensor); });
}

bool can_log(const EValue &value) {
  switch (value.tag) {
  case runtime::Tag::Tensor:
    return can_log(value.toTensor());
  case runtime::Tag::ListTensor:
    return can_log(value.toTensorList());
  case runtime::Tag::Int:
  case runtime::Tag::Double:
  case runtime::Tag::Bool:
    return true;
  default:
    return false;
  }
}

Ref<etcffi_tensor> bytes_tensor(Ref<etcffi_block> block, size_t nbytes) {
  etcffi_memory memory{};
  memory.data = block->data();
  memory.nbytes = nbytes;
  memory.scalar_type = ETCFFI_ScalarType_Byte;
  memory.ndim = 1;
  memory.has_strides = 1;
  memory.sizes[0] = static_cast<int64_t>(nbytes);
  memory.strides[0] = 1;
  return Ref<etcffi_tensor>::adopt(new etcffi_tensor(memory, std::move(block)));
}

Ref<etcffi_tensor> copied(const void *data, size_t nbytes) {
  auto block = etcffi_block::allocate(nbytes, DeviceType::CPU);
  if (nbytes > 0) {
    std::memcpy(block->data(), data, nbytes);
  }
  return bytes_tensor(std::move(block), nbytes);
}

} // namespace

Result<size_t> DebugBuffer::write(const void *data, size_t nbytes) {
  const size_t offset = (used_ + kStep - 1) / kStep * kStep;
  used_ = offset + nbytes;
  if (!overflowed()) {
    std::memcpy(static_cast<uint8_t *>(block_->data()) + offset, data, nbytes);
  }
  return offset;
}

Ref<etcffi_block> DebugBuffer::take() {
  auto fresh = etcffi_block::allocate(block_->nbytes(), DeviceType::CPU);
  used_ = 0;
  return std::exchange(block_, std::move(fresh));
}

void DebugBuffer::clear() {
  std::memset(block_->data(), 0, std::min(used_, block_->nbytes()));
  used_ = 0;
}

Result<bool> Generator::log_evalue(const EValue &value, runtime::LoggedEValueType type) {
  return can_log(value) ? ETDumpGen::log_evalue(value, type) : false;
}

Result<bool> Generator::log_intermediate_output_delegate(const char *name, runtime::DelegateDebugIntId index,
                                                         const Tensor &output) {
  return can_log(output) ? ETDumpGen::log_intermediate_output_delegate(name, index, output) : false;
}

Result<bool> Generator::log_intermediate_output_delegate(const char *name, runtime::DelegateDebugIntId index,
                                                         runtime::ArrayRef<Tensor> output) {
  return can_log(output) ? ETDumpGen::log_intermediate_output_delegate(name, index, output) : false;
}

Ref<etcffi_event_tracer> etcffi_event_tracer::create(size_t debug_buffer_size) {
  auto tracer = Ref<etcffi_event_tracer>::adopt(new etcffi_event_tracer());
  if (debug_buffer_size > 0) {
    tracer->debug_.emplace(etcffi_block::allocate(debug_buffer_size, DeviceType::CPU));
  }
  tracer->start();
  return tracer;
}

void etcffi_event_tracer::start() {
  generator_.reset(); // takes the debug buffer away as well
  if (debug_) {
    debug_->clear();
    generator_.set_data_sink(&*debug_);
    generator_.set_event_tracer_debug_level(runtime::EventTracerDebugLogLevel::kIntermediateOutputs);
  }
}

etcffi_event_tracer::Scope::Scope(etcffi_event_tracer *tracer) : tracer_(tracer) {
  if (tracer_ != nullptr) {
    tracer_->mutex_.lock();
  }
}

etcffi_event_tracer::Scope::~Scope() {
  if (tracer_ == nullptr) {
    return;
  }
  if (!done_) {
    tracer_->start();
  }
  tracer_->mutex_.unlock();
}

void etcffi_event_tracer::Scope::done() {
  if (tracer_ == nullptr) {
    return;
  }
  const std::optional<DebugBuffer> &debug = tracer_->debug_;
  if (debug && debug->overflowed()) {
    fail(ETCFFI_OutOfMemory, "the debug buffer of " + std::to_string(debug->nbytes()) +
                                 " bytes is too small for the results of this "
                                 "program's instructions since its ETDump was last written, which take " +
                                 std::to_string(debug->get_used_bytes()) +
                                 "; pass debug_buffer_size=" + std::to_string(debug->get_used_bytes()) +
                                 " or more, or write the ETDump more often");
  }
  done_ = true;
}

void etcffi_event_tracer::take(Ref<etcffi_tensor> *dump, Ref<etcffi_tensor> *debug) {
  Scope scope(this);
  const executorch::etdump::ETDumpResult result = generator_.get_etdump_data();
  const std::unique_ptr<void, decltype(&std::free)> freed(result.buf, &std::free);
  if (result.buf == nullptr || result.size == 0) {
    fail(ETCFFI_NotExecuted, "nothing was traced since the program was loaded or its ETDump was last "
                             "written; load or run a method "
                             "first");
  }
  *dump = copied(result.buf, result.size);
  if (debug_) {
    // The whole of it, as the official binding writes it.
    *debug = bytes_tensor(debug_->take(), debug_->nbytes());
  }
  start();
  scope.done();
}

etcffi_status etcffi_event_tracer_new(size_t debug_buffer_size, etcffi_event_tracer **out) {
  return guard([&] { *out = etcffi_event_tracer::create(debug_buffer_size).detach(); });
}

etcffi_status etcffi_event_tracer_take(etcffi_event_tracer *tracer, etcffi_tensor **dump,
                                       etcffi_tensor **debug) {
  return guard([&] {
    Ref<etcffi_tensor> taken_dump;
    Ref<etcffi_tensor> taken_debug;
    tracer->take(&taken_dump, &taken_debug);
    *dump = taken_dump.detach();
    *debug = taken_debug.detach();
  });
}

void etcffi_event_tracer_release(etcffi_event_tracer *tracer) {
  if (tracer != nullptr) {
    tracer->release();
  }
}

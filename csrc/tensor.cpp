#include "tensor.h"

#include <cstring>
#include <string>

#include "dtype.h"
#include "status.h"

using namespace etcffi;

namespace {

template <typename Managed> struct Export {
  Managed managed;
  Ref<etcffi_tensor> tensor;
  int64_t shape[ETCFFI_MAX_DIM];
  int64_t strides[ETCFFI_MAX_DIM];
};

// DLPack's DLDeviceType for a device of the runtime.
constexpr int32_t kDLCPU = 1;
constexpr int32_t kDLCUDA = 2;
constexpr int32_t kDLCUDAHost = 3;
constexpr int32_t kDLCUDAManaged = 13;

template <typename Managed> Managed *export_tensor(etcffi_tensor *tensor) {
  const etcffi_memory &memory = tensor->memory;
  const etcffi_dtype &dtype = dtype_of(memory.scalar_type);
  if (dtype.dl_code < 0) {
    fail(ETCFFI_BadDtype, std::string("DLPack has no name for the dtype ") + dtype.name);
  }
  auto *made = new Export<Managed>();
  made->tensor = Ref<etcffi_tensor>(tensor);
  std::memcpy(made->shape, memory.sizes, sizeof(made->shape));
  std::memcpy(made->strides, memory.strides, sizeof(made->strides));
  DLTensor &out = made->managed.dl_tensor;
  out.data = memory.data;
  out.device.device_type = memory.device.type == ETCFFI_DeviceType_CPU ? kDLCPU : kDLCUDA;
  out.device.device_id = memory.device.index;
  out.ndim = memory.ndim;
  out.dtype.code = static_cast<uint8_t>(dtype.dl_code);
  out.dtype.bits = static_cast<uint8_t>(dtype.dl_bits);
  out.dtype.lanes = 1;
  out.shape = made->shape;
  out.strides = made->strides;
  out.byte_offset = 0;
  made->managed.manager_ctx = made;
  // The consumer may call this from any thread, and after the interpreter is gone.
  made->managed.deleter = [](Managed *self) { delete static_cast<Export<Managed> *>(self->manager_ctx); };
  return &made->managed;
}

} // namespace

int32_t etcffi_tensor_is_borrowed(const etcffi_tensor *tensor) {
  return tensor->block->borrowed() ? 1 : 0;
}

namespace etcffi {

Ref<etcffi_tensor> copy_of(const etcffi_memory &memory, const Device &device) {
  auto block = etcffi_block::allocate(memory.nbytes, device);
  copy_bytes(block->data(), device, memory.data, from_c(memory.device), memory.nbytes);
  etcffi_memory copied = memory;
  copied.data = block->data();
  copied.device = to_c(device);
  return Ref<etcffi_tensor>::adopt(new etcffi_tensor(copied, std::move(block)));
}

} // namespace etcffi

void etcffi_tensor_retain(etcffi_tensor *tensor) {
  tensor->retain();
}

void etcffi_tensor_release(etcffi_tensor *tensor) {
  if (tensor != nullptr) {
    tensor->release();
  }
}

const etcffi_memory *etcffi_tensor_memory(const etcffi_tensor *tensor) {
  return &tensor->memory;
}

size_t etcffi_tensor_readable(const etcffi_tensor *tensor) {
  return tensor->block->readable_from(tensor->memory.data);
}

etcffi_status etcffi_tensor_clone(const etcffi_tensor *tensor, etcffi_tensor **out) {
  return guard([&] { *out = copy_of(tensor->memory, from_c(tensor->memory.device)).detach(); });
}

etcffi_status etcffi_tensor_to_host(const etcffi_tensor *tensor, etcffi_tensor **out) {
  return guard([&] { *out = copy_of(tensor->memory, DeviceType::CPU).detach(); });
}

etcffi_status etcffi_tensor_synchronize(const etcffi_tensor *tensor) {
  return guard([&] {
    const etcffi_memory &memory = tensor->memory;
    char byte;
    if (memory.device.type != ETCFFI_DeviceType_CPU && memory.nbytes > 0) {
      copy_bytes(&byte, DeviceType::CPU, memory.data, from_c(memory.device), 1);
    }
  });
}

etcffi_status etcffi_tensor_new(const etcffi_memory *memory, etcffi_tensor **out) {
  return guard([&] {
    etcffi_memory made = *memory;
    if (made.ndim < 0 || made.ndim > ETCFFI_MAX_DIM) {
      fail(ETCFFI_BadShape, "a tensor has 0 to " + std::to_string(ETCFFI_MAX_DIM) + " dimensions");
    }
    auto wanted = static_cast<size_t>(dtype_of(made.scalar_type).itemsize);
    for (int32_t i = 0; i < made.ndim; ++i) {
      if (made.sizes[i] < 0 || __builtin_mul_overflow(wanted, static_cast<size_t>(made.sizes[i]), &wanted)) {
        fail(ETCFFI_BadShape, "a tensor's sizes are too large, or negative");
      }
    }
    if (wanted > made.nbytes) {
      fail(ETCFFI_NoMemory, "the elements take " + std::to_string(wanted) + " bytes, and there are " +
                                std::to_string(made.nbytes));
    }
    auto block = etcffi_block::allocate(wanted, DeviceType::CPU);
    if (wanted > 0) {
      std::memcpy(block->data(), made.data, wanted);
    }
    made.data = block->data();
    made.nbytes = wanted;
    made.device = {ETCFFI_DeviceType_CPU, 0};
    made.flags = 0;
    made.has_strides = 1;
    *out = new etcffi_tensor(made, std::move(block));
  });
}

etcffi_status etcffi_tensor_to_dlpack(etcffi_tensor *tensor, DLManagedTensor **out) {
  return guard([&] { *out = export_tensor<DLManagedTensor>(tensor); });
}

etcffi_status etcffi_tensor_to_dlpack_versioned(etcffi_tensor *tensor, uint64_t flags,
                                                DLManagedTensorVersioned **out) {
  return guard([&] {
    DLManagedTensorVersioned *made = export_tensor<DLManagedTensorVersioned>(tensor);
    made->version = {ETCFFI_DLPACK_MAJOR, ETCFFI_DLPACK_MINOR};
    made->flags = flags;
    *out = made;
  });
}

etcffi_status etcffi_memory_from_dlpack(const DLTensor *tensor, etcffi_memory *out) {
  return guard([&] {
    if (tensor->ndim < 0 || tensor->ndim > ETCFFI_MAX_DIM) {
      fail(ETCFFI_BadShape, "it has " + std::to_string(tensor->ndim) +
                                " dimensions, and the runtime describes at most " +
                                std::to_string(ETCFFI_MAX_DIM));
    }
    if (tensor->ndim > 0 && tensor->shape == nullptr) {
      fail(ETCFFI_BadShape, "its capsule names dimensions but no shape");
    }
    etcffi_memory memory{};
    memory.scalar_type = scalar_type_of(tensor->dtype);
    if (memory.scalar_type < 0) {
      fail(ETCFFI_BadDtype, "its DLPack dtype (code " + std::to_string(tensor->dtype.code) + ", " +
                                std::to_string(tensor->dtype.bits) + " bits, " +
                                std::to_string(tensor->dtype.lanes) +
                                " lanes) is none that the runtime knows");
    }
    switch (tensor->device.device_type) {
    case kDLCPU:
    case kDLCUDAHost: // pinned and managed memory, which the host reads like its own
    case kDLCUDAManaged:
      memory.device = {ETCFFI_DeviceType_CPU, 0};
      break;
    case kDLCUDA:
      memory.device = {ETCFFI_DeviceType_CUDA, tensor->device.device_id};
      break;
    default:
      fail(ETCFFI_BadDevice, "it is on DLPack device type " + std::to_string(tensor->device.device_type) +
                                 ", which the runtime cannot name; copy it to the host first");
    }
    memory.ndim = tensor->ndim;
    memory.has_strides = 1;
    uint64_t elements = 1;
    for (int32_t i = tensor->ndim - 1; i >= 0; --i) {
      memory.sizes[i] = tensor->shape[i];
      // Strides may be left out, which means packed in the order of the shape.
      memory.strides[i] = tensor->strides != nullptr ? tensor->strides[i] : static_cast<int64_t>(elements);
      if (tensor->shape[i] < 0 ||
          __builtin_mul_overflow(elements, static_cast<uint64_t>(tensor->shape[i]), &elements)) {
        fail(ETCFFI_BadShape, "its capsule states a shape that cannot be");
      }
    }
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(dtype_of(memory.scalar_type).itemsize),
                               &elements)) {
      fail(ETCFFI_BadShape, "its capsule states a shape that cannot be");
    }
    memory.nbytes = elements;
    memory.data = tensor->data == nullptr ? nullptr : static_cast<char *>(tensor->data) + tensor->byte_offset;
    *out = memory;
  });
}

void etcffi_dlpack_release(DLManagedTensor *managed) {
  if (managed != nullptr && managed->deleter != nullptr) {
    managed->deleter(managed);
  }
}

void etcffi_dlpack_release_versioned(DLManagedTensorVersioned *managed) {
  if (managed != nullptr && managed->deleter != nullptr) {
    managed->deleter(managed);
  }
}

from __future__ import annotations

from typing import Any

from et_cffi import _capsule, ffi, lib

_NAMES = {(0, 64): "int64", (2, 32): "float32", (2, 64): "float64"}


def from_dlpack(producer: Any) -> Any:
    import torch

    if hasattr(producer, "__dlpack__"):
        assert producer.__dlpack_device__()[0] == 2, "the stand-in takes a CUDA device's memory only"
        stream = torch.cuda.current_stream().cuda_stream or 1
        producer = producer.__dlpack__(max_version=(1, 0), stream=stream)
    address, versioned = _capsule.claim(producer)
    assert versioned
    managed = ffi.gc(ffi.cast("DLManagedTensorVersioned *", address), lib.etcffi_dlpack_release_versioned)
    tensor = managed.dl_tensor
    name = _NAMES[tensor.dtype.code, tensor.dtype.bits]
    shape, strides = (list(values[0 : tensor.ndim]) for values in (tensor.shape, tensor.strides))
    where = torch.device("cuda", tensor.device.device_id)
    nbytes = tensor.dtype.bits // 8
    for size in shape:
        nbytes *= size
    storage = torch.UntypedStorage(
        nbytes, where.index, int(ffi.cast("uintptr_t", tensor.data)), owner=managed
    )
    return torch.Tensor(storage, shape, strides, name, where)

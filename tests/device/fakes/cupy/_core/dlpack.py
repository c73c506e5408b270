from __future__ import annotations

from typing import Any

import numpy

from cupy.cuda.memory import BaseMemory
from et_cffi import _capsule, ffi, lib


class DLPackMemory(BaseMemory):
    """Memory that another library lends, given back with this object."""

    def __init__(self, capsule: Any) -> None:
        address, versioned = _capsule.claim(capsule)
        assert not versioned
        self.managed = ffi.gc(ffi.cast("DLManagedTensor *", address), lib.etcffi_dlpack_release)
        tensor = self.managed.dl_tensor
        assert tensor.device.device_type == 2
        super().__init__(int(ffi.cast("uintptr_t", tensor.data)), 0, tensor.device.device_id)

    def described(self) -> tuple[tuple[int, ...], Any, tuple[int, ...]]:
        tensor = self.managed.dl_tensor
        itemsize = tensor.dtype.bits // 8
        dtype = numpy.dtype(f"{'iuf'[tensor.dtype.code]}{itemsize}")
        shape, strides = (tuple(values[0 : tensor.ndim]) for values in (tensor.shape, tensor.strides))
        return shape, dtype, tuple(stride * itemsize for stride in strides)

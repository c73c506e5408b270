"""DLPack producers made by hand, which can state anything about their memory and count their deleters."""

from __future__ import annotations

from typing import Any

import numpy

from et_cffi import ffi
from et_cffi._lib import capsule

# DLPack's type code and bits of each dtype that it can name, written down from dlpack.h.
CODES = {
    "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64),
    "uint8": (1, 8), "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64),
    "float16": (2, 16), "float32": (2, 32), "float64": (2, 64), "bfloat16": (4, 16),
    "complex32": (5, 32), "complex64": (5, 64), "complex128": (5, 128), "bool": (6, 8),
    "float8_e4m3fn": (10, 8), "float8_e4m3fnuz": (11, 8), "float8_e5m2": (12, 8), "float8_e5m2fnuz": (13, 8),
}  # fmt: skip

READ_ONLY, IS_COPIED = 1, 2
CPU, CUDA, CUDA_HOST, METAL, CUDA_MANAGED = 1, 2, 3, 8, 13


class _Lease:
    """What one capsule lends. It is never freed, so that a second call of its deleter is counted and no
    crash; the array is let go of by the first."""

    def __init__(self, managed: Any, array: Any, *kept: Any) -> None:
        self.managed, self.array, self.kept = managed, array, kept
        self.calls = 0


_LEASES: dict[int, _Lease] = {}


def _delete(managed: Any) -> None:
    lease = _LEASES[int(ffi.cast("uintptr_t", managed))]
    lease.calls += 1
    lease.array = None


_DELETERS = {
    False: ffi.callback("void(DLManagedTensor *)", _delete),
    True: ffi.callback("void(DLManagedTensorVersioned *)", _delete),
}


class Producer:
    """Lends an array's memory through DLPack.

    Everything that the capsule states is the array's, unless a keyword says otherwise: `shape`, `strides` (in
    elements; None leaves them out), `ndim`, `code`, `bits`, `lanes`, `data` (an address), `byte_offset`,
    `device` (of the capsule), `claimed_device` (of `__dlpack_device__`), `version`, `flags`.

    Attributes:
        asked: the keywords of each call of `__dlpack__`.
        leases: one for each capsule.
    """

    def __init__(
        self,
        array: numpy.ndarray[Any, Any],
        dtype: str | None = None,
        *,
        versioned: bool = False,
        **stated: Any,
    ) -> None:
        self.array = array
        self.dtype = dtype or array.dtype.name
        self.versioned = versioned
        self.stated = stated
        self.asked: list[dict[str, Any]] = []
        self.leases: list[_Lease] = []

    @property
    def deleted(self) -> int:
        """How many times the deleters of the capsules have been called."""
        return sum(lease.calls for lease in self.leases)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.stated.get("claimed_device", (CPU, 0))
        return device

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        self.asked.append(
            {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        )
        return self.capsule()

    def capsule(self) -> Any:
        """A new capsule, whose deleter counts."""
        stated, array = self.stated, self.array
        managed = ffi.new("DLManagedTensorVersioned *" if self.versioned else "DLManagedTensor *")
        tensor = managed.dl_tensor
        shape = stated.get("shape", array.shape)
        strides = stated.get("strides", tuple(stride // array.itemsize for stride in array.strides))
        c_shape = ffi.NULL if shape is None else ffi.new("int64_t[]", list(shape))
        c_strides = ffi.NULL if strides is None else ffi.new("int64_t[]", list(strides))
        offset = stated.get("byte_offset", 0)
        address = stated.get("data", array.__array_interface__["data"][0] - offset)
        tensor.data = ffi.cast("void *", address)
        tensor.byte_offset = offset
        tensor.device.device_type, tensor.device.device_id = stated.get("device", (CPU, 0))
        tensor.ndim = stated.get("ndim", 0 if shape is None else len(shape))
        code, bits = CODES.get(self.dtype, (0, 0))
        tensor.dtype.code, tensor.dtype.bits = stated.get("code", code), stated.get("bits", bits)
        tensor.dtype.lanes = stated.get("lanes", 1)
        tensor.shape, tensor.strides = c_shape, c_strides
        if stated.get("has_deleter", True):
            managed.deleter = _DELETERS[self.versioned]
        if self.versioned:
            managed.version.major, managed.version.minor = stated.get("version", (1, 0))
            managed.flags = stated.get("flags", 0)
        at = int(ffi.cast("uintptr_t", managed))
        # The memory is the capsule's from here on, whatever becomes of this object.
        _LEASES[at] = lease = _Lease(managed, array, c_shape, c_strides)
        self.leases.append(lease)
        return capsule.wrap(at, self.versioned)


class OldProducer(Producer):
    """From before DLPack 1.0: `__dlpack__` takes no keyword but `stream`."""

    def __dlpack__(self, stream: Any = None) -> Any:
        self.asked.append({"stream": stream})
        return self.capsule()

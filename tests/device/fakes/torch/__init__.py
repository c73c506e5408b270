"""A stand-in for a torch that was built with CUDA, on the test device: what et_cffi reads of it.

The names are those of torch 2.13, and so is what its `Tensor.__dlpack__` refuses.
"""

from __future__ import annotations

import math
from typing import Any

import device_plugin
import numpy
from pool import Pool

from torch import _C, cuda, utils, version

__all__ = ["_C", "Tensor", "cuda", "device", "from_dlpack", "from_numpy", "strided", "utils", "version"]


class _Name:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


strided, sparse_coo = _Name("strided"), _Name("sparse_coo")
DTYPES = {name: _Name(name) for name in ("float32", "float64", "int64")}


class device:
    def __init__(self, type: str, index: int | None = None) -> None:
        self.type, self.index = type, index

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


class UntypedStorage:
    """Memory of the caching allocator, or of somebody else (`owner`), which cannot be resized."""

    pool = Pool()

    def __init__(self, nbytes: int, index: int, address: int = 0, owner: Any = None) -> None:
        self.index, self.owner, self._nbytes = index, owner, nbytes
        self.block = None if owner is not None else self.pool.take(nbytes, index)
        self.address = address if self.block is None else self.block.address

    def data_ptr(self) -> int:
        return self.address

    def nbytes(self) -> int:
        return self._nbytes

    def resizable(self) -> bool:
        return self.owner is None

    def resize_(self, nbytes: int) -> None:
        assert self.block is not None
        self.pool.give_back(self.block)
        self.block = self.pool.take(nbytes, self.index)
        self.address, self._nbytes = self.block.address, nbytes

    def __del__(self) -> None:
        if self.block is not None:
            self.pool.give_back(self.block)


class Tensor:
    # Descriptors of the class, as torch's are: et_cffi asks the class, whatever a subclass says.
    __slots__ = (
        "_offset",
        "_shape",
        "_storage",
        "_strides",
        "device",
        "dtype",
        "is_nested",
        "is_quantized",
        "layout",
        "negated",
        "requires_grad",
        "streams",
    )

    def __init__(
        self, storage: Any, shape: Any, strides: Any, dtype: str, where: device, offset: int = 0
    ) -> None:
        self._storage, self._shape, self._strides = storage, tuple(shape), tuple(strides)
        self.dtype, self.device, self._offset = DTYPES[dtype], where, offset
        self.layout, self.is_quantized, self.is_nested, self.requires_grad = strided, False, False, False
        self.negated = False
        self.streams: list[Any] = []  # not torch's: what __dlpack__ was asked with

    def size(self) -> tuple[int, ...]:
        return self._shape

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def storage_offset(self) -> int:
        return self._offset

    def element_size(self) -> int:
        return numpy.dtype(self.dtype.name).itemsize

    def untyped_storage(self) -> Any:
        return self._storage

    def data_ptr(self) -> int:
        return int(self._storage.data_ptr()) + self._offset * self.element_size()

    def is_neg(self) -> bool:
        return self.negated

    def is_conj(self) -> bool:
        return False

    def detach(self) -> Tensor:
        made = Tensor(self._storage, self._shape, self._strides, self.dtype.name, self.device, self._offset)
        made.streams = self.streams
        return made

    def as_subclass(self, cls: type) -> Any:
        assert cls is Tensor
        return self

    def set_(self, other: Tensor) -> Tensor:
        self._storage, self._offset = other._storage, other._offset
        return self

    def cuda(self, index: int | None = None) -> Tensor:
        index = cuda.current_device() if index is None else index
        data = self.numpy()
        storage = UntypedStorage(data.nbytes, index)
        device_plugin.current().write(storage.data_ptr(), data.tobytes(), index)
        strides = [stride // data.itemsize for stride in data.strides]
        return Tensor(storage, data.shape, strides, data.dtype.name, device("cuda", index))

    def cpu(self) -> Tensor:
        return from_numpy(self.numpy())

    def numpy(self) -> numpy.ndarray[Any, Any]:
        if isinstance(self._storage, _HostStorage):
            return self._storage.array
        nbytes = math.prod(self._shape) * self.element_size()
        data = device_plugin.current().read(self.data_ptr(), nbytes, self.device.index or 0)
        return numpy.frombuffer(data, self.dtype.name).reshape(self._shape).copy()

    def __dlpack_device__(self) -> tuple[int, int]:
        kind = 10 if version.hip is not None else device_plugin.CUDA
        return kind, self.device.index or 0

    def __dlpack__(
        self, *, stream: Any = -1, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        if self.device.index != cuda.current_device():
            raise BufferError("Can't export tensors on a different CUDA device index.")
        if stream is not None and type(stream) is not int:
            raise TypeError("stream must be ``int`` or ``none``")
        if stream == 2:
            raise BufferError("per-thread default stream is not supported.")
        self.streams.append(stream)
        itemsize = self.element_size()
        strides = [stride * itemsize for stride in self._strides]
        # The real capsule holds the tensor. This one holds nothing: whoever borrows has to.
        return device_plugin.current().lend(
            self.data_ptr(),
            numpy.lib.stride_tricks.as_strided(numpy.empty(1, self.dtype.name), self._shape, strides),
            device=self.__dlpack_device__(),
            versioned=max_version is not None and max_version[0] >= 1,
        )


class _HostStorage:
    def __init__(self, array: numpy.ndarray[Any, Any]) -> None:
        self.array = array

    def data_ptr(self) -> int:
        return int(self.array.__array_interface__["data"][0])

    def nbytes(self) -> int:
        return self.array.nbytes

    def resizable(self) -> bool:
        return False


def from_numpy(array: numpy.ndarray[Any, Any]) -> Tensor:
    strides = [stride // array.itemsize for stride in array.strides]
    return Tensor(_HostStorage(array), array.shape, strides, array.dtype.name, device("cpu"))


def from_dlpack(producer: Any) -> Tensor:
    return utils.dlpack.from_dlpack(producer)

"""A stand-in for CuPy on the test device: what et_cffi reads of it, under CuPy's own names.

The names were compared with CuPy's sources: cupy/_core/core.pyx, cupy/_core/dlpack.pyx, cupy/cuda/memory.pyx.
"""

from __future__ import annotations

from typing import Any

import device_plugin
import numpy

from cupy import cuda
from cupy._core.dlpack import DLPackMemory
from cupy.cuda import memory


class ndarray:
    def __init__(self, shape: Any, dtype: Any, memptr: memory.MemoryPointer, strides: Any = None) -> None:
        like = numpy.empty(shape, dtype)
        self.shape: tuple[int, ...] = tuple(shape)
        self.dtype = like.dtype
        self.strides: tuple[int, ...] = like.strides if strides is None else tuple(strides)
        self._data = memptr
        self.streams: list[Any] = []  # not CuPy's: what __dlpack__ was asked with

    @property
    def data(self) -> memory.MemoryPointer:
        return self._data

    @property
    def nbytes(self) -> int:
        return int(numpy.prod(self.shape, dtype=numpy.int64)) * self.dtype.itemsize

    @property
    def device(self) -> cuda.Device:
        return cuda.Device(self._data.device_id)

    def __getitem__(self, rows: slice) -> ndarray:
        start, stop, _ = rows.indices(self.shape[0])
        memptr = memory.MemoryPointer(self._data.mem, self._data.offset + start * self.strides[0])
        return ndarray((stop - start, *self.shape[1:]), self.dtype, memptr, self.strides)

    def __dlpack_device__(self) -> tuple[int, int]:
        return device_plugin.CUDA, self._data.device_id

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        if stream is not None and (not isinstance(stream, int) or stream < -1 or stream == 0):
            raise ValueError(
                f"the valid stream for the DLPack protocol is -1, 1, 2, or any larger, not {stream}"
            )
        self.streams.append(stream)
        # The real capsule holds the array. This one holds nothing: whoever borrows has to.
        return device_plugin.current().lend(
            self._data.ptr,
            numpy.lib.stride_tricks.as_strided(numpy.empty(1, self.dtype), self.shape, self.strides),
            device=self.__dlpack_device__(),
            versioned=max_version is not None and max_version >= (1, 0),
        )


def _upload(array: Any, memptr: memory.MemoryPointer) -> ndarray:
    # In the order in which the elements stand in memory: a dense array keeps its layout.
    order = sorted(range(array.ndim), key=lambda dim: -array.strides[dim])
    device_plugin.current().write(memptr.ptr, array.transpose(order).tobytes(), memptr.device_id)
    return ndarray(array.shape, array.dtype, memptr, array.strides)


def asarray(array: Any) -> ndarray:
    given = numpy.asarray(array)
    return _upload(given, cuda.alloc(given.nbytes))


def ones(shape: Any, dtype: Any) -> ndarray:
    return asarray(numpy.ones(shape, dtype))


float32 = numpy.float32


def asnumpy(array: ndarray) -> numpy.ndarray[Any, Any]:
    # From the first element to the last, whatever is between them.
    steps = zip(array.shape, array.strides)
    nbytes = array.dtype.itemsize + sum((size - 1) * stride for size, stride in steps) if array.nbytes else 0
    data = device_plugin.current().read(array.data.ptr, nbytes, array.data.device_id) if nbytes else b""
    return numpy.ndarray(array.shape, array.dtype, data, strides=array.strides).copy()


def from_dlpack(producer: Any) -> ndarray:
    _, index = producer.__dlpack_device__()
    with cuda.Device(index):
        stream = cuda.get_current_stream().ptr or 1
        mem = DLPackMemory(producer.__dlpack__(stream=stream))
    shape, dtype, strides = mem.described()
    return ndarray(shape, dtype, memory.MemoryPointer(mem, 0), strides)


def get_default_memory_pool() -> Any:
    return cuda.default_memory_pool

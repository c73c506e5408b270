"""Sources of inputs whose memory can be watched: who still holds it, and what a run reads from it."""

from __future__ import annotations

import array as arrays
import ctypes
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy
from dlpack_producer import READ_ONLY, Producer
from support import load

from et_cffi import ffi, from_cdata

Values = numpy.ndarray[Any, Any]


def settle() -> None:
    """What nothing refers to is gone afterwards. CPython lets go at once, or not at all: a cycle would be a
    fault here. PyPy finds out what an array of numpy had held a collection after the array."""
    if sys.implementation.name != "cpython":
        for _ in range(5):
            gc.collect()


class Bytes(bytearray):
    """A writable buffer of bytes that can be referred to weakly."""


class Source:
    """An input of four floats: `give` passes it, `write` changes the memory it is in, `alive` says whether
    anything but this object holds that memory."""

    def __init__(self, make: Callable[[Values], tuple[Any, Values | None, Any]], values: Values) -> None:
        self._input, self._memory, watched = make(values)
        # What is watched: an owner that can be referred to weakly, or a producer that counts its deleters.
        self._producer = watched if isinstance(watched, Producer) else None
        self._owner = None if self._producer is not None else weakref.ref(watched)

    def give(self) -> Any:
        return self._input

    def write(self, values: Values) -> None:
        self._memory[...] = values.reshape(self._memory.shape)

    def forget(self) -> None:
        """The caller drops everything of its own."""
        self._input = self._memory = None
        if self._producer is not None:
            self._producer.array = None

    def alive(self) -> bool:
        settle()
        if self._owner is not None:
            return self._owner() is not None
        return any(lease.array is not None for lease in self._producer.leases)


def _numpy(values):
    array = values.copy()
    return array, array, array


def _numpy_view(values):
    base = numpy.zeros((3, *values.shape), values.dtype)
    base[1] = values
    return base[1], base[1], base


def _bytearray(values):
    memory = Bytes(values.tobytes())
    return memoryview(memory).cast("f", values.shape), numpy.frombuffer(memory, values.dtype), memory


def _memoryview_of_numpy(values):
    array = values.copy()
    return memoryview(array), array, array


class Array(arrays.array):
    """One that can be referred to weakly, which an array.array cannot be on every interpreter."""


def _array(values):
    memory = Array("f", values.ravel().tolist())
    return (
        memoryview(memory).cast("B").cast("f", values.shape),
        numpy.frombuffer(memory, values.dtype),
        memory,
    )


def _ctypes(values):
    memory = ((ctypes.c_float * values.shape[1]) * values.shape[0]).from_buffer_copy(values.tobytes())
    return memory, numpy.frombuffer(memory, values.dtype), memory


def _result(values):
    buffer = load("swap").execute([values, values])[0]
    return buffer, numpy.asarray(buffer), buffer


def _cdata(values):
    memory = ffi.new(f"float[{values.size}]", values.ravel().tolist())
    return from_cdata(memory, values.shape), numpy.frombuffer(ffi.buffer(memory), values.dtype), memory


def _cdata_with_an_owner(values):
    # A pointer into a struct, which holds nothing by itself.
    memory = ffi.new("etcffi_memory *")
    pointer = ffi.cast("float *", memory.sizes)
    pointer[0 : values.size] = values.ravel().tolist()
    array = numpy.frombuffer(ffi.buffer(pointer, values.nbytes), values.dtype)
    return from_cdata(pointer, values.shape, owner=memory), array, memory


def _dlpack(versioned: bool):
    def make(values):
        producer = Producer(values.copy(), versioned=versioned)
        return producer, producer.array, producer

    return make


POINTED_AT = {
    "numpy": _numpy,
    "numpy_view": _numpy_view,
    "bytearray": _bytearray,
    "memoryview_of_numpy": _memoryview_of_numpy,
    "array_array": _array,
    "ctypes": _ctypes,
    "result": _result,
    "cdata": _cdata,
    "cdata_with_an_owner": _cdata_with_an_owner,
    "dlpack": _dlpack(False),
    "dlpack_versioned": _dlpack(True),
}


def _numpy_read_only(values):
    array = values.copy()
    given = array.view()
    given.flags.writeable = False
    return given, array, array


def _bytes(values):
    memory = values.tobytes()
    return memoryview(memory).cast("f", values.shape), None, memory


def _read_only_view(values):
    memory = Bytes(values.tobytes())
    view = memoryview(memory).toreadonly().cast("f", values.shape)
    return view, numpy.frombuffer(memory, values.dtype), memory


def _misaligned(values):
    memory = Bytes(b"\0" + values.tobytes())
    array = numpy.frombuffer(memory, values.dtype, values.size, offset=1).reshape(values.shape)
    assert array.__array_interface__["data"][0] % 4
    return array, array, memory


def _cdata_to_be_copied(values):
    memory = ffi.new(f"float[{values.size}]", values.ravel().tolist())
    array = numpy.frombuffer(ffi.buffer(memory), values.dtype)
    return from_cdata(memory, values.shape, copy=True), array, memory


def _dlpack_read_only(values):
    producer = Producer(values.copy(), versioned=True, flags=READ_ONLY)
    return producer, producer.array, producer


COPIED = {
    "numpy_read_only": _numpy_read_only,
    "bytes": _bytes,
    "read_only_view_of_bytearray": _read_only_view,
    "misaligned": _misaligned,
    "cdata_to_be_copied": _cdata_to_be_copied,
    "dlpack_read_only": _dlpack_read_only,
}

if sys.version_info >= (3, 12):

    class _Lender:
        """Lends memory through a __buffer__ of its own, and cannot be asked for it twice by its view."""

        def __init__(self, memory: Bytes) -> None:
            self.memory = memory

        def __buffer__(self, flags: int) -> memoryview:
            return memoryview(self.memory).cast("f", (2, 2))

    def _python_buffer(values):
        memory = Bytes(values.tobytes())
        return _Lender(memory), numpy.frombuffer(memory, values.dtype), memory

    COPIED["python_buffer"] = _python_buffer

ALL = {**POINTED_AT, **COPIED}
# bytes cannot be referred to weakly.
WATCHED_COPIED = [kind for kind in COPIED if kind != "bytes"]
# PyPy's memoryview holds what is under a ctypes object, and not the object.
WATCHED_POINTED_AT = [kind for kind in POINTED_AT if kind != "ctypes" or sys.implementation.name == "cpython"]
WATCHED = [*WATCHED_POINTED_AT, *WATCHED_COPIED]

X = numpy.array([[1, -2], [3, 5]], numpy.float32)
Y = numpy.array([[70, 110], [130, -170]], numpy.float32)
OTHER = numpy.array([[-1000, 4000], [9000, 16000]], numpy.float32)


def run(method: Any) -> Values:
    """The first output of a run with the inputs that were set."""
    return numpy.asarray(method.execute()[0])


def only(method: Any, values: Values) -> None:
    """Sets `values` for both inputs, which replaces whatever was held."""
    method.set_inputs([values, values])

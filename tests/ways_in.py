"""Every way to pass a tensor in. Each takes logical values and lays them out as the input wants them."""

from __future__ import annotations

import array as arrays
import ctypes
import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy
from dlpack_producer import CODES, READ_ONLY, OldProducer, Producer
from support import FORMAT, laid_out, load, memory_of

from et_cffi import TensorBuffer

Info = dict[str, Any]
Values = numpy.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Way:
    """`make` turns values into an input; `takes` says of which inputs it can, from the index alone."""

    name: str
    takes: Callable[[Info], bool]
    make: Callable[[Values, Info], Any]

    def __repr__(self) -> str:
        return self.name


WAYS: list[Way] = []


def way(takes: Callable[[Info], bool]) -> Callable[[Callable[[Values, Info], Any]], Any]:
    def register(make: Callable[[Values, Info], Any]) -> Any:
        WAYS.append(Way(make.__name__, takes, make))
        return make

    return register


def _named(info: Info) -> bool:
    return info["dtype"] in FORMAT


def _default(info: Info) -> bool:
    return list(info["dim_order"]) == sorted(info["dim_order"])


def _never_empty(info: Info) -> bool:
    return not info["dynamic"] and 0 not in info["shape"]


# memoryview.cast takes native codes of one letter, of which half and complex are none before Python 3.12.
def _castable(info: Info) -> bool:
    return (
        _named(info)
        and info["dtype"] not in {"float16", "complex64", "complex128"}
        and _default(info)
        and _never_empty(info)
        and len(info["shape"]) > 0
    )


def _opaque(info: Info) -> bool:
    return not _named(info) and not info["dynamic"]


def _in_dlpack(info: Info) -> bool:
    return info["dtype"] in CODES


@way(_named)
def numpy_array(values: Values, info: Info) -> Any:
    return laid_out(values, info["dim_order"])


@way(_named)
def numpy_read_only(values: Values, info: Info) -> Any:
    array = laid_out(values, info["dim_order"])
    array.flags.writeable = False
    return array


@way(_named)
def memoryview_of_numpy(values: Values, info: Info) -> Any:
    return memoryview(laid_out(values, info["dim_order"]))


@way(_castable)
def memoryview_of_bytes(values: Values, info: Info) -> Any:
    return memoryview(values.tobytes()).cast(FORMAT[info["dtype"]], list(values.shape))


@way(_castable)
def memoryview_of_bytearray(values: Values, info: Info) -> Any:
    return memoryview(bytearray(values.tobytes())).cast(FORMAT[info["dtype"]], list(values.shape))


@way(lambda info: _castable(info) and info["dtype"] != "bool")
def array_array(values: Values, info: Info) -> Any:
    code = FORMAT[info["dtype"]]
    array = arrays.array(code, values.tobytes())
    return array if values.ndim == 1 else memoryview(array).cast("B").cast(code, list(values.shape))


_CTYPES = {
    "uint8": ctypes.c_uint8, "int8": ctypes.c_int8, "uint16": ctypes.c_uint16, "int16": ctypes.c_int16,
    "uint32": ctypes.c_uint32, "int32": ctypes.c_int32, "uint64": ctypes.c_uint64, "int64": ctypes.c_int64,
    "float32": ctypes.c_float, "float64": ctypes.c_double, "bool": ctypes.c_bool,
}  # fmt: skip


@way(_castable)
def ctypes_array(values: Values, info: Info) -> Any:
    kind: Any = _CTYPES[info["dtype"]]
    for size in reversed(values.shape):
        kind = kind * size
    return kind.from_buffer_copy(values.tobytes())


@way(_opaque)
def raw_bytes(values: Values, info: Info) -> Any:
    return memory_of(values, info["dim_order"])


@way(_opaque)
def raw_bytearray(values: Values, info: Info) -> Any:
    return bytearray(memory_of(values, info["dim_order"]))


@way(_opaque)
def raw_array_array(values: Values, info: Info) -> Any:
    return arrays.array("B", memory_of(values, info["dim_order"]))


@way(_opaque)
def raw_numpy(values: Values, info: Info) -> Any:
    return numpy.frombuffer(memory_of(values, info["dim_order"]), numpy.uint8)


_ML_DTYPES = {"bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"}


@way(lambda info: info["dtype"] in _ML_DTYPES and sys.implementation.name == "cpython")
def ml_dtypes_array(values: Values, info: Info) -> Any:
    import ml_dtypes

    return laid_out(values.view(getattr(ml_dtypes, info["dtype"])), info["dim_order"])


@way(_in_dlpack)
def dlpack_legacy(values: Values, info: Info) -> Any:
    return Producer(laid_out(values, info["dim_order"]), info["dtype"])


@way(lambda info: _in_dlpack(info) and _default(info))
def dlpack_without_strides(values: Values, info: Info) -> Any:
    return Producer(values, info["dtype"], strides=None)


@way(_in_dlpack)
def dlpack_with_offset(values: Values, info: Info) -> Any:
    return Producer(laid_out(values, info["dim_order"]), info["dtype"], byte_offset=24)


@way(_in_dlpack)
def dlpack_without_keywords(values: Values, info: Info) -> Any:
    return OldProducer(laid_out(values, info["dim_order"]), info["dtype"])


@way(_in_dlpack)
def dlpack_versioned(values: Values, info: Info) -> Any:
    return Producer(laid_out(values, info["dim_order"]), info["dtype"], versioned=True)


@way(_in_dlpack)
def dlpack_read_only(values: Values, info: Info) -> Any:
    return Producer(laid_out(values, info["dim_order"]), info["dtype"], versioned=True, flags=READ_ONLY)


class _OfNumpy:
    """Hides everything of an array but its DLPack."""

    def __init__(self, array: Values) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@way(lambda info: _named(info) and _in_dlpack(info))
def dlpack_of_numpy(values: Values, info: Info) -> Any:
    return _OfNumpy(laid_out(values, info["dim_order"]))


# Models that hand back the values they were given, so that any can be had in a TensorBuffer.
_ECHO = {("float32", (2, 2)): "swap", ("float32", (2, 3)): "identity_only"}
_COPIES = {
    "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "qint8", "quint8", "qint32", "quint4x2", "quint2x4", "bits16",
}  # fmt: skip
_ECHO |= {(dtype, (2, 3)): f"dtype_{dtype}" for dtype in _COPIES}
_ECHO["bool", (2, 3)] = "dtype_bool"  # which reverses the columns


@way(lambda info: _default(info) and (info["dtype"], tuple(info["shape"])) in _ECHO)
def tensor_buffer(values: Values, info: Info) -> TensorBuffer:
    name = _ECHO[info["dtype"], tuple(info["shape"])]
    if name == "dtype_bool":
        values = values[:, ::-1]
    value = numpy.ascontiguousarray(values) if _named(info) else values.tobytes()
    buffer: TensorBuffer = load(name).execute([value] * (2 if name == "swap" else 1))[0]
    assert type(buffer) is TensorBuffer
    assert buffer.nbytes == math.prod(info["shape"]) * values.itemsize
    return buffer


BY_NAME = {each.name: each for each in WAYS}

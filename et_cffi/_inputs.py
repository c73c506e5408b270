"""From what a caller passes to what the C layer takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Protocol

from et_cffi._buffer import describe_buffer, is_buffer
from et_cffi._dlpack import describe_dlpack
from et_cffi._lib import ffi, lib
from et_cffi._memory import Memory
from et_cffi._torch import describe_torch
from et_cffi.cdata import CDataTensor, describe_cdata
from et_cffi.errors import ExecuTorchError, InputKindError, ShapeError
from et_cffi.metadata import MethodMeta, TensorInfo
from et_cffi.tensor_buffer import TensorBuffer, describe_result

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class Held(Protocol):
    """What holds an input's memory: a Memory, or what CPython's C API made instead."""

    def moved(self) -> bool: ...
    def release(self) -> None: ...


def as_inputs(inputs: Any, count: int, what: str = "input") -> tuple[Any, ...]:
    """The inputs one by one: whatever holds memory counts as one, not as its rows.

    A copy, which is what it says it is: a sequence of somebody's own may give other items than it has, or
    never end, and a list may change while one of its items is asked for its memory.

    Args:
        inputs: what the caller passed.
        count: how many inputs the method takes; of another sequence than a list or a tuple no more than one
            more are taken.
        what: how messages call one of them.

    Raises:
        InputKindError: it is neither one input nor a sequence of them.
    """
    if type(inputs) is list or type(inputs) is tuple:
        return tuple(inputs)
    if not isinstance(inputs, (list, tuple)):
        if inputs is None or isinstance(inputs, (TensorBuffer, CDataTensor, ffi.CData, str, int, float)):
            return (inputs,)
        if is_buffer(inputs) or hasattr(type(inputs), "__dlpack__"):
            return (inputs,)
        if not isinstance(inputs, Sequence):
            raise InputKindError(
                f"the {what}s are a {type(inputs).__name__}, and neither memory nor a sequence of {what}s; "
                f"pass an array, or a list with one item for each {what}"
            )
    return tuple(islice(inputs, count + 1))


class InputWriter:
    """Describes a method's inputs, one after the other, in an array of etcffi_value."""

    def __init__(self, meta: MethodMeta) -> None:
        kinds = [meta.input_kind(i) for i in range(meta.num_inputs())]
        self._infos: list[TensorInfo | None] = [
            meta.input_tensor_meta(i) if kind == "Tensor" else None for i, kind in enumerate(kinds)
        ]
        self._kinds = kinds
        self._spare: list[InputValues] = []

    def take(self) -> InputValues:
        """An array for one set of inputs, to be put back. Each is used by one call at a time: a producer of
        an input may use the method itself, in the middle of the call that asked it for its memory."""
        return self._spare.pop() if self._spare else InputValues(len(self._infos))

    def put_back(self, values: InputValues) -> None:
        """Ends the use of what `take` gave."""
        self._spare.append(values)

    def write(self, values: InputValues, index: int, source: Any) -> Held | None:
        """Describes input `index`; what holds the memory is the caller's to keep through the call that sets
        the inputs, and then to release.

        Raises:
            ExecuTorchError: the source holds nothing that could be an input, and why.
        """
        info = self._infos[index]
        if info is None:
            with naming("input", index, None):
                return _write_scalar(values.items[index], self._kinds[index], source)
        with naming("input", index, info):
            memory = describe(source, info)
            if memory is None:
                return _write_scalar(values.items[index], self._kinds[index], source)
            try:
                write_memory(values.items[index], memory)
            except BaseException:
                memory.release()
                raise
            return memory


class InputValues:
    """An array of etcffi_value, and its items."""

    __slots__ = ("array", "items")

    def __init__(self, count: int) -> None:
        self.array = ffi.new("etcffi_value[]", count)
        self.items = [self.array[i] for i in range(count)]


@contextmanager
def naming(side: str, index: int, info: TensorInfo | None) -> Iterator[None]:
    """Begins what is raised with which input or output it is about."""
    try:
        yield
    except ExecuTorchError as error:
        name = f" ('{info.name}')" if info is not None and info.name else ""
        error.args = (f"{side} {index}{name}: {error}", *error.args[1:])
        raise


def write_memory(value: Any, memory: Memory) -> None:
    """Describes a tensor's memory in an etcffi_value.

    Raises:
        ShapeError: it has more dimensions, or larger sizes or strides, than can be described.
    """
    shape = memory.shape
    if len(shape) > lib.ETCFFI_MAX_DIM:
        raise ShapeError(
            f"it has {len(shape)} dimensions, and the runtime describes at most {lib.ETCFFI_MAX_DIM}"
        )
    value.tag = lib.ETCFFI_Tag_Tensor
    c_memory = value.memory
    c_memory.data = ffi.cast("void *", memory.address)
    c_memory.nbytes = memory.nbytes
    c_memory.scalar_type = memory.scalar_type
    c_memory.ndim = len(shape)
    c_memory.device.type, c_memory.device.index = memory.device
    c_memory.flags = lib.ETCFFI_READ_ONLY if memory.read_only else lib.ETCFFI_PINNED if memory.pinned else 0
    c_memory.has_strides = 1
    try:
        c_memory.sizes[0 : len(shape)] = shape
        c_memory.strides[0 : len(shape)] = memory.strides
    except OverflowError as error:
        raise ShapeError(f"its shape {shape} has sizes or strides beyond 64 bits") from error


def _write_scalar(value: Any, kind: str, source: Any) -> Memory | None:
    """Describes a value that is no tensor. Only a str has memory to keep."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(source, numpy.generic):
        source = source.item()
    if source is None:
        value.tag = lib.ETCFFI_Tag_None
    elif isinstance(source, bool):  # before int, which it is too
        value.tag, value.as_int = lib.ETCFFI_Tag_Bool, source
    elif isinstance(source, int):
        if not _INT64_MIN <= source <= _INT64_MAX:
            raise InputKindError(f"the int {source} does not fit the 64 bits that the runtime has for it")
        if kind == "Double":
            value.tag, value.as_double = lib.ETCFFI_Tag_Double, float(source)
        else:
            value.tag, value.as_int = lib.ETCFFI_Tag_Int, source
    elif isinstance(source, float):
        value.tag, value.as_double = lib.ETCFFI_Tag_Double, source
    elif isinstance(source, str):
        data = source.encode("utf-8", "surrogatepass")
        view = memoryview(data)
        value.tag, value.as_string, value.size = lib.ETCFFI_Tag_String, ffi.from_buffer(view), len(data)
        return Memory(0, len(data), 0, (), (), view, pinned=False)
    else:
        wanted = {"Tensor": "a tensor", "Double": "a float", "Int": "an int", "Bool": "a bool"}
        raise InputKindError(
            f"it is a {type(source).__name__}, and the method takes {wanted.get(kind, kind)}"
            + (
                "; pass an array, a buffer, a DLPack producer or a torch tensor (numpy.asarray makes an "
                "array of most things)"
                if kind == "Tensor"
                else ""
            )
        )
    return None


def describe(source: Any, info: TensorInfo) -> Memory | None:
    """The one description that the ways in, and a result passed back in, all end with."""
    memory = describe_result(source)
    if memory is None:
        memory = describe_cdata(source)
    if memory is None:
        memory = describe_torch(source)
    if memory is None:
        memory = describe_buffer(source, info)
    if memory is None:
        memory = describe_dlpack(source)
    return memory

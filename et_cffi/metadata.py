"""What a program says of its methods, before one is loaded."""

from __future__ import annotations

from typing import Any, Optional

from et_cffi._lib import ffi, lib, text
from et_cffi.device import Device, DeviceType
from et_cffi.dtypes import ScalarType
from et_cffi.errors import check

_TAGS: dict[int, str] = {
    getattr(lib, name): name[len("ETCFFI_Tag_") :] for name in dir(lib) if name.startswith("ETCFFI_Tag_")
}


class TensorInfo:
    """A tensor of a method: an input, an output or an attribute.

    The methods are those of the official binding, and so is `repr()`.
    """

    __slots__ = ("_device", "_dim_order", "_dtype", "_dynamic", "_name", "_nbytes", "_planned", "_sizes")

    def __init__(self, info: Any) -> None:
        self._sizes: tuple[int, ...] = tuple(info.sizes[0 : info.ndim])
        self._dim_order: tuple[int, ...] = tuple(info.dim_order[0 : info.ndim])
        self._dtype = int(info.scalar_type)
        self._planned = bool(info.is_memory_planned)
        self._dynamic = bool(info.is_dynamic)
        self._nbytes = int(info.nbytes)
        name = ffi.unpack(info.name, info.name_size) if info.name_size else b""
        self._name = str(name.decode("utf-8", "replace"))
        self._device = Device(DeviceType(info.device.type), info.device.index)

    def sizes(self) -> tuple[int, ...]:
        """The size of each dimension; where `is_dynamic`, the largest that the file allows."""
        return self._sizes

    def dtype(self) -> int:
        """The scalar type's number; `ScalarType(info.dtype())` names it."""
        return self._dtype

    def is_memory_planned(self) -> bool:
        """Whether the runtime reserves the memory itself; an input is then copied into it on every call."""
        return self._planned

    def nbytes(self) -> int:
        """Bytes of the elements at `sizes()`."""
        return self._nbytes

    def dim_order(self) -> tuple[int, ...]:
        """The dimensions from the outermost in memory to the innermost: (0, 2, 3, 1) is channels-last."""
        return self._dim_order

    def strides(self, sizes: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """The strides, in elements, that the method expects of a tensor with `sizes` (or `sizes()`)."""
        sizes = self._sizes if sizes is None else sizes
        strides = [0] * len(sizes)
        step = 1
        for dim in reversed(self._dim_order):
            strides[dim] = step
            step *= sizes[dim]
        return tuple(strides)

    def is_dynamic(self) -> bool:
        """Whether each dimension may be smaller than `sizes()` says. The file knows this of the whole
        tensor only, not of one dimension."""
        return self._dynamic

    @property
    def name(self) -> str:
        """The tensor's fully qualified name, where the file has one, else ""."""
        return self._name

    @property
    def device(self) -> Device:
        """Where the tensor's memory is."""
        return self._device

    def __repr__(self) -> str:
        # The official binding's words, down to the C++ name of the dtype.
        sizes = ", ".join(str(size) for size in self._sizes)
        return (
            f"TensorInfo(sizes=[{sizes}], dtype={ScalarType(self._dtype).name}, "
            f"is_memory_planned={self._planned}, nbytes={self._nbytes})"
        )


class MethodMeta:
    """A method's inputs, outputs and memory, as the program file states them.

    The methods are those of the official binding, and so is `repr()`. It needs nothing else to be kept.
    """

    def __init__(self, program: Any, index: int) -> None:
        info = ffi.new("etcffi_method_info *")
        check(lib.etcffi_program_method_info(program, index, info))
        self._name = text(info.name)
        self._inputs = _values(program, index, lib.ETCFFI_INPUT, info.num_inputs)
        self._outputs = _values(program, index, lib.ETCFFI_OUTPUT, info.num_outputs)
        self._attributes = [
            _tensor_info(program, index, lib.ETCFFI_ATTRIBUTE, i) for i in range(info.num_attributes)
        ]
        self._backends = [_backend(program, index, i) for i in range(info.num_backends)]
        self._planned = [_planned_buffer(program, index, i) for i in range(info.num_planned_buffers)]
        self._instructions = int(info.num_instructions)

    def name(self) -> str:
        """The method's name."""
        return self._name

    def num_inputs(self) -> int:
        """How many inputs the method takes."""
        return len(self._inputs)

    def num_outputs(self) -> int:
        """How many outputs the method has."""
        return len(self._outputs)

    def num_attributes(self) -> int:
        """How many named tensors of the method `Method.get_attribute` reaches."""
        return len(self._attributes)

    def num_instructions(self) -> int:
        """How many instructions the method's plan has."""
        return self._instructions

    def input_tensor_meta(self, index: int) -> TensorInfo:
        """The tensor that input `index` is.

        Raises:
            IndexError: there is no such input, or it is no tensor (`input_kind` tells).
        """
        return _tensor_at(self._inputs, index, "input")

    def output_tensor_meta(self, index: int) -> TensorInfo:
        """The tensor that output `index` is.

        Raises:
            IndexError: there is no such output, or it is no tensor (`output_kind` tells).
        """
        return _tensor_at(self._outputs, index, "output")

    def attribute_tensor_meta(self, index: int) -> TensorInfo:
        """The tensor that attribute `index` is.

        Raises:
            IndexError: there is no such attribute.
        """
        if not 0 <= index < len(self._attributes):
            raise IndexError(f"there is no attribute {index}; the method has {len(self._attributes)}")
        return self._attributes[index]

    def input_kind(self, index: int) -> str:
        """What input `index` is: "Tensor", "Int", "Double", "Bool", "String" or "None"."""
        return _at(self._inputs, index, "input")[0]

    def output_kind(self, index: int) -> str:
        """What output `index` is, as `input_kind`."""
        return _at(self._outputs, index, "output")[0]

    @property
    def backends(self) -> list[str]:
        """The backends that the method delegates to."""
        return list(self._backends)

    @property
    def planned_buffers(self) -> list[tuple[int, Device]]:
        """The bytes and the device of each buffer that is reserved for planned memory."""
        return list(self._planned)

    def __repr__(self) -> str:
        inputs = [repr(info) if info else kind for kind, info in self._inputs]
        outputs = [repr(info) if info else kind for kind, info in self._outputs]
        return (
            f"MethodMeta(name='{self._name}', num_inputs={len(inputs)}, input_tensor_meta={inputs}, "
            f"num_outputs={len(outputs)}, output_tensor_meta={outputs})"
        )


_Value = tuple[str, Optional[TensorInfo]]


def _values(program: Any, method: int, side: int, count: int) -> list[_Value]:
    values: list[_Value] = []
    tag = ffi.new("int32_t *")
    for index in range(count):
        check(lib.etcffi_program_value_tag(program, method, side, index, tag))
        is_tensor = tag[0] == lib.ETCFFI_Tag_Tensor
        info = _tensor_info(program, method, side, index) if is_tensor else None
        values.append((_TAGS.get(tag[0], f"tag {tag[0]}"), info))
    return values


def _tensor_info(program: Any, method: int, side: int, index: int) -> TensorInfo:
    info = ffi.new("etcffi_tensor_info *")
    check(lib.etcffi_program_tensor_info(program, method, side, index, info))
    return TensorInfo(info)


def _backend(program: Any, method: int, index: int) -> str:
    name = ffi.new("char const **")
    check(lib.etcffi_program_backend_name(program, method, index, name))
    return text(name[0])


def _planned_buffer(program: Any, method: int, index: int) -> tuple[int, Device]:
    nbytes, device = ffi.new("int64_t *"), ffi.new("etcffi_device *")
    check(lib.etcffi_program_planned_buffer(program, method, index, nbytes, device))
    return int(nbytes[0]), Device(DeviceType(device.type), device.index)


def _at(values: list[_Value], index: int, side: str) -> _Value:
    if not 0 <= index < len(values):
        raise IndexError(f"there is no {side} {index}; the method has {len(values)}")
    return values[index]


def _tensor_at(values: list[_Value], index: int, side: str) -> TensorInfo:
    kind, info = _at(values, index, side)
    if info is None:
        raise IndexError(f"{side} {index} is no tensor but of kind {kind}")
    return info

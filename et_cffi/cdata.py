"""cffi pointers as inputs: memory of a C library or a cffi app, with the shape that C does not say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from et_cffi._lib import address_of, ffi
from et_cffi._memory import Memory
from et_cffi.dtypes import BY_NAME, DTYPES, ScalarType
from et_cffi.errors import DtypeError, InputKindError, LayoutError, MemoryMissingError, ShapeError

# Which C type names which elements; which integer is how wide, the platform says.
_KINDS = {
    "_Bool": "b",
    **dict.fromkeys(("float", "double"), "f"),
    # PyPy calls them what C does, and CPython's cffi as follows.
    **dict.fromkeys(
        ("_cffi_float_complex_t", "_cffi_double_complex_t", "float _Complex", "double _Complex"), "c"
    ),
    **dict.fromkeys(("signed char", "short", "int", "long", "long long", "ssize_t", "ptrdiff_t"), "i"),
    **dict.fromkeys(("int8_t", "int16_t", "int32_t", "int64_t", "intptr_t"), "i"),
    **dict.fromkeys(("unsigned char", "unsigned short", "unsigned int", "unsigned long"), "u"),
    **dict.fromkeys(("unsigned long long", "size_t", "uintptr_t"), "u"),
    **dict.fromkeys(("uint8_t", "uint16_t", "uint32_t", "uint64_t"), "u"),
}
_BY_KIND = {
    ("f", 4): ScalarType.Float, ("f", 8): ScalarType.Double, ("b", 1): ScalarType.Bool,
    ("i", 1): ScalarType.Char, ("i", 2): ScalarType.Short, ("i", 4): ScalarType.Int,
    ("i", 8): ScalarType.Long, ("u", 1): ScalarType.Byte, ("u", 2): ScalarType.UInt16,
    ("u", 4): ScalarType.UInt32, ("u", 8): ScalarType.UInt64, ("c", 8): ScalarType.ComplexFloat,
    ("c", 16): ScalarType.ComplexDouble,
}  # fmt: skip
_C_NAMES = {
    ScalarType.Float: "float", ScalarType.Double: "double", ScalarType.Bool: "bool",
    ScalarType.Char: "int8_t", ScalarType.Short: "int16_t", ScalarType.Int: "int32_t",
    ScalarType.Long: "int64_t", ScalarType.ComplexFloat: "float _Complex",
    ScalarType.ComplexDouble: "double _Complex",
}  # fmt: skip


class CDataTensor:
    """Memory that a cdata points at, as an input. Made by `from_cdata`, which says who owns what."""

    __slots__ = ("_address", "_dtype", "_nbytes", "_owner", "_pinned", "_shape", "_strides")

    def __init__(
        self,
        cdata: Any,
        shape: Sequence[int],
        dtype: Any,
        strides: Sequence[int] | None,
        owner: Any,
        copy: bool,
    ) -> None:
        self._dtype = _dtype_of(cdata, dtype)
        itemsize = DTYPES[self._dtype].itemsize
        self._shape = tuple(shape)
        if any(size < 0 for size in self._shape):
            raise ShapeError(f"the shape {self._shape} has a negative size")
        self._strides = _packed(self._shape) if strides is None else _in_elements(strides, itemsize)
        if len(self._strides) != len(self._shape):
            raise LayoutError(f"there are {len(self._strides)} strides for the shape {self._shape}")
        last = sum((size - 1) * stride for size, stride in zip(self._shape, self._strides))
        self._nbytes = 0 if 0 in self._shape else (last + 1) * itemsize
        if ffi.typeof(cdata).kind == "array" and self._nbytes > ffi.sizeof(cdata):
            raise MemoryMissingError(
                f"the shape {self._shape} of {self._dtype} takes {self._nbytes} bytes, and the array has "
                f"{ffi.sizeof(cdata)}"
            )
        self._address = address_of(cdata)
        self._owner = (cdata, owner)
        self._pinned = not copy

    @property
    def copied(self) -> bool:
        """Whether it is to be copied, and neither held nor written."""
        return not self._pinned

    def __reduce__(self) -> Any:
        raise TypeError("a CDataTensor points at memory of this process and cannot be copied or pickled")

    def __repr__(self) -> str:
        return f"CDataTensor(shape={self._shape}, dtype={self._dtype})"


def from_cdata(
    cdata: Any,
    shape: Sequence[int],
    dtype: ScalarType | str | None = None,
    *,
    strides: Sequence[int] | None = None,
    owner: Any = None,
    copy: bool = False,
) -> CDataTensor:
    """Memory that a cffi pointer or array points at, as an input of a method. It is not copied here.

    The cdata, and `owner`, are held as long as the method may read the memory: during the call for an input
    that is planned, else until the inputs are replaced or the method is closed or gone. That keeps memory
    that the cdata owns (`ffi.new`, `ffi.gc`, `ffi.from_buffer`). Memory that it only points at (a `float *`
    that a C function returned, a member of a struct) must be kept for that time by its owner: name it in
    `owner`, or say `copy=True`.

    Args:
        cdata: a pointer or an array, of any FFI: `float *`, `int64_t[6]`, `void *`.
        shape: the size of each dimension. How much memory there is can be checked for an array only.
        dtype: a `ScalarType`, or its name ("float32"). It may be left out where the C type of the elements
            names it. Elements of a dtype that C has no type for are unsigned integers of its width
            (`uint16_t *` for float16 and bfloat16); `void *`, `char *` and `unsigned char *` may hold any.
        strides: the bytes from one element to the next, in each dimension; left out, the elements are packed,
            the last dimension fastest.
        owner: what else is to be held with the cdata.
        copy: True for memory that may be freed, or must not be written, after the call that takes the input.
            It is then read in that call and never pointed at.

    Raises:
        InputKindError: it is no pointer or array of numbers.
        DtypeError: no dtype is given and none can be told, or the C type is of another one.
        ShapeError, LayoutError: a negative size; strides that are negative, no whole number of elements, or
            another number than dimensions.
        MemoryMissingError: an array that is shorter than its shape.
    """
    return CDataTensor(cdata, shape, dtype, strides, owner, copy)


def describe_cdata(source: Any) -> Memory | None:
    """The memory of what `from_cdata` made, or None for anything else.

    Raises:
        InputKindError: it is a cdata without a shape.
    """
    if type(source) is not CDataTensor:
        if isinstance(source, ffi.CData):
            raise InputKindError("it is a cdata, which has no shape; pass et_cffi.from_cdata(cdata, shape)")
        return None
    return Memory(
        source._address,
        source._nbytes,
        source._dtype,
        source._shape,
        source._strides,
        source._owner,
        pinned=source._pinned,
    )


def pointer_to(address: Any, scalar_type: ScalarType, owner: Any) -> Any:
    """A typed pointer that holds `owner` as long as it is there."""
    name = _C_NAMES.get(scalar_type, f"uint{8 * DTYPES[scalar_type].itemsize}_t")
    # Who reads the memory: whoever holds the pointer. With it cffi keeps the destructor, and that the owner.
    return ffi.gc(ffi.cast(f"{name} *", address), lambda _pointer, _owner=owner: None)


def _dtype_of(cdata: Any, dtype: Any) -> ScalarType:
    ctype = ffi.typeof(cdata) if isinstance(cdata, ffi.CData) else None
    if ctype is None or ctype.kind not in {"pointer", "array"}:
        raise InputKindError(f"a cffi pointer or array of numbers is wanted, not {cdata!r}")
    item = ctype.item
    while item.kind == "array":
        item = item.item
    if item.kind not in {"primitive", "void"}:
        raise InputKindError(f"a cffi pointer or array of numbers is wanted, not {cdata!r}")
    itemsize = 1 if item.kind == "void" else ffi.sizeof(item)
    named = _BY_KIND.get((_KINDS.get(item.cname, ""), itemsize))
    if dtype is None:
        if named is None:
            raise DtypeError(f"'{ctype.cname}' does not say what its elements are; pass a dtype")
        return named
    wanted = BY_NAME.get(str(dtype))
    if wanted is None:
        raise DtypeError(f"there is no dtype {dtype!r}; it is a ScalarType or the name of one, as 'float32'")
    any_bytes = item.kind == "void" or item.cname in {"char", "unsigned char", "uint8_t"}
    nameless = wanted not in _BY_KIND.values() and DTYPES[wanted].itemsize == itemsize
    if named is wanted or any_bytes or (nameless and _KINDS.get(item.cname) == "u"):
        return wanted
    raise DtypeError(f"'{ctype.cname}' does not point at elements of the dtype {wanted}")


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _in_elements(strides: Sequence[int], itemsize: int) -> tuple[int, ...]:
    if any(stride < 0 or stride % itemsize for stride in strides):
        raise LayoutError(f"the strides {tuple(strides)} are no whole numbers of {itemsize}-byte elements")
    return tuple(stride // itemsize for stride in strides)

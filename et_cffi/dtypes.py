"""Scalar types: ExecuTorch's numbers, and the names, sizes and codes that go with them."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from et_cffi._lib import lib, text


class ScalarType(IntEnum):
    """The element type of a tensor, with ExecuTorch's values; `str()` gives the name numpy and torch use."""

    Byte = lib.ETCFFI_ScalarType_Byte
    Char = lib.ETCFFI_ScalarType_Char
    Short = lib.ETCFFI_ScalarType_Short
    Int = lib.ETCFFI_ScalarType_Int
    Long = lib.ETCFFI_ScalarType_Long
    Half = lib.ETCFFI_ScalarType_Half
    Float = lib.ETCFFI_ScalarType_Float
    Double = lib.ETCFFI_ScalarType_Double
    ComplexHalf = lib.ETCFFI_ScalarType_ComplexHalf
    ComplexFloat = lib.ETCFFI_ScalarType_ComplexFloat
    ComplexDouble = lib.ETCFFI_ScalarType_ComplexDouble
    Bool = lib.ETCFFI_ScalarType_Bool
    QInt8 = lib.ETCFFI_ScalarType_QInt8
    QUInt8 = lib.ETCFFI_ScalarType_QUInt8
    QInt32 = lib.ETCFFI_ScalarType_QInt32
    BFloat16 = lib.ETCFFI_ScalarType_BFloat16
    QUInt4x2 = lib.ETCFFI_ScalarType_QUInt4x2
    QUInt2x4 = lib.ETCFFI_ScalarType_QUInt2x4
    Bits1x8 = lib.ETCFFI_ScalarType_Bits1x8
    Bits2x4 = lib.ETCFFI_ScalarType_Bits2x4
    Bits4x2 = lib.ETCFFI_ScalarType_Bits4x2
    Bits8 = lib.ETCFFI_ScalarType_Bits8
    Bits16 = lib.ETCFFI_ScalarType_Bits16
    Float8_e5m2 = lib.ETCFFI_ScalarType_Float8_e5m2
    Float8_e4m3fn = lib.ETCFFI_ScalarType_Float8_e4m3fn
    Float8_e5m2fnuz = lib.ETCFFI_ScalarType_Float8_e5m2fnuz
    Float8_e4m3fnuz = lib.ETCFFI_ScalarType_Float8_e4m3fnuz
    UInt16 = lib.ETCFFI_ScalarType_UInt16
    UInt32 = lib.ETCFFI_ScalarType_UInt32
    UInt64 = lib.ETCFFI_ScalarType_UInt64

    def __str__(self) -> str:
        return DTYPES[self].name


class Dtype(NamedTuple):
    """One row of the table of scalar types (csrc/dtype.cpp holds it)."""

    name: str
    itemsize: int
    format: str  # the buffer protocol's code, "" where it has none
    typestr: str  # __array_interface__'s; an unsigned integer of the same width where it has no name
    in_dlpack: bool


def _row(scalar_type: ScalarType) -> Dtype:
    row = lib.etcffi_dtype_of(scalar_type)
    name, format = text(row.name), text(row.format)
    kind = {"?": "b", "Z": "c"}.get(format[:1])
    if kind is None:
        kind = "f" if format in {"e", "f", "d"} else "i" if format.islower() else "u"
    order = "|" if row.itemsize == 1 else "<"
    return Dtype(name, row.itemsize, format, f"{order}{kind}{row.itemsize}", row.dl_code >= 0)


DTYPES = {scalar_type: _row(scalar_type) for scalar_type in ScalarType}
BY_NAME = {dtype.name: scalar_type for scalar_type, dtype in DTYPES.items()}

# A format code names the kind, and the item size the width: some codes vary by platform.
_KINDS = {
    "float": {2: ScalarType.Half, 4: ScalarType.Float, 8: ScalarType.Double},
    "signed": {1: ScalarType.Char, 2: ScalarType.Short, 4: ScalarType.Int, 8: ScalarType.Long},
    "unsigned": {1: ScalarType.Byte, 2: ScalarType.UInt16, 4: ScalarType.UInt32, 8: ScalarType.UInt64},
    "bool": {1: ScalarType.Bool},
    "complex": {8: ScalarType.ComplexFloat, 16: ScalarType.ComplexDouble},
}
_CODES = {
    **dict.fromkeys("efd", "float"),
    **dict.fromkeys("bhilqn", "signed"),
    **dict.fromkeys("BHILQN", "unsigned"),
    "?": "bool",
    **dict.fromkeys(("Zf", "Zd", "F", "D"), "complex"),
}


def scalar_type_of_format(format: str, itemsize: int) -> ScalarType | None:
    """The scalar type of a buffer's format code and item size, or None where it names none.

    Only the host's own byte order can be read: "@", "=" and "<" are stripped (every platform that et_cffi
    builds on is little-endian), and anything else is not recognised.
    """
    code = format[1:] if format[:1] in {"@", "=", "<"} else format
    return _KINDS.get(_CODES.get(code, ""), {}).get(itemsize)

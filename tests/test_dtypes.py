"""Every scalar type of the runtime's headers has its name, its row and its bytes here."""

from __future__ import annotations

import re

from doc_blocks import ROOT
from support import FORMAT, ITEMSIZE

from et_cffi import ScalarType
from et_cffi.dtypes import DTYPES, scalar_type_of_format

HEADER = (ROOT / "include/et_cffi.h").read_text(encoding="utf-8")


def test_every_scalar_type_of_the_runtime_is_there():
    """The compiler sees to the C table; that Python has a name for each is seen to here."""
    values = {name: int(value) for name, value in re.findall(r"ETCFFI_ScalarType_(\w+) = (\d+)", HEADER)}
    del values["Undefined"]
    assert len(values) >= 30
    assert {each.name: each.value for each in ScalarType} == values


def test_their_sizes_and_codes():
    assert {dtype.name: dtype.itemsize for dtype in DTYPES.values()} == ITEMSIZE
    assert {dtype.name: dtype.format for dtype in DTYPES.values() if dtype.format} == FORMAT
    for name, code in FORMAT.items():
        assert str(scalar_type_of_format(code, ITEMSIZE[name])) == name

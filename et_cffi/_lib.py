"""The compiled module: the only place that imports it."""

from __future__ import annotations

import os
from typing import Any

from et_cffi._mapped import check_mapped

PACKAGE = os.path.dirname(os.path.abspath(__file__))
LIBRARY_DIR = os.path.join(PACKAGE, "lib")

# Before the loader sees the file name: it would hand over whatever libexecutorch the process already has.
check_mapped(LIBRARY_DIR)

from et_cffi import _capsule as _capsule_module  # noqa: E402
from et_cffi._et_cffi import ffi as _ffi  # noqa: E402
from et_cffi._et_cffi import lib as _lib  # noqa: E402

try:
    from et_cffi import _cpython as _cpython_module
except ImportError:  # PyPy has none
    _cpython_module = None

ffi: Any = _ffi
lib: Any = _lib
capsule: Any = _capsule_module
cpython: Any = _cpython_module

if lib.etcffi_initialize():
    raise ImportError("et_cffi: " + ffi.string(lib.etcffi_last_message()).decode())


def text(pointer: Any) -> str:
    """A C string as a str."""
    return str(ffi.string(pointer).decode("utf-8", "replace"))


def address_of(cdata: Any) -> int:
    """The address that a cdata pointer or array stands for."""
    return int(ffi.cast("uintptr_t", cdata))

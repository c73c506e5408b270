"""The compiled module: the only place that imports it."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from et_cffi._mapped import check_mapped

PACKAGE = os.path.dirname(os.path.abspath(__file__))
LIBRARY_DIR = os.path.join(PACKAGE, "lib")

if not os.path.isdir(LIBRARY_DIR):
    raise ImportError(
        f"{PACKAGE} is source code that has not been built. Build it in place (pip install -e .), or run "
        "Python from another directory, where it finds the package that was installed",
        name="et_cffi",
    )

# Before the loader sees the file name: it would hand over whatever libexecutorch the process already has.
check_mapped(LIBRARY_DIR)

from et_cffi._et_cffi import ffi as _ffi  # noqa: E402
from et_cffi._et_cffi import lib as _lib  # noqa: E402

ffi: Any = _ffi
lib: Any = _lib
capsule: Any = importlib.import_module("et_cffi._capsule")
# CPython's C API, where a plain buffer is described faster than by memoryview; PyPy has the faster one.
cpython: Any = None
if sys.implementation.name == "cpython":
    cpython = importlib.import_module("et_cffi._cpython")

if lib.etcffi_initialize():
    raise ImportError("et_cffi: " + ffi.string(lib.etcffi_last_message()).decode())


def text(pointer: Any) -> str:
    """A C string as a str."""
    return str(ffi.string(pointer).decode("utf-8", "replace"))


def address_of(cdata: Any) -> int:
    """The address that a cdata pointer or array stands for."""
    return int(ffi.cast("uintptr_t", cdata))

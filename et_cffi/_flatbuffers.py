"""The flatbuffers package, which only the readers of the developer tools' files need."""

from __future__ import annotations

import importlib
from typing import Any

from et_cffi._lib import ffi, lib


def schema(name: str) -> Any:
    """The generated accessors et_cffi/_schema/NAME.py.

    Raises:
        ModuleNotFoundError: the package flatbuffers is not installed.
    """
    try:
        importlib.import_module("flatbuffers")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "this needs the package flatbuffers; install it with: pip install et_cffi[devtools]",
            name="flatbuffers",
        ) from error
    return importlib.import_module(f"et_cffi._schema.{name}")


def verifies(kind: int, data: Any) -> bool:
    """Whether a file's offsets and lengths all lead inside of it. Python's flatbuffers looks at none of that:
    a wrong length would have it read for ever."""
    return not lib.etcffi_verify_file(kind, ffi.from_buffer(data), len(data))

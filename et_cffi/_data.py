"""Data that a program keeps outside of its own file: .ptd files, mapped, and buffers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from et_cffi._buffer import is_buffer, kept_bytes
from et_cffi._destructor import Destructor
from et_cffi._lib import ffi, lib
from et_cffi.errors import DataNotFoundError, check


class DataMap:
    """A map from names to data, and what it was made of: paths, and the buffers that it reads."""

    __slots__ = ("given", "handle")

    def __init__(self, handle: Any, given: list[str | memoryview]) -> None:
        self.handle = handle
        self.given = given


def load_data(given: Any) -> DataMap | None:
    """Opens what `data_path` names: nothing, a path, a buffer, or a list or tuple of these.

    Raises:
        DataNotFoundError: there is no such file.
        OSError: it cannot be opened.
        InvalidDataError: it is no whole .ptd, or two of them have the same name in them.
        TypeError: it is none of these.
    """
    if given is None:
        return None
    items: Sequence[Any] = given if isinstance(given, (list, tuple)) else (given,)
    made = ffi.new("etcffi_data_map **")
    check(lib.etcffi_data_map_new(made))
    # Who reads the buffers: the map, until its destructor has run and until every method that was loaded with
    # it is gone; each of their destructors holds them.
    kept: list[str | memoryview] = []
    handle = ffi.gc(made[0], Destructor(lib.etcffi_data_map_release, kept))
    for number, item in enumerate(items):
        if isinstance(item, (str, os.PathLike)):
            _add_file(handle, os.fsdecode(item))
            kept.append(os.path.abspath(os.fsdecode(item)))
        elif is_buffer(item):
            view = kept_bytes(item)
            kept.append(view)  # and not the cdata over it; program_from_buffer says why
            name = f"data buffer {number}".encode()
            check(lib.etcffi_data_map_add_buffer(handle, name, ffi.from_buffer(view), len(view), False))
        else:
            raise TypeError(
                "data_path is a path, a buffer that holds a .ptd file, or a list of these, and "
                f"item {number} of it is a {type(item).__name__}"
            )
    return DataMap(handle, kept)


def _add_file(handle: Any, path: str) -> None:
    try:
        with open(path, "rb"):  # the loader's own words for a missing file are a number
            pass
    except FileNotFoundError:
        raise DataNotFoundError(f"there is no data file '{path}'", path) from None
    check(lib.etcffi_data_map_add_file(handle, os.fsencode(path)))

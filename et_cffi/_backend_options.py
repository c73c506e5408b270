"""Options of backends, read while a method is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

from et_cffi._lib import ffi, lib

OptionValue = Union[bool, int, str]
BackendOptions = Mapping[str, Mapping[str, OptionValue]]

_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1


def options_array(given: BackendOptions | None) -> tuple[Any, list[Any]]:
    """An etcffi_backend_option[], and the strings it points to, to be kept as long as it is used.

    Raises:
        TypeError: a value is neither a bool, an int nor a str.
        ValueError: an int that does not fit the 32 bits that the runtime has for it.
    """
    flat = [
        (backend, key, value) for backend, options in (given or {}).items() for key, value in options.items()
    ]
    array, kept = ffi.new("etcffi_backend_option[]", len(flat)), []

    def string(value: str) -> Any:
        kept.append(ffi.new("char[]", value.encode()))
        return kept[-1]

    for item, (backend, key, value) in zip(array, flat):
        item.backend, item.key = string(backend), string(key)
        if isinstance(value, bool):  # before int, which it is too
            item.kind, item.as_int = lib.ETCFFI_OPTION_BOOL, value
        elif isinstance(value, int):
            if not _INT_MIN <= value <= _INT_MAX:
                raise ValueError(
                    f"the option '{key}' of {backend} is {value}, and the runtime has 32 bits for it"
                )
            item.kind, item.as_int = lib.ETCFFI_OPTION_INT, value
        elif isinstance(value, str):
            item.kind, item.as_string = lib.ETCFFI_OPTION_STRING, string(value)
        else:
            raise TypeError(
                f"the option '{key}' of {backend} is a bool, an int or a str, and not a "
                f"{type(value).__name__}"
            )
    return array, kept

"""The recording of what a program's methods do."""

from __future__ import annotations

from typing import Any

from et_cffi._lib import ffi, lib
from et_cffi.errors import ArgumentError, MethodStateError, check


class Tracer:
    """Records what the methods loaded with it do, for an ETDump."""

    __slots__ = ("_has_debug_buffer", "handle")

    def __init__(self, debug_buffer_size: int) -> None:
        made = ffi.new("etcffi_event_tracer **")
        check(lib.etcffi_event_tracer_new(debug_buffer_size, made))
        self.handle = ffi.gc(made[0], lib.etcffi_event_tracer_release)
        self._has_debug_buffer = debug_buffer_size > 0

    def write(self, etdump_path: Any, debug_buffer_path: Any) -> None:
        """Writes what was recorded since the last time, and starts over."""
        if debug_buffer_path is not None and not self._has_debug_buffer:
            raise ArgumentError(
                "there is no debug buffer to write; load the program with debug_buffer_size=..., or leave "
                "out debug_buffer_path"
            )
        made, made_debug = ffi.new("etcffi_tensor **"), ffi.new("etcffi_tensor **")
        check(lib.etcffi_event_tracer_take(self.handle, made, made_debug))
        dump = ffi.gc(made[0], lib.etcffi_tensor_release)
        debug = ffi.gc(made_debug[0], lib.etcffi_tensor_release)
        with open(etdump_path, "wb") as file:
            file.write(_content(dump))
        if debug_buffer_path is not None:
            with open(debug_buffer_path, "wb") as file:
                file.write(_content(debug))


def _content(tensor: Any) -> Any:
    memory = lib.etcffi_tensor_memory(tensor)
    return ffi.buffer(memory.data, memory.nbytes)


def make_tracer(enable_etdump: bool, debug_buffer_size: int) -> Tracer | None:
    """The tracer that these arguments ask for, or None.

    Raises:
        ValueError: a debug buffer without an ETDump, which would say what is in it, or of negative size.
    """
    if debug_buffer_size < 0:
        raise ValueError(f"debug_buffer_size is 0 or more, not {debug_buffer_size}")
    if debug_buffer_size and not enable_etdump:
        raise ValueError("debug_buffer_size is used with enable_etdump=True only")
    return Tracer(debug_buffer_size) if enable_etdump else None


def require_tracer(tracer: Tracer | None) -> Tracer:
    """The tracer, where there is one."""
    if tracer is None:
        raise MethodStateError("no ETDump was recorded; load the program with enable_etdump=True")
    return tracer

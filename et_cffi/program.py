"""A loaded program."""

from __future__ import annotations

import os
from enum import IntEnum
from typing import Any

from et_cffi._buffer import bytes_of, may_change
from et_cffi._destructor import Destructor
from et_cffi._lib import ffi, lib, text
from et_cffi._log import forward_log
from et_cffi.errors import ExecuTorchError, ProgramNotFoundError, UnknownMethodError, check, failure
from et_cffi.metadata import MethodMeta
from et_cffi.method import Method


class Verification(IntEnum):
    """How much of a program the runtime checks while it loads it."""

    Minimal = lib.ETCFFI_Verification_Minimal
    InternalConsistency = lib.ETCFFI_Verification_InternalConsistency


class Program:
    """A program: one or more methods and their weights. Any number of threads may use it at once.

    Made by `Runtime.load_program`.
    """

    def __init__(self, handle: Any, destructor: Destructor, source: Any) -> None:
        self._handle = handle
        self._destructor = destructor
        self._source = source
        self._indices: dict[str, int] = {}
        name = ffi.new("char const **")
        for index in range(lib.etcffi_program_num_methods(handle)):
            check(lib.etcffi_program_method_name(handle, index, name))
            self._indices[text(name[0])] = index

    @property
    def method_names(self) -> set[str]:
        """The names of the program's methods."""
        return set(self._indices)

    def metadata(self, method_name: str) -> MethodMeta:
        """What the program says of a method; the method is not loaded.

        Raises:
            UnknownMethodError: there is none of that name; the message names those there are.
        """
        if method_name not in self._indices:
            raise UnknownMethodError(
                f"the program has no method '{method_name}'; it has "
                + (", ".join(f"'{name}'" for name in self._indices) or "none")
            )
        self._require_handle()
        return MethodMeta(self._handle, self._indices[method_name])

    def load_method(self, name: str) -> Method:
        """Loads a method: a new one each time, with memory and state of its own. Load one for each thread.

        Raises:
            UnknownMethodError: there is none of that name; the message names those there are.
            OperatorMissingError: this runtime lacks kernels; the message names every one.
            BackendMissingError: it delegates to a backend that is not registered; the message names it.
        """
        metadata = self.metadata(name)
        self._require_handle()
        made = ffi.new("etcffi_method **")
        check(lib.etcffi_method_load(self._handle, name.encode(), made))
        # Who reads the program's bytes: this method, until its destructor has run, which therefore holds
        # them itself. The program object may be gone long before.
        destructor = Destructor(lib.etcffi_method_release, self._source)
        handle = ffi.gc(made[0], destructor)
        forward_log()
        return Method(handle, destructor, metadata)

    def _require_handle(self) -> None:
        if self._destructor.done:
            raise ExecuTorchError("the program is gone: the garbage collector has finalised it")

    def __repr__(self) -> str:
        return f"<et_cffi.Program with the methods {sorted(self._indices)}>"


def program_from_path(path: str, verification: Verification) -> Program:
    """Maps a file.

    Raises:
        ProgramNotFoundError: there is no such file.
        OSError: it cannot be opened.
        InvalidProgramError: it is no whole program.
    """
    try:
        with open(path, "rb"):
            pass
    except FileNotFoundError:
        raise ProgramNotFoundError(f"there is no file '{path}'", path) from None
    made = ffi.new("etcffi_program **")
    status = lib.etcffi_program_load_file(os.fsencode(path), int(verification), made)
    if status:
        raise failure(status)
    destructor = Destructor(lib.etcffi_program_release)
    handle = ffi.gc(made[0], destructor)
    forward_log()
    return Program(handle, destructor, None)


def program_from_buffer(source: Any, verification: Verification) -> Program:
    """Reads a program where it is, unless somebody could write there: then it is copied.

    Raises:
        InvalidProgramError: it is no whole program.
    """
    view = bytes_of(source)
    # A later write to the caller's buffer would change the program under the runtime.
    copied = may_change(view)
    data = ffi.from_buffer(view)
    made = ffi.new("etcffi_program **")
    status = lib.etcffi_program_load_buffer(data, len(view), copied, int(verification), made)
    if status:
        raise failure(status)
    # Who reads the bytes: the runtime, until the last of the program and its methods is destroyed. Each of
    # their destructors holds the bytes, beside the loader's handle, so that they outlive it whatever the
    # order in which a garbage collector finds them. They hold the view, and not the cdata over it: CPython's
    # collector empties a memoryview that it finds in a cycle, and the cdata would then give back a buffer of
    # a view that has none.
    kept = None if copied else view
    destructor = Destructor(lib.etcffi_program_release, kept)
    handle = ffi.gc(made[0], destructor)
    forward_log()
    return Program(handle, destructor, kept)

"""A loaded program."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

from et_cffi._backend_options import BackendOptions, options_array
from et_cffi._buffer import kept_bytes
from et_cffi._data import DataMap
from et_cffi._destructor import Destructor
from et_cffi._lib import ffi, lib, text
from et_cffi._log import forward_log
from et_cffi._tracer import Tracer, require_tracer
from et_cffi.errors import ExecuTorchError, ProgramNotFoundError, UnknownMethodError, check, failure
from et_cffi.memory import PlannedMemory
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

    def __init__(
        self,
        handle: Any,
        destructor: Destructor,
        source: str | memoryview,
        verification: Verification,
        data: DataMap | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._handle = handle
        self._destructor = destructor
        # The file's path, or the bytes that the runtime reads.
        self._source = source
        self._verification = verification
        self._data = data
        self._tracer = tracer
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

    def load_method(
        self,
        name: str,
        *,
        planned_memory: Sequence[Any] | None = None,
        backend_options: BackendOptions | None = None,
    ) -> Method:
        """Loads a method: a new one each time, with memory and state of its own. Load one for each thread.

        A method keeps its state (the exported module's buffers that it writes) from run to run, and begins
        with the values that the file has, or zeros. Where the program was exported with
        share_mutable_buffers=True, all methods loaded from this program have one state between them, and
        only one thread at a time may use any of them; load the program again for another state.

        Args:
            name: the method's name.
            planned_memory: where the method's planned buffers are to be: for each of
                `metadata(name).planned_buffers` a writable buffer (shared memory, huge pages, an array), or
                None for memory of the method's own. Each is at least 64 bytes longer than its planned
                buffer and begins at a multiple of 16. It is zeroed now, and belongs to the method until
                that is closed or dropped.
            backend_options: for a backend's name, options that it reads while the method is loaded, each
                a bool, an int or a str: {"XnnpackBackend": {"workspace_sharing_mode": 0}}.

        Raises:
            UnknownMethodError: there is none of that name; the message names those there are.
            OperatorMissingError: this runtime lacks kernels; the message names every one.
            BackendMissingError: it delegates to a backend that is not registered; the message names it.
            DataMissingError: its weights are in .ptd files that were not given; the message names them.
            ExecuTorchError: `planned_memory` or `backend_options` do not fit the method, and why.
        """
        metadata = self.metadata(name)
        self._require_handle()
        planned = None if planned_memory is None else PlannedMemory(planned_memory)
        options, strings = options_array(backend_options)
        load = ffi.new("etcffi_load_options *")
        load.data = self._data.handle if self._data is not None else ffi.NULL
        load.tracer = self._tracer.handle if self._tracer is not None else ffi.NULL
        if planned is not None:
            load.planned, load.num_planned = planned.regions, len(planned.regions)
        load.backend_options, load.num_backend_options = options, len(options)
        made = ffi.new("etcffi_method **")
        status = lib.etcffi_method_load_with(self._handle, name.encode(), load, made)
        del strings  # until here: `options` points to them
        if status:
            raise failure(status)
        # Who reads the program's bytes, its data and the planned memory: this method, until its destructor
        # has run, which therefore holds them itself. The program object may be gone long before.
        sources = (self._source, self._data.given if self._data is not None else None, planned)
        destructor = Destructor(lib.etcffi_method_release, sources)
        handle = ffi.gc(made[0], destructor)
        forward_log()
        return Method(handle, destructor, metadata, planned)

    def write_etdump_result_to_file(self, etdump_path: Any, debug_buffer_path: Any = None) -> None:
        """Writes what the program's methods did since it was loaded, or since this was last called.

        Args:
            etdump_path: the file for the ETDump, which `et_cffi.etdump` and `executorch.devtools` read.
            debug_buffer_path: the file for the results of every instruction (`debug_buffer_size` bytes),
                or None to leave them out.

        Raises:
            MethodStateError: the program was loaded without `enable_etdump`, or nothing was traced since.
            ArgumentError: `debug_buffer_path` is given, and the program was loaded without a debug buffer.
        """
        require_tracer(self._tracer).write(etdump_path, debug_buffer_path)

    def cdata(self) -> Any:
        """The program as an `etcffi_program *`, for C code that loads methods of its own from it.

        The pointer holds the program and its bytes. Hold it until the last method that C code loaded is
        released.
        """
        self._require_handle()
        return self._handle

    # Set by runtime.py: a runtime loads its libraries before it loads a program.
    _load_again: Callable[[Any, int, Any], Program]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles where to load the program from: its path, made absolute, or its bytes, and the same of its
        data files. The file has to be there where it is loaded again.

        Raises:
            TypeError: it records an ETDump, which is of this process.
        """
        if self._tracer is not None:
            raise TypeError(
                "a Program that records an ETDump belongs to its process and cannot be pickled; load it "
                "there, with enable_etdump=True"
            )
        data = None if self._data is None else [_portable(item, protocol) for item in self._data.given]
        return self._load_again, (_portable(self._source, protocol), int(self._verification), data)

    def _require_handle(self) -> None:
        if self._destructor.done:
            raise ExecuTorchError("the program is gone: the garbage collector has finalised it")

    def __repr__(self) -> str:
        return f"<et_cffi.Program with the methods {sorted(self._indices)}>"


def _portable(source: str | memoryview, protocol: int) -> Any:
    """A path as it is, and bytes as pickle takes them: from protocol 5 on without a copy."""
    from pickle import PickleBuffer

    if isinstance(source, str):
        return source
    return PickleBuffer(source) if protocol >= 5 else bytes(source)


def program_from_path(
    path: str,
    verification: Verification,
    data: DataMap | None = None,
    tracer: Tracer | None = None,
) -> Program:
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
    return Program(handle, destructor, os.path.abspath(path), verification, data, tracer)


def program_from_buffer(
    source: Any,
    verification: Verification,
    data: DataMap | None = None,
    tracer: Tracer | None = None,
) -> Program:
    """Reads a program where it is, unless somebody could write there: then it is copied.

    Raises:
        InvalidProgramError: it is no whole program.
    """
    view = kept_bytes(source)
    content = ffi.from_buffer(view)
    made = ffi.new("etcffi_program **")
    status = lib.etcffi_program_load_buffer(content, len(view), False, int(verification), made)
    if status:
        raise failure(status)
    # Who reads the bytes: the runtime, until the last of the program and its methods is destroyed. Each of
    # their destructors holds the bytes, beside the loader's handle, so that they outlive it whatever the
    # order in which a garbage collector finds them. They hold the view, and not the cdata over it: CPython's
    # collector empties a memoryview that it finds in a cycle, and the cdata would then give back a buffer of
    # a view that has none.
    destructor = Destructor(lib.etcffi_program_release, view)
    handle = ffi.gc(made[0], destructor)
    forward_log()
    return Program(handle, destructor, view, verification, data, tracer)

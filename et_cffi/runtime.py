"""The runtime: what it can run, and loading programs."""

from __future__ import annotations

import functools
import os
from typing import Any

from et_cffi._buffer import is_buffer
from et_cffi._data import load_data
from et_cffi._lib import LIBRARY_DIR, ffi, lib, text
from et_cffi._log import forward_log
from et_cffi._tracer import make_tracer
from et_cffi.errors import check
from et_cffi.program import Program, Verification, program_from_buffer, program_from_path

_SUFFIX = ".dylib" if os.uname().sysname == "Darwin" else ".so"

# The bundled libraries that register something as they load, each with a kernel or backend that tells
# whether another copy of it has registered already: registering twice ends the process, inside dlopen,
# where nothing can catch it.
_BUNDLED = (
    ("libexecutorch_kernels_optimized", lib.etcffi_has_kernel, b"aten::add.out"),
    (
        "libexecutorch_kernels_quantized",
        lib.etcffi_has_kernel,
        b"quantized_decomposed::dequantize_per_tensor.out",
    ),
    ("libexecutorch_backend_xnnpack", lib.etcffi_has_backend, b"XnnpackBackend"),
)


class BackendRegistry:
    """The backends that are registered."""

    @property
    def registered_backend_names(self) -> list[str]:
        """Their names, in the order of their registration."""
        return _names(lib.etcffi_num_backends(), lib.etcffi_backend_name)

    def is_available(self, backend_name: str) -> bool:
        """Whether a backend of that name is registered and can run here."""
        return bool(lib.etcffi_backend_is_available(backend_name.encode()))

    def set_input_needs(self, backend_name: str, *, padding: int, alignment: int) -> None:
        """Says what a backend needs of an input's memory in order to read it in place.

        Without it, and by default for every backend but XNNPACK (16 bytes of padding, no alignment), the
        inputs of methods that delegate to the backend are copied; memory on a device, which is not copied
        unasked, is refused. It counts for methods loaded afterwards.

        Args:
            backend_name: the backend's name in the registry; it need not be registered yet.
            padding: how many bytes behind the last element it may read.
            alignment: the address's alignment in bytes, a power of two.

        Raises:
            ValueError: a negative padding, or an alignment that is no power of two.
        """
        if padding < 0 or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(
                f"padding is 0 or more and alignment a power of two, not {padding} and {alignment}"
            )
        check(lib.etcffi_set_backend_needs(backend_name.encode(), padding, alignment))


class OperatorRegistry:
    """The operators that have a kernel."""

    @property
    def operator_names(self) -> set[str]:
        """Their names, such as "aten::add.out"."""
        return set(self._names())

    def _names(self) -> list[str]:
        return _names(lib.etcffi_num_kernels(), lib.etcffi_kernel_name)


class Runtime:
    """The ExecuTorch runtime of this process. `Runtime.get()` gives the only one.

    Attributes:
        backend_registry: the backends that are registered.
        operator_registry: the operators that have a kernel.
    """

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def get() -> Runtime:
        """The runtime, with the CPU kernels, the quantized kernels and XNNPACK loaded."""
        return Runtime()

    def __init__(self) -> None:
        for name, has, witness in _BUNDLED:
            if not has(witness):
                check(lib.etcffi_load_library(os.fsencode(os.path.join(LIBRARY_DIR, name + _SUFFIX))))
        forward_log()
        self.backend_registry = BackendRegistry()
        self.operator_registry = OperatorRegistry()

    def load_program(
        self,
        data: Any,
        *,
        verification: Verification = Verification.InternalConsistency,
        enable_etdump: bool = False,
        debug_buffer_size: int = 0,
        data_path: Any = None,
    ) -> Program:
        """Loads a program.

        Args:
            data: a path (str or os.PathLike), whose file is mapped and must not change while it is loaded;
                bytes or another buffer that nobody can write, which is read in place and kept; a buffer
                that somebody can (bytearray, an array), which is copied; or a file object opened for
                reading bytes.
            verification: how much the runtime checks.
            enable_etdump: whether to record what the program's methods do, for
                `Program.write_etdump_result_to_file`. They then run one at a time.
            debug_buffer_size: with `enable_etdump`, how many bytes of instructions' results to record as
                well, until the ETDump is written. A run whose results do not fit fails and says how many
                it needs.
            data_path: where the program's weights are kept outside of its file: the path of a .ptd, which is
                mapped; a buffer that holds one (as for `data`); or a list of these.

        Raises:
            FileNotFoundError: there is no such file, of the program or of its data.
            InvalidDataError: a data file is no whole one of this version.
            ValueError: `debug_buffer_size` without `enable_etdump`.
            InvalidProgramError: the data is no whole program of this version.
            TypeError: `data` is none of these.
        """
        tracer = make_tracer(enable_etdump, debug_buffer_size)
        if isinstance(data, (str, os.PathLike)):
            return program_from_path(os.fsdecode(data), verification, load_data(data_path), tracer)
        if is_buffer(data):
            return program_from_buffer(data, verification, load_data(data_path), tracer)
        if hasattr(data, "read"):
            content = data.read()
            if not isinstance(content, bytes):
                raise TypeError(
                    f"the file gives {type(content).__name__}, not bytes; open it in binary mode ('rb')"
                )
            return program_from_buffer(content, verification, load_data(data_path), tracer)
        raise TypeError(
            f"a program is loaded from a path, a buffer or a file object, not from a {type(data).__name__}"
        )

    def load_library(self, path: Any) -> None:
        """Loads a shared library of kernels or of a backend, which registers itself.

        Registering something twice ends the process, so the library is tried out in a copy of it first.

        Args:
            path: the library's file (str or os.PathLike).

        Raises:
            AlreadyRegisteredError: what it brings is registered already, or it is loaded already.
            LibraryError: it cannot be loaded, and the loader's reason.
        """
        check(lib.etcffi_load_library(os.fsencode(path)))
        forward_log()


def load_again(source: Any, verification: int, data: Any) -> Program:
    """Loads a pickled program, in this process."""
    return Runtime.get().load_program(source, verification=Verification(verification), data_path=data)


Program._load_again = staticmethod(load_again)


def _names(count: int, name_at: Any) -> list[str]:
    names, name = [], ffi.new("char const **")
    for index in range(count):
        check(name_at(index, name))
        names.append(text(name[0]))
    return names

"""The legacy surface: `executorch.extension.pybindings.portable_lib`, name by name, without torch.

A caller changes the import. docs/coming-from-executorch.md lists what behaves otherwise, and why.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from et_cffi._buffer import is_buffer
from et_cffi._data import DataMap, load_data
from et_cffi._lib import ffi, lib
from et_cffi._tracer import require_tracer
from et_cffi.errors import ArgumentError, InvalidDataError, check
from et_cffi.metadata import MethodMeta, TensorInfo
from et_cffi.method import Method
from et_cffi.program import Program, Verification
from et_cffi.runtime import Runtime
from et_cffi.threads import num_threads, set_num_threads

if TYPE_CHECKING:
    from et_cffi.bundled import BundledProgram

__all__ = [
    "BundledModule",
    "ExecuTorchMethod",
    "ExecuTorchModule",
    "ExecuTorchProgram",
    "MethodMeta",
    "PyDataLoader",
    "TensorInfo",
    "Verification",
    "_create_profile_block",
    "_dump_profile_results",
    "_get_operator_names",
    "_get_registered_backend_names",
    "_is_available",
    "_load_bundled_program_from_buffer",
    "_load_for_executorch",
    "_load_for_executorch_from_buffer",
    "_load_for_executorch_from_bundled_program",
    "_load_for_executorch_from_data_loader",
    "_load_program",
    "_load_program_from_buffer",
    "_reset_profile_results",
    "_threadpool_get_thread_count",
    "_unsafe_reset_threadpool",
]

_BUNDLED_POOL_SIZE = 16 * 1024


class _LateData:
    """What `data_path` or `data_map_buffer` gave. A file that is missing is an error now, and one that is no
    data file is one where the official binding has it: when the first method is loaded."""

    def __init__(self, given: Any) -> None:
        self._map: DataMap | None = None
        self._error: InvalidDataError | None = None
        try:
            self._map = load_data(given)
        except InvalidDataError as error:
            self._error = error

    def get(self) -> DataMap | None:
        if self._error is not None:
            raise self._error
        return self._map


class ExecuTorchModule:
    """A program whose methods are loaded when they are first used, and kept."""

    def __init__(self, program: Program, data: _LateData) -> None:
        self._program = program
        self._data = data
        self._methods: dict[str, Method] = {}

    def __call__(self, inputs: Any = (), clone_outputs: bool = True) -> list[Any]:
        """Runs the method `forward`."""
        return self.run_method("forward", inputs, clone_outputs)

    def run_method(self, method_name: str, inputs: Any = (), clone_outputs: bool = True) -> list[Any]:
        """Runs a method, as `et_cffi.Method.execute`."""
        return self._method(method_name).execute(inputs, clone_outputs=clone_outputs)

    def forward(self, inputs: Any = (), clone_outputs: bool = True) -> list[Any]:
        """Runs the method `forward`."""
        return self.run_method("forward", inputs, clone_outputs)

    def plan_execute(self, method_name: str, clone_outputs: bool = True) -> list[Any]:
        """Runs a method with the inputs that it has: those of `load_bundled_input`, or of the last run."""
        return self._method(method_name).execute(clone_outputs=clone_outputs)

    def load_bundled_input(self, bundle: BundledModule, method_name: str, testset_idx: int) -> None:
        """Sets a method's inputs to those of a test case, for `plan_execute`."""
        self._method(method_name).set_inputs(bundle._bundled.case(method_name, testset_idx).inputs)

    def verify_result_with_bundled_expected_output(
        self,
        bundle: BundledModule,
        method_name: str,
        testset_idx: int,
        rtol: float = 1e-5,
        atol: float = 1e-8,
    ) -> list[Any]:
        """Runs a method on a test case and compares.

        Returns:
            The outputs.

        Raises:
            VerificationError: they are not what the test case expects; the message has each output's report.
        """
        return _verify(self._method(method_name), bundle, testset_idx, rtol, atol)

    def has_etdump(self) -> bool:
        """Whether the module was loaded with `enable_etdump`."""
        return self._program._tracer is not None

    def write_etdump_result_to_file(self, path: str, debug_buffer_path: str | None = None) -> None:
        """As `et_cffi.Program.write_etdump_result_to_file`."""
        require_tracer(self._program._tracer).write(path, debug_buffer_path)

    def method_meta(self, method_name: str) -> MethodMeta:
        """What the program says of a method."""
        return self._program.metadata(method_name)

    def method_names(self) -> list[str]:
        """The names of the program's methods."""
        return list(self._program._indices)

    def __reduce__(self) -> Any:
        raise TypeError("a module holds native memory and cannot be pickled; load it again in each process")

    def _method(self, name: str) -> Method:
        method = self._methods.get(name)
        if method is None:
            self._program._data = self._data.get()
            method = self._methods.setdefault(name, self._program.load_method(name))
        return method


class ExecuTorchProgram:
    """A program; `load_method` gives a new method each time."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def num_methods(self) -> int:
        """How many methods the program has."""
        return len(self._program._indices)

    def get_method_name(self, method_index: int) -> str:
        """The name of a method, by its number.

        Raises:
            ArgumentError: there is no method of that number.
        """
        names = list(self._program._indices)
        if not 0 <= method_index < len(names):
            raise ArgumentError(f"the program has no method number {method_index}; it has {len(names)}")
        return names[method_index]

    def load_method(self, method_name: str) -> ExecuTorchMethod:
        """Loads a method, as `et_cffi.Program.load_method`."""
        return ExecuTorchMethod(self._program.load_method(method_name))

    def method_meta(self, method_name: str) -> MethodMeta:
        """What the program says of a method."""
        return self._program.metadata(method_name)

    def has_etdump(self) -> bool:
        """Whether the program was loaded with `enable_etdump`."""
        return self._program._tracer is not None

    def write_etdump_result_to_file(self, path: str, debug_buffer_path: str | None = None) -> None:
        """As `et_cffi.Program.write_etdump_result_to_file`."""
        self._program.write_etdump_result_to_file(path, debug_buffer_path)


class ExecuTorchMethod:
    """A loaded method."""

    def __init__(self, method: Method) -> None:
        self._method = method

    def set_inputs(self, inputs: Any) -> None:
        """As `et_cffi.Method.set_inputs`."""
        self._method.set_inputs(inputs)

    def execute(self) -> None:
        """Runs the method with the inputs of `set_inputs`."""
        self._method._execute_only()

    def get_outputs(self, clone_outputs: bool = True) -> list[Any]:
        """The outputs of the last run."""
        return self._method.get_outputs(clone_outputs)

    def call(self, inputs: Any = (), clone_outputs: bool = True) -> list[Any]:
        """Runs the method, as `et_cffi.Method.execute`."""
        return self._method.execute(inputs, clone_outputs=clone_outputs)

    def __call__(self, inputs: Any = (), clone_outputs: bool = True) -> list[Any]:
        """Runs the method, as `et_cffi.Method.execute`."""
        return self._method.execute(inputs, clone_outputs=clone_outputs)

    def method_meta(self) -> MethodMeta:
        """What the program says of the method."""
        return self._method.metadata

    def get_attribute(self, name: str) -> Any:
        """A named tensor of the method, in place."""
        return self._method.get_attribute(name)


class BundledModule:
    """A program and its test cases; `et_cffi.bundled` has more of them."""

    def __init__(self, bundled: BundledProgram) -> None:
        self._bundled = bundled
        self._methods: dict[str, Method] = {}

    def verify_result_with_bundled_expected_output(
        self, method_name: str, testset_idx: int, rtol: float = 1e-5, atol: float = 1e-8
    ) -> list[Any]:
        """Runs a method of the program inside on a test case and compares.

        Returns:
            The outputs.

        Raises:
            VerificationError: they are not what the test case expects; the message has each output's report.
        """
        if method_name not in self._methods:
            self._methods[method_name] = self._bundled.load_program().load_method(method_name)
        return _verify(self._methods[method_name], self, testset_idx, rtol, atol)


class PyDataLoader:
    """A source of a program's bytes. A subclass says how many there are, and gives any part of them."""

    def size(self) -> int:
        """How many bytes there are."""
        raise NotImplementedError

    def load(self, offset: int, size: int) -> Any:
        """`size` bytes from `offset` on, as bytes or another buffer."""
        raise NotImplementedError


def _verify(method: Method, bundle: BundledModule, index: int, rtol: float, atol: float) -> list[Any]:
    from et_cffi.bundled import require_passed

    outputs, report = bundle._bundled.run(method, index, rtol=rtol, atol=atol)
    require_passed(report)
    return outputs


def _open(
    source: Any,
    enable_etdump: bool,
    debug_buffer_size: int,
    verification: Verification,
    data_path: Any = None,
) -> Program:
    return Runtime.get().load_program(
        source,
        verification=Verification(verification),
        enable_etdump=enable_etdump,
        debug_buffer_size=debug_buffer_size,
        data_path=data_path,
    )


def _require_buffer(buffer: Any, name: str) -> Any:
    if not is_buffer(buffer):
        raise TypeError(f"{name} is bytes or another buffer, not a {type(buffer).__name__}")
    return buffer


def _load_for_executorch(
    program_path: str,
    data_path: str | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.InternalConsistency,
) -> ExecuTorchModule:
    """Loads a program from a file."""
    program = _open(os.fspath(program_path), enable_etdump, debug_buffer_size, program_verification)
    return ExecuTorchModule(program, _LateData(data_path))


def _load_for_executorch_from_buffer(
    buffer: bytes,
    data_map_buffer: bytes | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.InternalConsistency,
) -> ExecuTorchModule:
    """Loads a program from a buffer, which is held as long as anything reads it."""
    source = _require_buffer(buffer, "buffer")
    program = _open(source, enable_etdump, debug_buffer_size, program_verification)
    return ExecuTorchModule(program, _LateData(data_map_buffer))


def _load_for_executorch_from_bundled_program(
    module: BundledModule,
    data_map_buffer: bytes | str | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    *,
    data_path: str | None = None,
) -> ExecuTorchModule:
    """Loads the program of a bundled program. Its data is a buffer, or the path of a file."""
    if data_path is not None and data_map_buffer is not None:
        raise ArgumentError("data_map_buffer and data_path both name the program's data; give one of them")
    given = data_map_buffer if data_path is None else data_path
    program = _open(
        module._bundled.program, enable_etdump, debug_buffer_size, Verification.InternalConsistency
    )
    return ExecuTorchModule(program, _LateData(given))


def _load_for_executorch_from_data_loader(
    loader: PyDataLoader,
    data_path: str | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
) -> ExecuTorchModule:
    """Loads a program from a loader, whose bytes are read once, now."""
    if not hasattr(loader, "load") or not hasattr(loader, "size"):
        raise TypeError(
            f"the loader is a {type(loader).__name__}; it has to have the methods of et_cffi's PyDataLoader "
            "(one of the official binding is a C++ object, of which Python cannot read anything)"
        )
    content = bytes(loader.load(0, loader.size()))
    program = _open(content, enable_etdump, debug_buffer_size, Verification.InternalConsistency)
    return ExecuTorchModule(program, _LateData(data_path))


def _load_bundled_program_from_buffer(
    buffer: bytes, non_const_pool_size: int = _BUNDLED_POOL_SIZE
) -> BundledModule:
    """Loads a bundled program from a buffer.

    Args:
        buffer: the bytes of a .bpte.
        non_const_pool_size: as in the official binding, where it has no effect either: nothing is pooled.
    """
    from et_cffi import bundled

    if non_const_pool_size < 0:
        raise ArgumentError(f"non_const_pool_size is 0 or more, not {non_const_pool_size}")
    return BundledModule(bundled.load(_require_buffer(buffer, "buffer")))


def _load_program(
    path: str,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.Minimal,
    data_path: str | None = None,
) -> ExecuTorchProgram:
    """Loads a program from a file."""
    return ExecuTorchProgram(
        _open(os.fspath(path), enable_etdump, debug_buffer_size, program_verification, data_path)
    )


def _load_program_from_buffer(
    buffer: bytes,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.Minimal,
    data_path: str | None = None,
) -> ExecuTorchProgram:
    """Loads a program from a buffer, which is held as long as anything reads it."""
    source = _require_buffer(buffer, "buffer")
    return ExecuTorchProgram(_open(source, enable_etdump, debug_buffer_size, program_verification, data_path))


def _is_available(backend_name: str) -> bool:
    """Whether a backend is registered and can run here."""
    return Runtime.get().backend_registry.is_available(backend_name)


def _get_operator_names() -> list[str]:
    """The names of the registered operators, one for each kernel."""
    return Runtime.get().operator_registry._names()


def _get_registered_backend_names() -> list[str]:
    """The names of the registered backends."""
    return Runtime.get().backend_registry.registered_backend_names


def _create_profile_block(name: str) -> None:
    """Begins a block of the runtime's profiler, which kernels built with PROFILING_ENABLED feed."""
    check(lib.etcffi_profile_create_block(name.encode()))


def _dump_profile_results() -> bytes:
    """What the runtime's profiler has recorded, as its C structures; b"" where there is no block."""
    data, nbytes = ffi.new("void const **"), ffi.new("size_t *")
    check(lib.etcffi_profile_dump(data, nbytes))
    return bytes(ffi.buffer(data[0], nbytes[0])) if nbytes[0] else b""


def _reset_profile_results() -> None:
    """Empties the present block of the runtime's profiler."""
    check(lib.etcffi_profile_reset())


def _unsafe_reset_threadpool(num_threads: int) -> None:
    """Sets the number of threads, as `et_cffi.set_num_threads`: safe, in spite of its name.

    0 changes nothing.
    """
    if num_threads != 0:
        set_num_threads(num_threads)


def _threadpool_get_thread_count() -> int:
    """The number of threads that a run may use."""
    return num_threads()

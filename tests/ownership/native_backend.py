"""A backend of the tests' own: compiled against the SDK, loaded as a plug-in, called back while it runs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import model_index

from et_cffi import Method, Program, Runtime
from et_cffi._lib import LIBRARY_DIR

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent
_HOOK = ctypes.CFUNCTYPE(None)
_EXPORTED_FOR = b"BackendWithCompilerDemo"


def sdk() -> Any:
    """The module sdk.py of this tree, which is not installed."""
    spec = importlib.util.spec_from_file_location("et_cffi_sdk", TREE / "sdk.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_native(source: str, product: Path, *flags: str) -> Path:
    """Compiles a file of native/ against the SDK's headers and the runtime that this process uses."""
    module = sdk()
    found = module.find()
    command = [*module.cxx(), *found.compile_flags, "-O1", "-Wall", *flags, str(HERE / "native" / source)]
    command += [f"-L{LIBRARY_DIR}", "-lexecutorch", f"-Wl,-rpath,{LIBRARY_DIR}", "-o", str(product)]
    subprocess.run(command, check=True)
    return product


class Backend:
    """The backend, under each of its names."""

    def __init__(self, library: Path) -> None:
        Runtime.get().load_library(library)
        self._library = ctypes.CDLL(str(library))
        assert self._library.ownership_registered()

    @staticmethod
    def name(number: int) -> str:
        return f"EtCffiOwnershipTest{number:04}"

    @functools.cache  # noqa: B019 - there is one
    def program(self, number: int) -> Program:
        """(x, y, z) -> (x + y reshaped, z * 2), all unplanned: the delegate reads x, and y through a view."""
        data = model_index.path("missing_backend_reached").read_bytes()
        assert data.count(_EXPORTED_FOR) == 1
        return Runtime.get().load_program(data.replace(_EXPORTED_FOR, self.name(number).encode()))

    def load(self, number: int) -> Method:
        return self.program(number).load_method("forward")

    @contextlib.contextmanager
    def calling(self, hook: Callable[[], None]) -> Iterator[None]:
        """Calls `hook` in the middle of each run, on the thread that runs."""
        called = _HOOK(hook)
        self._library.ownership_set_hook(called)
        try:
            yield
        finally:
            self._library.ownership_set_hook(None)

"""Run ExecuTorch programs (.pte) with plain memory and no PyTorch.

```python
import numpy
from et_cffi import Runtime

method = Runtime.get().load_program("tests/models/digits.pte").load_method("forward")
result = method.execute([numpy.load("tests/models/digit.npy")])[0]
scores = numpy.asarray(result)
```
"""

from __future__ import annotations

import os
from typing import Any

from et_cffi import errors
from et_cffi._lib import LIBRARY_DIR, PACKAGE, ffi, lib
from et_cffi.cdata import from_cdata
from et_cffi.device import Device, DeviceType
from et_cffi.dtypes import ScalarType
from et_cffi.errors import ExecuTorchError
from et_cffi.layout import lay_out
from et_cffi.memory import MemoryUse, PlannedBuffer
from et_cffi.metadata import MethodMeta, TensorInfo
from et_cffi.method import Method
from et_cffi.method_pool import MethodPool
from et_cffi.portable_lib import ExecuTorchMethod, ExecuTorchProgram
from et_cffi.program import Program, Verification
from et_cffi.runtime import BackendRegistry, OperatorRegistry, Runtime
from et_cffi.tensor_buffer import TensorBuffer
from et_cffi.threads import num_threads, set_num_threads

__version__ = "0.1.0"

# Which build this is, in the official binding's words: nothing here links libtorch.
_links_torch = False

__all__ = [
    "BackendRegistry",
    "Device",
    "DeviceType",
    "ExecuTorchError",
    "ExecuTorchMethod",
    "ExecuTorchProgram",
    "MemoryUse",
    "Method",
    "MethodMeta",
    "MethodPool",
    "OperatorRegistry",
    "PlannedBuffer",
    "Program",
    "Runtime",
    "ScalarType",
    "TensorBuffer",
    "TensorInfo",
    "Verification",
    "errors",
    "ffi",
    "ffi_builder",
    "from_cdata",
    "get_include",
    "get_library_dir",
    "lay_out",
    "lib",
    "num_threads",
    "set_num_threads",
]


def get_include() -> str:
    """The directory that holds et_cffi.h, for a C or C++ program."""
    return os.path.join(PACKAGE, "include")


def get_library_dir() -> str:
    """The directory that holds libet_cffi and the runtime's libraries, for a C or C++ program's linker."""
    return LIBRARY_DIR


def ffi_builder() -> Any:
    """A `cffi.FFI` for another extension module's builder to include: `ffi.include(et_cffi.ffi_builder())`.

    The module that is built then has the types and constants of et_cffi.h, the same ones that `et_cffi.ffi`
    has, and its `lib` has the functions. It needs the package `cffi`, and `et_cffi` wherever it is imported.
    """
    from et_cffi._builder import builder

    return builder(get_include())

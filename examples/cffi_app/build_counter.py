"""Builds the extension module _counter, which includes et_cffi's.

python build_counter.py [DIRECTORY]    # where to put the module; beside this file by default
"""

from __future__ import annotations

import sys
from pathlib import Path

import cffi

import et_cffi

HERE = Path(__file__).resolve().parent


def builder() -> cffi.FFI:
    """What `cffi_modules` in a setup.py names, too."""
    ffi = cffi.FFI()
    # etcffi_program, etcffi_status and the like are then the same types here as in et_cffi.ffi.
    ffi.include(et_cffi.ffi_builder())
    ffi.cdef((HERE / "counter.h").read_text())
    ffi.set_source(
        "_counter",
        '#include <et_cffi.h>\n#include "counter.h"\n',
        sources=[str(HERE / "counter.c")],
        include_dirs=[str(HERE), et_cffi.get_include()],
        libraries=["et_cffi"],
        library_dirs=[et_cffi.get_library_dir()],
        # Not needed where et_cffi is imported first, as app.py does.
        runtime_library_dirs=[et_cffi.get_library_dir()],
    )
    return ffi


if __name__ == "__main__":
    builder().compile(tmpdir=sys.argv[1] if len(sys.argv) > 1 else str(HERE), verbose=True)

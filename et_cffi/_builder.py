"""A builder's FFI that stands for the compiled module, for the builders of other modules to include."""

from __future__ import annotations

import os
import re
from typing import Any

# As build_ffi.py, which has no package to import yet, cuts it out.
_READ_BY_CFFI = re.compile(r"^/\* -- begin: read by cffi -+ \*/$(.*)^/\* -- end: read by cffi", re.M | re.S)


def builder(include: str) -> Any:
    """A cffi.FFI with the declarations of et_cffi.h in the directory `include`."""
    import cffi

    with open(os.path.join(include, "et_cffi.h"), encoding="utf-8") as file:
        (declarations,) = _READ_BY_CFFI.findall(file.read())
    ffi = cffi.FFI()
    ffi.cdef(re.sub(r"\bETCFFI_API\b", "", declarations))
    # Not to be compiled again: whoever includes this imports the module of that name.
    ffi.set_source("et_cffi._et_cffi", '#include "et_cffi.h"\n')
    return ffi

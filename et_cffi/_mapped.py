"""Refuses to start beside another version of the runtime.

The dynamic linker matches a library that a process already holds by its name alone. If another package has
loaded its own libexecutorch, the wrapper would be bound to that one, whose classes may have another layout.
This module looks for one before the compiled module is loaded.
"""

from __future__ import annotations

import os
import sys

_DELETED = " (deleted)"


def check_mapped(bundled: str | os.PathLike[str]) -> None:
    """Raise ImportError if the process holds a libexecutorch of another version than that in `bundled`."""
    directory = os.fspath(bundled)
    name = "libexecutorch.dylib" if sys.platform == "darwin" else "libexecutorch.so"
    own = os.path.join(directory, name)
    for path in _mapped_dyld(name) if sys.platform == "darwin" else _mapped_linux(name):
        if path == os.path.realpath(own):
            continue
        ours, theirs = _version(own), _version(path)
        same = _same_content(path, own) if theirs is None else theirs == ours
        if not same:
            raise ImportError(
                f"this process has already loaded ExecuTorch {theirs or '(unknown version)'} from {path}, "
                f"and et_cffi needs ExecuTorch {ours or '(unknown version)'}, which it brings in {own}. "
                "A process can hold only one of them: install the same version of both packages, or use "
                "them in two processes."
            )


def _mapped_linux(name: str) -> list[str]:
    try:
        # As bytes: reading a large process's map is then a matter of microseconds.
        with open("/proc/self/maps", "rb") as file:
            maps = file.read()
    except OSError:
        return []
    ending = b"/" + name.encode()
    if ending not in maps:
        return []
    found = []
    for line in maps.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].endswith((ending, ending + _DELETED.encode())):
            path = os.fsdecode(fields[5])
            if path not in found:
                found.append(path)
    return found


def _mapped_dyld(name: str) -> list[str]:
    import ctypes

    dyld = ctypes.CDLL(None)
    dyld._dyld_get_image_name.restype = ctypes.c_char_p
    dyld._dyld_get_image_name.argtypes = [ctypes.c_uint32]
    images = [dyld._dyld_get_image_name(index) or b"" for index in range(dyld._dyld_image_count())]
    return [os.path.realpath(os.fsdecode(path)) for path in images if path.endswith(b"/" + name.encode())]


def _version(library: str) -> str | None:
    """What the files around a library say its version is."""
    if library.endswith(_DELETED):
        # What is at the path now, if anything, is not what the process holds.
        return None
    directory = os.path.dirname(library)
    try:
        with open(os.path.join(directory, "EXECUTORCH_VERSION"), encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        pass
    try:
        with open(os.path.join(os.path.dirname(directory), "version.py"), encoding="utf-8") as file:
            for line in file:
                if line.startswith("__version__"):
                    # __version__ = "1.5.1+cpu"
                    return line.partition("=")[2].strip().strip("\"'").partition("+")[0]
    except OSError:
        pass
    return None


def _same_content(path: str, own: str) -> bool:
    try:
        if os.path.getsize(path) != os.path.getsize(own):
            return False
        with open(path, "rb") as one, open(own, "rb") as other:
            return one.read() == other.read()
    except OSError:
        return False

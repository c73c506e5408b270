"""Refuses to start beside another version of the runtime.

The dynamic linker matches a library that a process already holds by its name alone. If another package has
loaded its own libexecutorch, the wrapper would be bound to that one, whose classes may have another layout,
and so for each library beside it. (Two versions may have a libexecutorch in common: 1.5.0's is the same file
as 1.5.1's, and the others are not.) This module looks for them before the compiled module is loaded.
"""

from __future__ import annotations

import os
import sys

_DELETED = " (deleted)"


def check_mapped(bundled: str | os.PathLike[str]) -> None:
    """Raise ImportError if the process holds a library of another version than that in `bundled`."""
    directory = os.fspath(bundled)
    ours = None
    for path in _mapped_dyld() if sys.platform == "darwin" else _mapped_linux():
        own = os.path.join(directory, os.path.basename(path[: -len(_DELETED)] if _is_deleted(path) else path))
        if path == os.path.realpath(own) or not os.path.exists(own):
            continue
        ours, theirs = ours or _version(own), _version(path)
        same = _same_content(path, own) if theirs is None else theirs == ours
        if not same:
            raise ImportError(
                f"this process has already loaded ExecuTorch {theirs or '(unknown version)'} from {path}, "
                f"and et_cffi needs ExecuTorch {ours or '(unknown version)'}, which it brings in {own}. "
                "A process can hold only one of them: install the same version of both packages, or use "
                "them in two processes."
            )


def _mapped_linux() -> list[str]:
    try:
        # As bytes: reading a large process's map is then a matter of microseconds.
        with open("/proc/self/maps", "rb") as file:
            maps = file.read()
    except OSError:
        return []
    if b"/libexecutorch" not in maps:
        return []
    found = []
    for line in maps.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and b"/libexecutorch" in fields[5]:
            path = os.fsdecode(fields[5])
            if path not in found:
                found.append(path)
    return found


def _mapped_dyld() -> list[str]:
    import ctypes

    dyld = ctypes.CDLL(None)
    dyld._dyld_get_image_name.restype = ctypes.c_char_p
    dyld._dyld_get_image_name.argtypes = [ctypes.c_uint32]
    images = [dyld._dyld_get_image_name(index) or b"" for index in range(dyld._dyld_image_count())]
    return [os.path.realpath(os.fsdecode(path)) for path in images if b"/libexecutorch" in path]


def _is_deleted(path: str) -> bool:
    return path.endswith(_DELETED)


def _version(library: str) -> str | None:
    """What the files around a library say its version is."""
    if _is_deleted(library):
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

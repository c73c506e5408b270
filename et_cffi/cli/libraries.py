"""The runtime's libraries: which are bundled, and which of them, or of others, this process holds."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from et_cffi._lib import LIBRARY_DIR


class Library(NamedTuple):
    """A library file. `loaded` is None where the system does not tell (other than Linux)."""

    name: str
    path: str
    nbytes: int
    bundled: bool
    loaded: bool | None


def executorch_version() -> str:
    """The version of ExecuTorch whose libraries are bundled."""
    return Path(LIBRARY_DIR, "EXECUTORCH_VERSION").read_text(encoding="utf-8").strip()


def bundled_names() -> list[str]:
    """The file names of the bundled libraries, without their suffix."""
    return sorted(path.stem for path in Path(LIBRARY_DIR).iterdir() if path.suffix in {".so", ".dylib"})


def libraries() -> list[Library]:
    """The bundled libraries, then whatever else of ExecuTorch or torch this process holds."""
    mapped = _mapped()
    own = sorted(path for path in Path(LIBRARY_DIR).iterdir() if path.suffix in {".so", ".dylib"})
    found = [
        Library(
            path.stem,
            str(path),
            path.stat().st_size,
            True,
            None if mapped is None else str(path.resolve()) in mapped,
        )
        for path in own
    ]
    others = sorted((mapped or set()) - {str(path.resolve()) for path in own})
    for other in others:
        name = Path(other).name
        if name.startswith(("libexecutorch", "libtorch")) and ".so" in name:
            nbytes = Path(other).stat().st_size if Path(other).exists() else 0
            found.append(Library(name.partition(".so")[0], other, nbytes, False, True))
    return found


def _mapped() -> set[str] | None:
    if sys.platform != "linux":
        return None
    lines = Path("/proc/self/maps").read_bytes().splitlines()
    fields = (line.split(None, 5) for line in lines)
    return {os.fsdecode(each[5]) for each in fields if len(each) == 6 and each[5].startswith(b"/")}

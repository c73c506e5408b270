"""Compiles floor.cpp and copies.c, against the libraries that et_cffi brings."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

from peers import HERE, ROOT, Peers

import et_cffi

sys.path.insert(0, str(ROOT))
import sdk


@functools.lru_cache
def floor(peers: Peers) -> Path:
    """The program of floor.cpp."""
    libraries = et_cffi.get_library_dir()
    names = (
        "executorch",
        "executorch_kernels_optimized",
        "executorch_backend_xnnpack",
        "executorch_threadpool",
    )
    # Kernels and backends register themselves when they are loaded; nothing refers to them.
    link = [
        "-Wl,--no-as-needed",
        *[f"-l{name}" for name in names],
        f"-L{libraries}",
        f"-Wl,-rpath,{libraries}",
    ]
    command = [*sdk.cxx(), "-O2", *sdk.find().compile_flags, str(HERE / "floor.cpp"), *link]
    return _build(command, peers.work / "floor")


@functools.lru_cache
def copies(peers: Peers) -> Path:
    """The library of copies.c."""
    flags = ["-O3", "-fPIC", "-shared", "-fno-builtin", "-fno-tree-loop-distribute-patterns"]
    return _build([*sdk.cxx(), "-xc", *flags, str(HERE / "copies.c")], peers.work / "libcopies.so")


def _build(command: list[str], out: Path) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, "-o", str(out)], check=True)
    return out

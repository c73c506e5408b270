"""The ExecuTorch SDK (headers and libraries of the PyPI wheel): where it is, how to compile against it.

`python sdk.py` prints the directory that a build would use, after fetching it if need be.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

VERSION = "1.5.1"
HERE = Path(__file__).resolve().parent
SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"

# What is bundled: the runtime, everything that this package links, and the kernels and backend it loads.
LIBRARIES = [
    f"lib{name}{SUFFIX}"
    for name in (
        "executorch",
        "executorch_threadpool",
        "executorch_etdump",
        "executorch_kernels_optimized",
        "executorch_kernels_quantized",
        "executorch_backend_xnnpack",
    )
]

# By sysconfig.get_platform(): pip's platform tag and the wheel's SHA-256. The libraries do not depend on the
# version of Python, so one wheel serves all. The macOS wheel of this version holds no shared libraries.
WHEELS = {
    "linux-x86_64": (
        "manylinux_2_28_x86_64",
        "04897dffff8d96e8af32f554c758d0a7d4f50af5c3530c90dc8d5319bb44c878",
    ),
    "linux-aarch64": (
        "manylinux_2_28_aarch64",
        "2c177f7922354a8a0d6111628c954519b87549598640e5e0042bef137b4cb83c",
    ),
}

WHAT_TO_DO = (
    f"et_cffi is built against ExecuTorch {VERSION}. Do one of these:\n"
    f"  - set ET_CFFI_SDK to a directory that holds the unpacked wheel executorch=={VERSION} (its\n"
    "    include/executorch and lib/, or the directory above);\n"
    f"  - install it (pip install --no-deps executorch=={VERSION}) and build with --no-build-isolation;\n"
    "  - let pip reach a package index, so that the build can fetch it."
)


class SDKError(Exception):
    """There is no usable SDK; the message says everything that the user is to know."""


class SDK(NamedTuple):
    root: Path  # the directory that holds include/ and lib/

    @property
    def lib(self) -> Path:
        return self.root / "lib"

    @property
    def schema(self) -> Path:
        return self.root / "schema"

    @property
    def compile_flags(self) -> list[str]:
        include = self.root / "include"
        c10 = include / "executorch/runtime/core/portable_type/c10"
        return [
            "-std=c++17",
            "-DC10_USING_CUSTOM_GENERATED_MACROS",
            "-DET_EVENT_TRACER_ENABLED",
            f"-isystem{include}",
            f"-isystem{c10}",
        ]


def cxx() -> list[str]:
    """The C++ compiler, as the start of a command."""
    command = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or "g++"]
    if shutil.which(command[0]) is None:
        raise SDKError(f"no C++ compiler: {command[0]} was not found. Install one, or set CXX.")
    return command


def version_of(root: Path) -> str | None:
    """The version that executorch/version.py states, without a local part such as +cpu."""
    try:
        text = (root / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"""^__version__\s*=\s*["']([^"'+]+)""", text, re.MULTILINE)
    return match.group(1) if match else None


def is_root(root: Path) -> bool:
    return (root / "include" / "executorch").is_dir() and (root / "lib" / LIBRARIES[0]).is_file()


def find(fetch: bool = True) -> SDK:
    """The SDK named by ET_CFFI_SDK, else that of an installed executorch, else that of the fetched wheel."""
    named = os.environ.get("ET_CFFI_SDK")
    if named:
        return from_directory(Path(named))
    return from_installed() or from_cache() or (from_index() if fetch else missing("none was found"))


def missing(reason: str) -> SDK:
    raise SDKError(f"No ExecuTorch SDK: {reason}.\n{WHAT_TO_DO}")


def from_directory(directory: Path) -> SDK:
    for root in (directory.absolute(), directory.absolute() / "executorch"):
        if is_root(root):
            break
    else:
        # pip builds an sdist in a directory of its own.
        where = "" if directory.is_absolute() else f", taken from {Path.cwd()} where this build runs"
        return missing(
            f"ET_CFFI_SDK is {directory}{where}, and neither it nor its executorch/ holds both "
            f"include/executorch and lib/{LIBRARIES[0]}"
        )
    version = version_of(root)
    if version != VERSION:
        return missing(
            f"ET_CFFI_SDK is {directory}, which holds version {version or '(unknown: no version.py)'}, "
            f"and version {VERSION} is needed"
        )
    return complete(SDK(root))


def from_installed() -> SDK | None:
    # The package is located, never imported: importing it costs seconds, and may load its own libraries.
    spec = importlib.util.find_spec("executorch")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        root = Path(location)
        if is_root(root):
            if version_of(root) == VERSION:
                return complete(SDK(root))
            print(
                f"sdk.py: the installed executorch is {version_of(root)}, not {VERSION}; leaving it aside",
                file=sys.stderr,
            )
    return None


def cache_directory() -> Path:
    return HERE / "build" / f"executorch-{VERSION}-{sysconfig.get_platform()}"


def from_cache() -> SDK | None:
    root = cache_directory() / "executorch"
    return complete(SDK(root)) if is_root(root) else None


def from_index() -> SDK:
    target = sysconfig.get_platform()
    if target not in WHEELS:
        return missing(f"the package index holds no libraries of it for {target}")
    tag, sha256 = WHEELS[target]
    with tempfile.TemporaryDirectory() as scratch:
        wheel = download(tag, Path(scratch))
        verify(wheel, sha256)
        unpacked = Path(scratch, "unpacked")
        unpack(wheel, unpacked)
        place = cache_directory()
        place.parent.mkdir(parents=True, exist_ok=True)
        # Through a second name, so that what stands in the cache is always whole.
        partial = Path(tempfile.mkdtemp(prefix=place.name, dir=place.parent))
        try:
            shutil.copytree(unpacked, partial, dirs_exist_ok=True)
            try:
                partial.rename(place)
            except OSError:  # another build was faster
                if not is_root(place / "executorch"):
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return complete(SDK(place / "executorch"))


def download(tag: str, scratch: Path) -> Path:
    arguments = ["download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    arguments += ["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--platform", tag]
    arguments += ["--dest", str(scratch), f"executorch=={VERSION}"]
    print(f"sdk.py: fetching executorch=={VERSION} ({tag})", file=sys.stderr, flush=True)
    said = "there is no pip"
    for pip in ([sys.executable, "-m", "pip"], [shutil.which("pip") or shutil.which("pip3")]):
        if pip[0] is None:
            continue
        done = subprocess.run([*pip, *arguments], capture_output=True, text=True)
        wheels = list(scratch.glob("executorch-*.whl"))
        if done.returncode == 0 and wheels:
            return wheels[0]
        if "No module named pip" not in done.stderr:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            said = lines[-1] if lines else done.stderr.strip() or f"exit status {done.returncode}"
            break
    missing(f"pip could not fetch executorch=={VERSION} for {tag} ({said})")
    raise AssertionError


def verify(wheel: Path, expected: str) -> None:
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != expected:
        raise SDKError(
            f"{wheel.name} is not the file that et_cffi was written against:\n"
            f"  its SHA-256 is {found}\n  and should be {expected}"
        )


def unpack(wheel: Path, target: Path) -> None:
    wanted = (
        "executorch/include/",
        "executorch/schema/",
        "executorch/version.py",
        # Read by tools/generate_schema.py only.
        "executorch/devtools/bundled_program/schema/",
        "executorch/devtools/etdump/",
        "executorch/extension/flat_tensor/serialize/",
    )
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(wanted) or name in [f"executorch/lib/{library}" for library in LIBRARIES]:
                archive.extract(name, target)


def complete(sdk: SDK) -> SDK:
    lacking = [name for name in LIBRARIES if not (sdk.lib / name).is_file()]
    return missing(f"{sdk.lib} lacks {', '.join(lacking)}") if lacking else sdk


if __name__ == "__main__":
    try:
        print(find().root)
    except SDKError as error:
        raise SystemExit(f"error: {error}") from None

"""python -m et_cffi doctor: what is installed and loaded, and whether it works."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import et_cffi
from et_cffi import Runtime
from et_cffi._lib import PACKAGE
from et_cffi.cli import libraries, show
from et_cffi.cli.failure import FAILED, line_of
from et_cffi.cli.measuring import processors

SUMMARY = "what is installed and loaded, and whether it works"

DESCRIPTION = """\
Prints what there is (versions, libraries and whether they are loaded, backends, operators, threads,
packages that the other commands use), whether torch or another copy of ExecuTorch is in the way, and
runs two small models that come with the package, whose results are known.

examples:
  python -m et_cffi doctor
  python -m et_cffi doctor --json

exit status: 0; 1 if something does not work; 2 for bad use.
"""

_SELF_TESTS = Path(PACKAGE, "selftest")
_TOLERANCE = 1e-4

# Packages that add something, and what.
_PACKAGES = {
    "numpy": "arrays, needed by most commands",
    "flatbuffers": "bundled programs, profile",
    "rich": "tables on a terminal",
    "tqdm": "progress bars",
    "matplotlib": "--plot",
    "shtab": "completion for zsh and tcsh",
}


class Finding(NamedTuple):
    """Something that was looked at. `state` is "ok", "note" (works, and is worth knowing) or "FAILED"."""

    what: str
    state: str
    detail: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def execute(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    findings = [finding for look in _LOOKS for finding in _looked(look)]
    failed = [finding for finding in findings if finding.state == "FAILED"]
    if arguments.json:
        known = {
            "healthy": not failed,
            "findings": [finding._asdict() for finding in findings],
            "libraries": [library._asdict() for library in libraries.libraries()],
        }
        print(json.dumps(known))
    else:
        show.table(["what", "state", "detail"], [[each.what, each.state, each.detail] for each in findings])
        print()
        print(f"{show.count(len(failed), 'thing')} failed" if failed else "everything works")
    return FAILED if failed else 0


def _looked(look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What a look found; an error ends that look alone."""
    try:
        yield from look()
    except Exception as error:  # whatever is wrong here is what the command is for
        yield Finding(look.__name__.strip("_").replace("_", " "), "FAILED", line_of(error))


def _versions() -> Iterator[Finding]:
    python = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    yield Finding("python", "ok", f"{python}, {platform.system()} on {platform.machine()}")
    yield Finding("et_cffi", "ok", f"{et_cffi.__version__}, {PACKAGE}")
    yield Finding("ExecuTorch", "ok", libraries.executorch_version())


def _libraries() -> Iterator[Finding]:
    Runtime.get()
    for library in libraries.libraries():
        where = show.size(library.nbytes)
        if not library.bundled:
            yield Finding(library.name, "note", f"another package's, loaded from {library.path}")
        elif library.loaded is False:
            # Another copy under the same name, loaded before, is used in its place.
            yield Finding(library.name, "note", f"{where}, not loaded: the process had another one")
        else:
            yield Finding(library.name, "ok", where + ("" if library.loaded is None else ", loaded"))


def _torch() -> Iterator[Finding]:
    if "torch" in sys.modules:
        yield Finding("torch", "note", "imported in this process: results are torch tensors")
    elif importlib.util.find_spec("torch") is not None:
        yield Finding("torch", "ok", f"{_version('torch') or 'installed'}, not imported, and not needed")
    else:
        yield Finding("torch", "ok", "not installed, and not needed")
    other, own = _version("executorch"), libraries.executorch_version()
    if other is not None and other.partition("+")[0] != own:
        yield Finding(
            "executorch", "note", f"the package {other} is installed: one process cannot hold it and {own}"
        )
    elif other is not None:
        yield Finding(
            "executorch", "ok", f"the package {other} is installed; it may be in one process with this"
        )


def _registries() -> Iterator[Finding]:
    runtime = Runtime.get()
    for name in runtime.backend_registry.registered_backend_names:
        available = runtime.backend_registry.is_available(name)
        yield Finding(
            f"backend {name}", "ok" if available else "note", "" if available else "cannot run here"
        )
    count = len(runtime.operator_registry.operator_names)
    yield Finding("operators", "ok" if count else "FAILED", f"{count:,} with a kernel")


def _threads() -> Iterator[Finding]:
    threads = et_cffi.num_threads()
    usable = processors()
    state, words = "ok", f"{threads}, and {show.count(usable, 'processor')} to use"
    if threads > usable:
        state, words = "note", f"{words}: set_num_threads({usable}) would fit better"
    yield Finding("threads", state, words)


def _packages() -> Iterator[Finding]:
    for name, use in _PACKAGES.items():
        version = _version(name)
        if version is None:
            yield Finding(name, "note", f"not installed; it is for {use}")
        else:
            yield Finding(name, "ok", version)


def _self_test() -> Iterator[Finding]:
    import numpy

    for path in sorted(_SELF_TESTS.glob("*.pte")):
        what = f"self-test {path.stem}"
        try:
            with numpy.load(path.with_suffix(".npz")) as npz:
                given, expected = npz["input_0"], npz["output_0"]
            began = time.perf_counter()
            with Runtime.get().load_program(path).load_method("forward") as method:
                (result,) = method.execute([given])
            took = time.perf_counter() - began
            error = float(numpy.abs(numpy.asarray(result).astype("f8") - expected).max())
        except Exception as failed:
            yield Finding(what, "FAILED", line_of(failed))
            continue
        right = error <= _TOLERANCE * float(numpy.abs(expected).max())
        words = f"largest error {error:.2g}, {show.duration(took)}"
        yield Finding(what, "ok" if right else "FAILED", words)
    if not list(_SELF_TESTS.glob("*.pte")):
        yield Finding("self-test", "FAILED", f"its models are missing from {_SELF_TESTS}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


_LOOKS = (_versions, _libraries, _torch, _registries, _threads, _packages, _self_test)

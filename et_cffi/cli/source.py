"""The file that a command works on: a program, or a bundled program."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from et_cffi import Program, Runtime
from et_cffi.cli.failure import UsageError

if TYPE_CHECKING:
    from et_cffi.bundled import BundledProgram


class Source(NamedTuple):
    """An opened file. `bundled` is None for a plain program."""

    path: str
    nbytes: int
    program: Program
    bundled: BundledProgram | None
    content: Any
    """The program's bytes, where the offsets of `et_cffi.inspection` lead; None for a file by its path."""


def add_model_arguments(parser: argparse.ArgumentParser, *, method: bool = True) -> None:
    """Declares the model, its data files and its method."""
    parser.add_argument("model", metavar="MODEL", help="the program (.pte), or a bundled program (.bpte)")
    parser.add_argument(
        "--data",
        metavar="FILE.ptd",
        action="append",
        default=[],
        help="a file of weights that the program keeps outside of itself; repeat it for more",
    )
    if method:
        parser.add_argument(
            "--method", metavar="NAME", help="the method; 'forward' by default, or the only one"
        )


def open_source(path: str, data: list[str] | None = None, **options: Any) -> Source:
    """Opens a .pte or .bpte; which it is, its content says.

    Raises:
        ExecuTorchError: it is neither.
        OSError: it cannot be read.
        UsageError: the path is empty, which would be the working directory.
    """
    if not path:
        raise UsageError("the name of a model is empty")
    if data:
        options["data_path"] = data
    if not is_bundled(path):
        program = Runtime.get().load_program(path, **options)
        return Source(path, Path(path).stat().st_size, program, None, None)
    from et_cffi import bundled

    loaded = bundled.load(path)
    program = loaded.load_program(**options)
    return Source(path, Path(path).stat().st_size, program, loaded, loaded.program)


def is_bundled(path: str) -> bool:
    """Whether a file says of itself that it is a bundled program."""
    try:
        with Path(path).open("rb") as file:
            return file.read(8)[4:6] == b"BP"
    except FileNotFoundError:
        return False  # load_program has the words for it


def sha256(path: str) -> str:
    """A file's digest, without holding the file: it may be larger than memory."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()

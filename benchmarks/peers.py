"""What et_cffi is measured against: a Python for each, since no one environment holds them all."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MODELS = ROOT / "tests" / "models"


class Peers(NamedTuple):
    """The Pythons, each None where that peer is not measured, and a folder for what is built and exported."""

    own: str
    official: str | None
    numpy_runtime: str | None
    onnxruntime: str | None
    pypy: str | None
    work: Path

    def models(self, *names: str) -> list[Path]:
        """Models that are too large to be kept, or that another runtime needs: those that are not there are
        exported by the official side's Python (models.py)."""
        paths = [self.work / name for name in names]
        missing = [str(path) for path in paths if not path.exists()]
        if missing:
            if self.official is None:
                raise SystemExit(f"exporting {', '.join(missing)} takes torch: give --official")
            self.work.mkdir(parents=True, exist_ok=True)
            command = [self.official, str(HERE / "models.py"), *missing]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
        return paths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The peers' Pythons. One that is not given is not measured."""
    for name, what in (
        ("official", "executorch, torch, onnx, onnxscript and et_cffi"),
        ("numpy-runtime", "executorch-numpy-runtime"),
        ("onnxruntime", "onnxruntime and numpy"),
        ("pypy", "et_cffi (a PyPy)"),
    ):
        parser.add_argument(f"--{name}", metavar="PYTHON", help=f"one that has {what}")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "benchmarks", help="for built files")
    parser.add_argument("--no-header", dest="header", action="store_false", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure to this file")


def peers_of(options: argparse.Namespace) -> Peers:
    """The peers that the command line names."""
    names = ("official", "numpy_runtime", "onnxruntime", "pypy")
    given = [getattr(options, name) for name in names]
    # Not resolved: an environment's Python is a link, and the environment is where the link is.
    return Peers(
        sys.executable, *[path and str(Path(path).absolute()) for path in given], options.work.absolute()
    )


def arguments_of(peers: Peers) -> list[str]:
    """The command line that names these peers."""
    arguments = ["--work", str(peers.work)]
    for name in ("official", "numpy_runtime", "onnxruntime", "pypy"):
        python = getattr(peers, name)
        arguments += ["--" + name.replace("_", "-"), python] if python else []
    return arguments

"""How figures are shown: Markdown tables, and JSON."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import quartiles, ratios, run_code
from peers import Peers

_VERSIONS = """
import importlib.metadata, platform
said = [platform.python_implementation() + " " + platform.python_version()]
for name in ("et_cffi", "executorch", "torch", "executorch-numpy-runtime", "onnxruntime", "numpy"):
    try:
        said.append(name + " " + importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        pass
print(", ".join(said))
"""


def header(peers: Peers) -> str:
    """The day, the machine and the versions, for whoever reads the figures later."""
    lines = [f"{datetime.date.today()}, {_cpu()}"]
    for name in ("own", "official", "numpy_runtime", "onnxruntime", "pypy"):
        python = getattr(peers, name)
        if python:
            lines.append(f"- {name.replace('_', '-')}: {run_code(python, _VERSIONS)}")
    return "\n".join(lines) + "\n"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({len(names)} of them)" if names else platform.machine()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; every column but the first is of numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(values: Sequence[float], scale: float = 1) -> str:
    """The median, and the quarters below and above it."""
    low, middle, high = (number(value * scale) for value in quartiles(values))
    return middle if low == high else f"{middle} ({low} to {high})"


def compared(
    figures: dict[str, list[float]],
    own: str,
    unit: str,
    scale: float,
    more: dict[str, list[str]] | None = None,
) -> str:
    """A line for each side: its figure, and what part of it `own` has. `more` are further columns: their
    name, and a text for each side."""
    more = more or {}
    rows = []
    for index, (name, values) in enumerate(figures.items()):
        part = "" if name == own else spread(ratios(figures[own], values))
        rows.append([name, spread(values, scale), part, *[texts[index] for texts in more.values()]])
    return table(["", unit, f"{own} / this", *more], rows)


class Record:
    """Every figure of a run, for --json."""

    def __init__(self, peers: Peers, path: Path | None) -> None:
        self._path = path
        self._said: dict[str, Any] = {"header": header(peers)} if path else {}

    def add(self, section: str, figures: Any) -> None:
        self._said[section] = figures

    def write(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps(self._said, indent=1) + "\n")

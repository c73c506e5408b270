"""What the benchmarks share: two or more sides measured in turn in one run, and the table of ratios.

A figure from one run and a figure from another differ by what else the machine was doing. Here each round
measures every side, one after the other, and a ratio is taken within a round; the table gives the median of
the rounds and, as the spread, the quarter of them below and above.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import et_cffi

MODELS = Path(__file__).resolve().parent.parent / "tests" / "models"


def header(*packages: str) -> str:
    """The day, the machine and the versions, for whoever reads the figures later."""
    versions = [f"{platform.python_implementation()} {platform.python_version()}"]
    versions.append(f"et_cffi {et_cffi.__version__}")
    for package in packages:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {package}")
    return f"{datetime.date.today()}, {_cpu()}\n{', '.join(versions)}\n"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({len(names)} of them)" if names else platform.machine()


def in_turn(sides: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """One figure of each side per round; a first round, which is not counted, warms them up."""
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, measure in sides.items():
            figure = measure()
            if number:
                figures[name].append(figure)
    return figures


def table(figures: dict[str, list[float]], unit: str, own: str) -> str:
    """A line for each side: its figure, and how many times that of `own` it is."""
    width = max(len(name) for name in figures)
    lines = [f"{'':{width}}  {unit + ' (quartiles)':>28}   {'times ' + own + ' (quartiles)'}"]
    for name, values in figures.items():
        low, middle, high = map(_figure, _quartiles(values))
        line = f"{name:{width}}  {middle:>10} ({low} to {high})".ljust(width + 34)
        if name != own:
            ratios = [one / other for one, other in zip(values, figures[own])]
            low, middle, high = map(_figure, _quartiles(ratios))
            line += f"{middle} ({low} to {high})"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high

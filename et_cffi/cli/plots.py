"""Plots, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from et_cffi.cli.failure import UsageError

_POINTS = 1000  # of a curve
_UNITS = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))


def check_plot_path(path: Path) -> None:
    """Refuses what a plot could not be written to, before anything is measured for it.

    Raises:
        UsageError: matplotlib is not installed, or does not write such files, or there is no such directory.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UsageError(
            "--plot needs the package matplotlib; install it with: pip install et_cffi[plot]"
        ) from None
    formats = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix[1:].lower() not in formats:
        raise UsageError(f"--plot {path}: give a file of one of these kinds: {', '.join(formats)}")
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no directory '{path.parent}'")


def _unit_for(seconds: float) -> tuple[str, float]:
    return next((each for each in _UNITS if seconds * each[1] >= 1), _UNITS[-1])


def latency_figure(series: Sequence[tuple[str, Sequence[float]]], title: str) -> Any:
    """Each run's latency in the order of the runs, and how many runs took at most how long."""
    from matplotlib.figure import Figure

    medians = [sorted(seconds)[len(seconds) // 2] for _, seconds in series]
    unit, factor = _unit_for(max(medians))
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    figure.suptitle(title)
    runs, shares = figure.subplots(1, 2)
    for label, seconds in series:
        values = [each * factor for each in seconds]
        # As pixels in a drawing of lines too: there may be a million.
        (line,) = runs.plot(values, ".", markersize=3, label=label, rasterized=True)
        ordered = sorted(values)
        at = sorted({index * (len(ordered) - 1) // _POINTS for index in range(_POINTS + 1)})
        heights = [(index + 1) / len(ordered) for index in at]
        shares.step(
            [ordered[index] for index in at], heights, where="post", color=line.get_color(), label=label
        )
    for share in (0.5, 0.9, 0.99):
        shares.axhline(share, color="0.8", linewidth=0.8, zorder=0)
    shares.set_yticks([0, 0.25, 0.5, 0.75, 0.9, 0.99], ["0", "25 %", "50 %", "75 %", "90 %", "99 %"])
    shares.set_ylim(0, 1.02)
    runs.set(xlabel="run", ylabel=f"latency ({unit})", title="each run")
    shares.set(xlabel=f"latency ({unit})", title="share of runs that took at most this long")
    # A single run that was interrupted would squeeze all others together.
    reach = max(1.5 * sorted(seconds)[int(0.99 * (len(seconds) - 1))] for _, seconds in series) * factor
    if reach > 0:
        runs.set_ylim(0, reach)
        shares.set_xlim(0, reach)
    if len(series) > 1:
        shares.legend(loc="lower right")
    return figure


def profile_figure(rows: Sequence[tuple[str, float, bool]], title: str) -> Any:
    """A horizontal bar for each row: its name, its seconds per run, and whether it is inside a delegate."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    unit, factor = _unit_for(max((seconds for _, seconds, _ in rows), default=1.0))
    figure = Figure(figsize=(9, 1.4 + 0.32 * len(rows)), layout="constrained")
    axes = figure.subplots()
    colors = ["#e08a3c" if inside else "#3b6fb6" for _, _, inside in rows]
    values = [seconds * factor for _, seconds, _ in rows]
    bars = axes.barh(range(len(rows)), values, color=colors)
    axes.bar_label(bars, [f"{value:.3g}" for value in values], padding=3)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(xlabel=f"time per run ({unit})", title=title)
    if any(inside for _, _, inside in rows):
        kinds = [
            Patch(color="#3b6fb6", label="operator or delegate"),
            Patch(color="#e08a3c", label="inside a delegate"),
        ]
        axes.legend(handles=kinds, loc="lower right")
    return figure


def save(figure: Any, path: Path) -> None:
    """Writes a figure in the format that the path's suffix names."""
    figure.savefig(path, dpi=130)

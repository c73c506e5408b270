"""Latencies in numbers, and the memory of this process."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share (0 to 1) of ordered values lies, between two of them in proportion."""
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


class Latency(NamedTuple):
    """How long runs took, in seconds."""

    runs: int
    minimum: float
    median: float
    p90: float
    p99: float
    maximum: float
    mean: float
    throughput: float
    """Runs per second of all threads together, by the clock."""

    def as_json(self) -> dict[str, Any]:
        """The same in milliseconds."""
        known: dict[str, Any] = {"runs": self.runs}
        for name in ("minimum", "median", "p90", "p99", "maximum", "mean"):
            known[f"{name}_ms"] = getattr(self, name) * 1e3
        return {**known, "runs_per_second": self.throughput}


def summarize(seconds: Sequence[float], elapsed: float | None = None) -> Latency:
    """The numbers of some runs, which took `elapsed` by the clock (by default one after the other)."""
    ordered, total = sorted(seconds), math.fsum(seconds)
    return Latency(
        len(ordered),
        ordered[0],
        percentile(ordered, 0.5),
        percentile(ordered, 0.9),
        percentile(ordered, 0.99),
        ordered[-1],
        total / len(ordered),
        len(ordered) / (total if elapsed is None else elapsed),
    )


class Ratio(NamedTuple):
    """How many times as long one of two takes, from pairs of runs one right after the other."""

    median: float
    surely: tuple[float, float]
    """Where the median of all such pairs is, with 95 % confidence."""
    p10: float
    p90: float


def compare(first: Sequence[float], second: Sequence[float]) -> Ratio:
    """How many times as long `second` takes as `first`."""
    ratios = sorted(b / a for a, b in zip(first, second))
    # The median lies between these two of the ordered values with 95 %, whatever their distribution: how many
    # are below it is binomial, with half a chance for each.
    reach = 1.96 * math.sqrt(len(ratios)) / 2
    low = max(0, math.floor((len(ratios) - 1) / 2 - reach))
    high = min(len(ratios) - 1, math.ceil((len(ratios) - 1) / 2 + reach))
    return Ratio(
        percentile(ratios, 0.5), (ratios[low], ratios[high]), percentile(ratios, 0.1), percentile(ratios, 0.9)
    )


def processors() -> int:
    """How many processors this process may use."""
    # PyPy does not know the first.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resident() -> int | None:
    """Bytes of memory that this process has resident; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        return None
    import resource

    return pages * resource.getpagesize()


def peak_resident() -> int:
    """The most bytes of memory that this process ever had resident."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux brings its count of a thread's pages up to date now and then only.
    return max(peak if sys.platform == "darwin" else peak * 1024, resident() or 0)

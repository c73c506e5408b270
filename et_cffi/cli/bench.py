"""python -m et_cffi bench: how long a method takes."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from et_cffi import Method, Runtime, num_threads, set_num_threads
from et_cffi.cli import measuring, show
from et_cffi.cli.describe import choose_method
from et_cffi.cli.failure import UsageError
from et_cffi.cli.made_inputs import given_or_made
from et_cffi.cli.measuring import Latency, Ratio
from et_cffi.cli.numbers import natural, positive, positive_list
from et_cffi.cli.plots import check_plot_path, latency_figure
from et_cffi.cli.plots import save as save_plot
from et_cffi.cli.source import add_model_arguments, open_source

SUMMARY = "how long a method takes"

DESCRIPTION = """\
Runs a method again and again and prints how long it takes: the shortest run, the median, the 90th
and 99th percentile, runs per second, what loading took and the memory of the process. A run is
Method.execute with its inputs, results included. Inputs are made from what the method says it
takes (dynamic ones as large as they may be), or given as for `run`. Runs begin until --seconds are
over, but 10 at least and 1,000,000 at most; --runs is how many each method runs instead.

--compare runs another file in turn with the first, and tells how many times as long it takes: the
median of the pairs' ratios, where that median is with 95 % confidence, and the 10th and 90th
percentile.

examples:
  python -m et_cffi bench model.pte
  python -m et_cffi bench model.pte --threads 1,2,4 --plot latency.png
  python -m et_cffi bench model.pte --threads 1 --parallel 4
  python -m et_cffi bench model.pte --compare quantized.pte

exit status: 0; 1 where the model could not be loaded or failed; 2 for bad use or a bad file.
An error is one line on stderr.
"""

# Runs of all methods together, where --seconds says when to stop. The time of each is kept, in 8 bytes.
_FEWEST, _MOST = 10, 1_000_000


class _Result(NamedTuple):
    path: str
    threads: int
    parallel: int
    load_s: float
    seconds: array[float]
    latency: Latency


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    add_model_arguments(parser)
    parser.add_argument(
        "--input",
        metavar="INPUT",
        action="append",
        default=[],
        help="an input, as for `run`; made by default",
    )
    parser.add_argument("--runs", type=positive, help="how many runs; by default as many as fit in --seconds")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to run (default: 2)")
    parser.add_argument("--warmup", type=natural, default=5, help="runs before, not counted (default: 5)")
    parser.add_argument(
        "--threads", metavar="N,...", type=positive_list, help="numbers of threads for kernels and backends"
    )
    parser.add_argument(
        "--parallel", metavar="N", type=positive, default=1, help="run so many methods at once, a thread each"
    )
    parser.add_argument("--compare", metavar="OTHER", help="another file, run in turn with this one")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw the latencies (.png, .svg, .pdf)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def execute(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    if arguments.plot is not None:
        check_plot_path(arguments.plot)
    if arguments.compare is not None and arguments.parallel > 1:
        raise UsageError("--compare takes turns, so it goes without --parallel")
    if not 0 < arguments.seconds < math.inf:
        raise UsageError(f"--seconds is a finite number and more than 0, not {arguments.seconds:g}")
    Runtime.get()  # the libraries: neither a model's time to load nor its memory
    before = measuring.resident()
    results: list[_Result] = []
    ratios: list[Ratio] = []
    for threads in arguments.threads or [num_threads()]:
        # Before anything is loaded: backends keep pointing at the threads there were.
        set_num_threads(threads)
        results += _measure(arguments, threads)
        if arguments.compare is not None:
            ratios.append(measuring.compare(results[-2].seconds, results[-1].seconds))
    memory = {
        "before_loading": before,
        "after_running": measuring.resident(),
        "peak": measuring.peak_resident(),
    }
    if arguments.plot is not None:
        series = [(_label(result, arguments), result.seconds) for result in results]
        save_plot(latency_figure(series, f"latency of {Path(arguments.model).name}"), arguments.plot)
    if arguments.json:
        print(json.dumps(_as_json(results, ratios, memory)))
    else:
        _print(results, ratios, memory, arguments)
    return 0


# ---- measuring ------------------------------------------------------------------------------------------


class _Loaded(NamedTuple):
    path: str
    methods: list[Method]
    inputs: list[Any]
    load_s: float


def _load(path: str, arguments: argparse.Namespace, count: int) -> _Loaded:
    """Loads a file, and `count` methods of it; the time is that of the file and of the first."""
    began = time.perf_counter()
    source = open_source(path, arguments.data)
    name = choose_method(source.program, arguments.method)
    took = time.perf_counter() - began
    # Before a method is loaded: nothing is left open where an input is wrong.
    inputs = given_or_made(arguments.input, source.program.metadata(name))
    began = time.perf_counter()
    methods = [source.program.load_method(name)]
    took += time.perf_counter() - began
    methods += [source.program.load_method(name) for _ in range(count - 1)]
    return _Loaded(path, methods, inputs, took)


def _measure(arguments: argparse.Namespace, threads: int) -> list[_Result]:
    paths = [arguments.model] + ([arguments.compare] if arguments.compare is not None else [])
    loaded = [_load(path, arguments, arguments.parallel) for path in paths]
    try:
        warm = [_warm_up(item, arguments.warmup) for item in loaded]
        expected = arguments.runs or int(max(_FEWEST, min(_MOST, arguments.seconds / sum(warm))))
        timed: list[tuple[array[float], float | None]]
        if arguments.parallel > 1:
            timed = [_in_parallel(loaded[0], arguments)]
        else:
            timed = [(seconds, None) for seconds in _in_turn(loaded, arguments, expected)]
    finally:
        for item in loaded:
            for method in item.methods:
                method.close()
    return [
        _Result(
            item.path,
            threads,
            arguments.parallel,
            item.load_s,
            seconds,
            measuring.summarize(seconds, elapsed),
        )
        for item, (seconds, elapsed) in zip(loaded, timed)
    ]


def _warm_up(loaded: _Loaded, count: int) -> float:
    """Runs each method so often, and at least once to see how long a run takes: the shortest."""
    shortest = float("inf")
    for method in loaded.methods:
        for _ in range(max(1, count)):
            shortest = min(shortest, _run(method, loaded.inputs))
    return shortest


def _run(method: Method, inputs: list[Any]) -> float:
    began = time.perf_counter()
    method.execute(inputs)
    return time.perf_counter() - began


def _turns(arguments: argparse.Namespace) -> Iterator[None]:
    """One for each run of a method: as many as asked for, else until the time is over."""
    if arguments.runs is not None:
        for _ in range(arguments.runs):
            yield
        return
    over = time.perf_counter() + arguments.seconds
    for done in range(max(1, _MOST // arguments.parallel)):
        if done * arguments.parallel >= _FEWEST and time.perf_counter() >= over:
            return
        yield


def _in_turn(loaded: list[_Loaded], arguments: argparse.Namespace, expected: int) -> list[array[float]]:
    """Runs of each, one after the other, and each beginning as often as the others."""
    seconds = [array("d") for _ in loaded]
    order = list(enumerate(loaded))
    for _ in show.progress(_turns(arguments), expected, "runs"):
        for index, item in order:
            seconds[index].append(_run(item.methods[0], item.inputs))
        order.reverse()
    return seconds


def _in_parallel(loaded: _Loaded, arguments: argparse.Namespace) -> tuple[array[float], float]:
    """Runs of every method at once; how long each took, and all of them by the clock."""
    from concurrent.futures import ThreadPoolExecutor

    start = threading.Barrier(len(loaded.methods) + 1)

    def work(method: Method) -> array[float]:
        start.wait()
        return array("d", (_run(method, loaded.inputs) for _ in _turns(arguments)))

    with ThreadPoolExecutor(len(loaded.methods)) as pool:
        futures = [pool.submit(work, method) for method in loaded.methods]
        start.wait()
        began = time.perf_counter()
        took = [future.result() for future in futures]
        elapsed = time.perf_counter() - began
        return array("d", itertools.chain(*took)), elapsed


# ---- telling --------------------------------------------------------------------------------------------


def _label(result: _Result, arguments: argparse.Namespace) -> str:
    name = f"{Path(result.path).name}, " if arguments.compare is not None else ""
    parallel = f", {result.parallel} methods at once" if result.parallel > 1 else ""
    return f"{name}{show.count(result.threads, 'thread')}{parallel}"


def _as_json(results: list[_Result], ratios: list[Ratio], memory: dict[str, int | None]) -> dict[str, Any]:
    return {
        "results": [
            {
                "file": result.path,
                "threads": result.threads,
                "parallel": result.parallel,
                "load_ms": result.load_s * 1e3,
                **result.latency.as_json(),
            }
            for result in results
        ],
        "ratios": [ratio._asdict() for ratio in ratios],
        "resident_bytes": memory,
    }


def _print(
    results: list[_Result],
    ratios: list[Ratio],
    memory: dict[str, int | None],
    arguments: argparse.Namespace,
) -> None:
    rows = []
    for result in results:
        latency = result.latency
        times = (latency.minimum, latency.median, latency.p90, latency.p99)
        rows.append(
            [
                Path(result.path).name if arguments.compare is not None else "",
                str(result.threads),
                str(result.parallel) if result.parallel > 1 else "",
                f"{latency.runs:,}",
                *map(show.duration, times),
                f"{latency.throughput:,.1f}",
                show.duration(result.load_s),
            ]
        )
    columns = [
        "file",
        ">threads",
        ">at once",
        ">runs",
        ">minimum",
        ">median",
        ">p90",
        ">p99",
        ">runs/s",
        ">load",
    ]
    show.table(columns, rows)
    for result, ratio in zip(results[1::2], ratios):
        low, high = ratio.surely
        print(
            f"{Path(result.path).name} takes {ratio.median:.3f} times as long with "
            f"{show.count(result.threads, 'thread')} (95 % sure: {low:.3f} to {high:.3f}; "
            f"p10 {ratio.p10:.3f}, p90 {ratio.p90:.3f})"
        )
    now = memory["after_running"]
    if now is not None and memory["before_loading"] is not None:
        more = show.size(now - memory["before_loading"])
        print(f"resident: {show.size(now)}, {more} more than before loading")
    print(f"peak resident: {show.size(memory['peak'] or 0)}")
    if arguments.plot is not None:
        print(f"plot: {arguments.plot}")

"""What threads gain: a method on each of two, and XNNPACK's own threads beside that.

    python benchmarks/threads.py --official PYTHON [--threads N] [--rounds N]

The network is four small convolutions: work that stays in a core's caches, so that memory is not what is
shared.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from measure import Worker, in_turn, ratios
from peers import Peers, add_arguments, peers_of
from report import Record, header, number, spread, table
from sides import OFFICIAL, OWN

# Runs so many times on each of so many threads, with a method for each. How many processors that had is said
# too: where other work takes them, no number of threads gains anything.
_SETUP = """
import statistics, threading, time
{load}
shape, count = {shape}, {count}
executes = [load() for _ in range(count)]
{inputs}
runs = 1

def work(execute):
    for _ in range(runs):
        execute(inputs)

def all_at_once():
    start, used = time.perf_counter(), time.process_time()
    threads = [threading.Thread(target=work, args=(execute,)) for execute in executes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    processors.append((time.process_time() - used) / (time.perf_counter() - start))

processors = []
work(executes[0])
runs = 3
start = time.perf_counter()
work(executes[0])
runs = max(1, round({seconds} / ((time.perf_counter() - start) / runs)))
"""
_LOAD = {
    OWN: "from et_cffi import Runtime, set_num_threads\noptions = {{}}\n{before}\n"
    "program = Runtime.get().load_program({path!r})\n"
    "load = lambda: program.load_method('forward', **options).execute",
    # A program's methods share their planned memory there, so each thread has a program of its own.
    OFFICIAL: "import torch\nfrom executorch.runtime import Runtime\n{before}\nprograms = []\ndef load():\n"
    "    programs.append(Runtime.get().load_program({path!r}))\n"
    "    return programs[-1].load_method('forward').execute",
}
_INPUTS = {
    OWN: "import numpy\ninputs = [numpy.ones(shape, 'f4')]",
    OFFICIAL: "inputs = [torch.ones(shape)]",
}


def throughput(
    worker: Worker, package: str, path: Path, width: int, count: int, before: str, seconds: float
) -> Callable[[], float]:
    """What measures seconds per run, all threads together. Each needs a worker of its own: how many threads
    the kernels use is one number for the process."""
    code = _SETUP.format(
        load=_LOAD[package].format(path=str(path), before=before),
        inputs=_INPUTS[package],
        shape=(1, 8, width, width),
        count=count,
        seconds=seconds,
    )
    measure = worker.side("threads", code, "all_at_once()", 0)
    runs = worker.evaluate("threads", "runs")
    return lambda: measure() / (runs * count)


class Figures(NamedTuple):
    """Of each side: seconds per run of every round, and how many processors it had, by the median."""

    seconds: dict[str, list[float]]
    processors: dict[str, float]


def compare(
    peers: Peers, path: Path, width: int, sides: dict[str, tuple[str, int, str]], options: argparse.Namespace
) -> Figures:
    """Measures each side: a package, how many threads, and what to run before loading."""
    with contextlib.ExitStack() as stack:
        measured, workers = {}, {}
        for name, (package, count, before) in sides.items():
            python = peers.own if package == OWN else peers.official
            if python is not None:
                workers[name] = stack.enter_context(Worker(python))
                measured[name] = throughput(
                    workers[name], package, path, width, count, before, options.seconds
                )
        seconds = in_turn(measured, options.rounds)
        median = "statistics.median(processors)"
        return Figures(
            seconds, {name: worker.evaluate("threads", median) for name, worker in workers.items()}
        )


def show(title: str, figures: Figures, base: dict[str, str]) -> None:
    rows = []
    for name, values in figures.seconds.items():
        gain = spread(ratios(figures.seconds[base[name]], values)) if base[name] != name else ""
        had = number(figures.processors[name])
        rows.append([name, spread([1 / value for value in values]), gain, base[name] if gain else "", had])
    print(f"{title}:\n")
    print(
        table(["", "runs per second (quartiles)", "times as many", "as", "processors had"], rows), flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.2, help="of one batch of runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--portable-width", type=int, default=24, help="of the image, in pixels")
    parser.add_argument("--xnnpack-width", type=int, default=96, help="of the image, in pixels")
    options = parser.parse_args()
    peers = peers_of(options)
    record = Record(peers, options.json)
    if options.header:
        print(header(peers))
    count = options.threads
    portable, xnnpack = peers.models(
        f"conv_portable-{options.portable_width}.pte", f"conv_xnnpack-{options.xnnpack_width}.pte"
    )

    one, many = "one method", f"{count} methods on {count} threads"
    sides = {
        f"{package}, {how}": (package, n, "")
        for package in (OWN, OFFICIAL)
        for how, n in ((one, 1), (many, count))
    }
    figures = compare(peers, portable, options.portable_width, sides, options)
    record.add("portable kernels", figures._asdict())
    show(
        "Portable kernels, which use one thread",
        figures,
        {name: f"{name.partition(',')[0]}, {one}" for name in figures.seconds},
    )

    # By default XNNPACK's methods share memory for what is in between, and run one at a time.
    apart = "options['backend_options'] = {'XnnpackBackend': {'workspace_sharing_mode': 0}}"
    ways = {
        f"et_cffi, {one}, `set_num_threads(1)`": (OWN, 1, "set_num_threads(1)"),
        f"et_cffi, {one}, `set_num_threads({count})`": (OWN, 1, f"set_num_threads({count})"),
        f"et_cffi, {many}, `set_num_threads(1)`": (OWN, count, "set_num_threads(1)"),
        f"et_cffi, {many}, `set_num_threads(1)`, a workspace for each": (
            OWN,
            count,
            f"set_num_threads(1)\n{apart}",
        ),
        f"et_cffi, {many}, `set_num_threads({count})`": (OWN, count, f"set_num_threads({count})"),
        f"executorch.runtime, {one}, its own number of threads": (OFFICIAL, 1, ""),
        f"executorch.runtime, {many}, its own number of threads": (OFFICIAL, count, ""),
    }
    figures = compare(peers, xnnpack, options.xnnpack_width, ways, options)
    record.add("XNNPACK", figures._asdict())
    first = next(iter(ways))
    show("XNNPACK, whose kernels share one pool of threads", figures, dict.fromkeys(figures.seconds, first))
    record.write()


if __name__ == "__main__":
    main()

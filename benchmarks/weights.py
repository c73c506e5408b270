"""Where the weights of a large model are: resident memory and time of loading, and of the first run.

    python benchmarks/weights.py --official PYTHON [--numpy-runtime PYTHON] [--megabytes 300] [--rounds N]

A new process each time. Its own memory is anonymous; mapped are pages of the file, which the system shares
between processes and takes back when it needs them. Linux: both are read from /proc.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import in_turn, run_code
from peers import Peers, add_arguments, peers_of
from report import Record, header, spread, table
from sides import ARRAYS, NUMPY, TORCH, Side, setup

# With a small model first, so that only what the large one takes is counted. Linux counts in units of 1024
# bytes. A page of the file that the process wrote to is anonymous; dirty is also one that was written to the
# file by another process, and is not on the disk yet.
_MEASURE = """
import json, time
def memory():
    with open("/proc/self/status") as status:
        (own,) = [int(line.split()[1]) * 1.024e-3 for line in status if line.startswith("RssAnon")]
    mapped = written = inside = 0
    with open("/proc/self/smaps") as maps:
        for line in maps:
            name = line.split()[0]
            if not name.endswith(":"):
                inside = line.rstrip().endswith({path!r})
            elif inside and name == "Rss:":
                mapped += int(line.split()[1]) * 1.024e-3
            elif inside and name == "Anonymous:":
                written += int(line.split()[1]) * 1.024e-3
    return [own, mapped, written]
exec({small!r})
numbers(execute(inputs))
steps = [memory()]
times = [time.perf_counter()]
exec({large!r})
times.append(time.perf_counter())
steps.append(memory())
times.append(time.perf_counter())
result = numbers(execute(inputs), {width} // 8)
times.append(time.perf_counter())
steps.append(memory())
print(json.dumps({{
    "load": times[1] - times[0], "run": times[3] - times[2], "result": result,
    "own after load": steps[1][0] - steps[0][0], "own after run": steps[2][0] - steps[0][0],
    "mapped after load": steps[1][1], "mapped after run": steps[2][1], "written": steps[2][2],
}}))
"""


def once(python: str, side: Side, path: Path, small: Path, width: int, small_width: int) -> dict[str, Any]:
    code = _MEASURE.format(
        path=str(path),
        small=setup(side.package, small, side.kind, ((1, small_width),)),
        large=setup(side.package, path, side.kind, ((1, width),)),
        width=width,
    )
    said: dict[str, Any] = json.loads(run_code(python, code))
    return said


def measure(peers: Peers, kernels: str, megabytes: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Of each side, what every round found."""
    small, path = peers.models(f"linear_{kernels}-1.pte", f"linear_{kernels}-{megabytes}.pte")
    found: dict[str, list[dict[str, Any]]] = {}

    def process(side: Side) -> Callable[[], float]:
        def run() -> float:
            said = once(getattr(peers, side.peer), side, path, small, width_of(megabytes), width_of(1))
            found.setdefault(side.name, []).append(said)
            return float(said["load"])

        return run

    sides = [side for side in (ARRAYS, TORCH, NUMPY) if getattr(peers, side.peer)]
    in_turn({side.name: process(side) for side in sides}, rounds)
    return {name: values[1:] for name, values in found.items()}


def width_of(megabytes: int) -> int:
    """As models.py has it."""
    return round((megabytes * 1_000_000 / 4 / 3) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=300, help="of the weights")
    options = parser.parse_args()
    peers = peers_of(options)
    record = Record(peers, options.json)
    if options.header:
        print(header(peers))
    names = [
        f"linear_{kernels}-{size}.pte"
        for kernels in ("portable", "xnnpack")
        for size in (1, options.megabytes)
    ]
    peers.models(*names)
    for kernels, title in (("portable", "portable kernels"), ("xnnpack", "XNNPACK")):
        found = measure(peers, kernels, options.megabytes, options.rounds)
        record.add(title, found)
        expected = found[ARRAYS.name][0]["result"]
        rows = []
        for name, values in found.items():
            largest = max(map(abs, expected))
            if any(abs(a - b) > 1e-3 * largest for a, b in zip(values[0]["result"], expected)):
                raise SystemExit(f"{name} gives {values[0]['result']} for {expected}")
            row = [name]
            for step, after in (("load", "after load"), ("run", "after run")):
                row.append(spread([value[step] for value in values], 1e3))
                for kind in ("own", "mapped"):
                    row.append(str(round(statistics.median(value[f"{kind} {after}"] for value in values))))
            rows.append([*row, str(round(max(value["written"] for value in values)))])
        print(f"{options.megabytes} MB of weights, {title}, {options.rounds} rounds of one process each:\n")
        head = [
            "",
            "load, ms",
            "own MB",
            "mapped MB",
            "first run, ms",
            "own MB",
            "mapped MB",
            "written to",
        ]
        print(table(head, rows), flush=True)
    record.write()


if __name__ == "__main__":
    main()

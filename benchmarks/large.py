"""What large inputs and outputs cost: the time of a run, and the bytes that are copied.

    python benchmarks/large.py --official PYTHON [--numpy-runtime PYTHON] [--rounds N]

The model adds two tensors, which is next to no work for each byte. Copies are counted in processes of their
own, which are not timed (copies.c).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import native
from measure import Floor, in_turn
from peers import Peers, add_arguments, peers_of
from report import Record, compared, header
from sides import ARRAYS, NUMPY, TENSORS, TORCH, Side, Workers, setup

LOOP = "a loop in C++"
COUNTED = 4  # runs, after two that are not
STEP = 1999  # every so many elements of a result are looked at

# Each result goes before the next run, as in a loop.
_COUNT = """
import ctypes
count = ctypes.CDLL(None)["copied_bytes"]
count.restype = ctypes.c_uint64
for _ in range(2):
    execute(inputs)
before = count()
for _ in range({runs}):
    execute(inputs)
copied = count() - before
"""


def sides_of(peers: Peers, planned: bool) -> list[Side]:
    # executorch-numpy-runtime does not survive outputs without planned memory (call_cost.py).
    named = [ARRAYS, TENSORS, TORCH, *([NUMPY] if planned else [])]
    return [side for side in named if getattr(peers, side.peer)]


def measure(
    peers: Peers,
    kilobytes: int,
    planned: bool,
    options: argparse.Namespace,
    workers: Workers,
    counting: Workers,
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Of each side: seconds per call, and MB that a call copies."""
    (path,) = peers.models(f"add_{'planned' if planned else 'unplanned'}-{kilobytes}.pte")
    shape = (kilobytes, 250)
    measured: dict[str, Callable[[], float]] = {}
    copied = {}
    expected = [2.0 * (i % 2**20 + 1) for i in range(0, 250 * kilobytes, STEP)]
    for side in sides_of(peers, planned):
        code = setup(side.package, path, side.kind, (shape, shape))
        label = f"{path.name}: {side.name}"
        counting.of(side).side(label, code + _COUNT.format(runs=COUNTED), "pass", 0)
        copied[side.name] = counting.of(side).evaluate(label, "copied") / COUNTED / 1e6
        measured[side.name] = workers.of(side).side(label, code, side.statement, options.seconds)
        if workers.of(side).evaluate(label, f"numbers({side.statement}, {STEP})") != expected:
            raise SystemExit(f"{label}: its result is wrong")
    program = native.floor(peers)
    with Floor(program, path, 0, LD_PRELOAD=str(native.copies(peers))) as floor:
        before = floor.copied()
        floor.seconds(COUNTED)
        copied[LOOP] = (floor.copied() - before) / COUNTED / 1e6
    with Floor(program, path, options.seconds) as floor:
        return in_turn({**measured, LOOP: floor}, options.rounds), copied


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.1, help="of one batch of calls")
    parser.add_argument("--kilobytes", type=int, nargs="+", default=[3000, 100_000], help="of a tensor")
    options = parser.parse_args()
    peers = peers_of(options)
    record = Record(peers, options.json)
    if options.header:
        print(header(peers))
    peers.models(
        *[f"add_{kind}-{size}.pte" for size in options.kilobytes for kind in ("unplanned", "planned")]
    )
    library = str(native.copies(peers))
    with Workers(peers) as workers, Workers(peers, LD_PRELOAD=library) as counting:
        for kilobytes in options.kilobytes:
            for planned in (False, True):
                figures, copied = measure(peers, kilobytes, planned, options, workers, counting)
                title = f"{kilobytes / 1000:g} MB each, {'planned' if planned else 'not planned'}"
                record.add(title, {"seconds": figures, "MB copied": copied})
                print(f"Two inputs and one output of {title}, {options.rounds} rounds:\n")
                more = {"MB copied": [f"{copied[name]:.1f}" for name in figures]}
                print(compared(figures, ARRAYS.name, "ms per call (quartiles)", 1e3, more), flush=True)
    record.write()


if __name__ == "__main__":
    main()

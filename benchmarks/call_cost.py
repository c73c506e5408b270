"""What one call costs, where next to nothing is computed.

    python benchmarks/call_cost.py [--official PYTHON] [--numpy-runtime PYTHON] [--pypy PYTHON] [--rounds N]

All sides run the same program in processes of their own, in turn. The floor is the same in C++ (floor.cpp).
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import native
from measure import Floor, in_turn
from peers import MODELS, Peers, add_arguments, peers_of
from report import Record, compared, header
from sides import ARRAYS, NUMPY, OFFICIAL, OWN, TENSORS, TORCH, Side, Workers, setup


class Case(NamedTuple):
    """What all sides of a table do. The first side is et_cffi's own, which the others are compared with."""

    title: str
    model: str
    inputs: Sequence[object]
    sides: Sequence[Side]
    floor: bool = False


PAIR = ((2, 2), (2, 2))
TWENTY = ((2,),) * 20
BOTH = (ARRAYS, TORCH)
ALL = (*BOTH, NUMPY)
TORCH_BOTH = (TENSORS, TORCH)


def on_pypy(kind: str) -> tuple[Side, Side]:
    """The same on PyPy and on CPython, with inputs that need no package."""
    return Side("et_cffi on PyPy", "pypy", OWN, kind), Side("et_cffi on CPython", "own", OWN, kind)


def reading(side: Side, how: str) -> Side:
    """The same side, and its result read."""
    return side._replace(statement=how)


# executorch-numpy-runtime 1.4.0 ends with a segmentation fault where outputs have no planned memory.
CASES = [
    Case("The sum of two 2x2 arrays, its result left as it is", "add", PAIR, ALL, floor=True),
    Case(
        "The same, its result read as an array (`numpy.asarray`, `.numpy()`)", "add", PAIR,
        (
            reading(ARRAYS, "numpy.asarray(execute(inputs)[0])"),
            reading(TORCH, "execute(inputs)[0].numpy()"),
            NUMPY,
        ),
    ),
    Case("The same, inputs and outputs not planned", "add_unplanned", PAIR, BOTH, floor=True),
    Case("torch tensors in and out", "add", PAIR, TORCH_BOTH),
    Case("torch tensors in and out, not planned", "add_unplanned", PAIR, TORCH_BOTH),
    Case(
        "A tensor, an int, a float and a bool", "scalar_inputs", ((2, 2), 3, 0.5, True),
        (ARRAYS._replace(name="et_cffi, array"), TORCH._replace(name="executorch.runtime, torch tensor")),
    ),
    Case(
        "DLPack producers (through `torch.from_dlpack` for the official binding)", "add", PAIR,
        (
            Side("et_cffi", "own", OWN, "DLPack"),
            Side(OFFICIAL, "official", OFFICIAL, "DLPack", "execute([torch.from_dlpack(x) for x in inputs])"),
        ),
    ),
    Case("20 inputs and 20 outputs", "twenty", TWENTY, ALL, floor=True),
    Case("20 inputs and 20 outputs, not planned", "twenty_unplanned", TWENTY, BOTH, floor=True),
    Case("20 torch tensors in and out", "twenty", TWENTY, TORCH_BOTH),
    Case("20 torch tensors in and out, not planned", "twenty_unplanned", TWENTY, TORCH_BOTH),
    Case("PyPy: the sum of two 2x2 `memoryview`s", "add", PAIR, on_pypy("memoryview")),
    Case("PyPy: the same, not planned", "add_unplanned", PAIR, on_pypy("memoryview")),
    Case("PyPy: 20 of `array.array` in, 20 results out", "twenty", TWENTY, on_pypy("array.array")),
]  # fmt: skip


def measure(
    case: Case, peers: Peers, workers: Workers, rounds: int, seconds: float
) -> dict[str, list[float]]:
    path = MODELS / f"{case.model}.pte"
    measured: dict[str, Callable[[], float]] = {}
    results = []
    with contextlib.ExitStack() as stack:
        for side in case.sides:
            if getattr(peers, side.peer) is None:
                continue
            worker = workers.of(side)
            label = f"{case.title}: {side.name}"
            code = setup(side.package, path, side.kind, case.inputs)
            measured[side.name] = worker.side(label, code, side.statement, seconds)
            results.append(worker.evaluate(label, f"numbers({side.statement})"))
        if case.floor:
            floor = stack.enter_context(Floor(native.floor(peers), path, seconds))
            measured["a loop in C++"] = floor
        if any(result != results[0] for result in results):
            raise SystemExit(f"{case.title}: the sides differ: {results}")
        return in_turn(measured, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=0.02, help="of one batch of calls")
    parser.add_argument("--only", default="", help="cases whose title has this in it")
    options = parser.parse_args()
    peers = peers_of(options)
    record = Record(peers, options.json)
    if options.header:
        print(header(peers))
    with Workers(peers) as workers:
        for case in CASES:
            first = case.sides[0]
            if options.only not in case.title or getattr(peers, first.peer) is None:
                continue
            figures = measure(case, peers, workers, options.rounds, options.seconds)
            record.add(case.title, figures)
            print(f"{case.title}, {options.rounds} rounds:\n")
            print(compared(figures, first.name, "µs per call (quartiles)", 1e6), flush=True)
    record.write()


if __name__ == "__main__":
    main()

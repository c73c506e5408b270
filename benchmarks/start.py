"""What it costs to start: time and memory from the start of the process to its first result.

    python benchmarks/start.py [--official PYTHON] [--numpy-runtime PYTHON] [--onnxruntime PYTHON]

A new process each time. Linux: memory is read from /proc.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import native
from measure import in_turn, run_code
from peers import MODELS, Peers, add_arguments, peers_of
from report import Record, header, number, spread, table
from sides import NUMPY_RUNTIME, OFFICIAL, OWN, setup

# Appended to what is measured. The clock is the system's, and the same for all processes.
_REPORT = """
import time
reached = time.monotonic()
import json, sys
with open("/proc/self/status") as status:
    memory = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in status if line.startswith("Vm")}
has_numpy = "numpy" in sys.modules
print(json.dumps([reached, memory["VmRSS"], memory["VmHWM"], has_numpy, globals().get("result")]))
"""
_RESULT = "\nresult = numbers(execute(inputs))"
SHAPE = (1, 1, 8, 8)


class Reached(NamedTuple):
    """How far a process got: seconds since its start, MiB, whether it had numpy, and its result."""

    seconds: float
    resident: float
    peak: float
    has_numpy: bool
    result: list[float] | None


def run(python: str, code: str) -> Reached:
    started = time.monotonic()
    reached, *rest = json.loads(run_code(python, code + _REPORT))
    return Reached(reached - started, *rest)


def run_loop(program: Path, model: Path) -> Reached:
    """The same of floor.cpp."""
    started = time.monotonic()
    command = [str(program), str(model)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"1\n")
    process.stdin.flush()
    process.stdout.readline()
    seconds = time.monotonic() - started
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    memory = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith("Vm")}
    process.communicate()
    return Reached(seconds, memory["VmRSS"], memory["VmHWM"], False, None)


def imports(peers: Peers) -> dict[str, Callable[[], Reached]]:
    found = {"Python alone": lambda: run(peers.own, ""), OWN: lambda: run(peers.own, "import et_cffi")}
    if peers.official is not None:
        official = peers.official
        found[OFFICIAL] = lambda: run(official, "import executorch.runtime")
    if peers.numpy_runtime is not None:
        numpy_runtime = peers.numpy_runtime
        found[NUMPY_RUNTIME] = lambda: run(numpy_runtime, "import executorch_numpy_runtime")
    return found


def first_results(peers: Peers) -> dict[str, Callable[[], Reached]]:
    model = MODELS / "digits.pte"
    named = [
        ("et_cffi", peers.own, OWN, "memoryview"),
        ("et_cffi with numpy", peers.own, OWN, "numpy"),
        (OFFICIAL, peers.official, OFFICIAL, "torch"),
        (NUMPY_RUNTIME, peers.numpy_runtime, NUMPY_RUNTIME, "numpy"),
        ("onnxruntime", peers.onnxruntime, "onnxruntime", "numpy"),
    ]
    found: dict[str, Callable[[], Reached]] = {}
    for name, python, package, kind in named:
        if python is not None:
            path = peers.models("digits.onnx")[0] if package == "onnxruntime" else model
            code = setup(package, path, kind, (SHAPE,)) + _RESULT
            found[name] = lambda python=python, code=code: run(python, code)  # type: ignore[misc]
    program = native.floor(peers)
    found["the same in C++"] = lambda: run_loop(program, model)
    return found


def measure(sides: dict[str, Callable[[], Reached]], rounds: int) -> dict[str, list[Reached]]:
    """What each side reached, round by round; the first round, which fills the disk cache, is not counted."""
    reached: dict[str, list[Reached]] = {name: [] for name in sides}

    def side(name: str) -> Callable[[], float]:
        def once() -> float:
            reached[name].append(sides[name]())
            return reached[name][-1].seconds

        return once

    in_turn({name: side(name) for name in sides}, rounds)
    return {name: values[1:] for name, values in reached.items()}


def show(title: str, reached: dict[str, list[Reached]]) -> None:
    rows = []
    own = reached[OWN]
    for name, values in reached.items():
        part = (
            spread([mine.seconds / other.seconds for mine, other in zip(own, values)]) if name != OWN else ""
        )
        memory = [spread([value.resident for value in values]), spread([value.peak for value in values])]
        has_numpy = "yes" if values[0].has_numpy else "no"
        rows.append([name, spread([value.seconds for value in values], 1e3), part, *memory, has_numpy])
    print(f"{title}, {len(own)} rounds of one process each:\n")
    head = ["", "ms from the start (quartiles)", "et_cffi / this", "MiB resident", "MiB at its peak", "numpy"]
    print(table(head, rows), flush=True)


def over(reached: dict[str, list[Reached]]) -> str:
    """What the import of et_cffi takes over a bare interpreter."""
    pairs = list(zip(reached[OWN], reached["Python alone"]))
    milliseconds = spread([(own.seconds - bare.seconds) * 1e3 for own, bare in pairs])
    resident = spread([own.resident - bare.resident for own, bare in pairs])
    return f"`import et_cffi` over a bare interpreter: {milliseconds} ms, {resident} MiB resident.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    peers = peers_of(options)
    record = Record(peers, options.json)
    if options.header:
        print(header(peers))

    imported = measure(imports(peers), options.rounds)
    show("To the import", imported)
    print(over(imported))
    first = measure(first_results(peers), options.rounds)
    show("To the first result of digits.pte, a small network", first)
    expected = first[OWN][0].result
    assert expected is not None
    for name, values in first.items():
        result = values[0].result
        # ONNX Runtime's kernels are others, and the network was trained once more for it.
        near = 1e-2 if name == "onnxruntime" else 1e-4
        if result is not None and any(
            abs(a - b) > near * max(map(abs, expected)) for a, b in zip(result, expected)
        ):
            raise SystemExit(
                f"{name} gives {[number(x) for x in result]} for {[number(x) for x in expected]}"
            )
    record.add("import", imported)
    record.add("first result", first)
    record.write()


if __name__ == "__main__":
    main()

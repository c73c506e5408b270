"""What it costs to start: a new process's time and memory, to the import and to the first result.

    python benchmarks/start.py [--rounds N]

Beside `executorch.runtime` where that can be imported. Linux: memory is read from /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable

from side_by_side import MODELS, header, in_turn, table

MEASURE = """
import json, sys, time
start = time.perf_counter()
{code}
seconds = time.perf_counter() - start
with open("/proc/self/status") as status:
    resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
print(json.dumps([seconds * 1000, resident / 1024]))
"""

IMPORTS = {
    "Python alone": "pass",
    "et_cffi": "import et_cffi",
    "executorch.runtime": "import executorch.runtime",
}
RUN = """
method = Runtime.get().load_program(sys.argv[1]).load_method("forward")
assert numpy.asarray(method.execute(inputs)[0]).tolist() == [[6, 8], [10, 12]]
"""
FIRST_RESULTS = {
    "numpy alone": "import numpy",
    "et_cffi": "import numpy\nfrom et_cffi import Runtime\n"
    'inputs = [numpy.array([[1, 2], [3, 4]], "f4"), numpy.array([[5, 6], [7, 8]], "f4")]' + RUN,
    "executorch.runtime": "import numpy, torch\nfrom executorch.runtime import Runtime\n"
    "inputs = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [7.0, 8.0]])]" + RUN,
}


def start(code: str) -> tuple[float, float]:
    """Milliseconds that the code took in a process of its own, and MiB resident after it."""
    command = [sys.executable, "-c", MEASURE.format(code=code), str(MODELS / "add.pte")]
    # With bytecode on disk after the first time, as usual.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    milliseconds, resident = json.loads(done.stdout.splitlines()[-1])
    return milliseconds, resident


def compare(title: str, sides: dict[str, str], rounds: int) -> None:
    resident: dict[str, list[float]] = {name: [] for name in sides}

    def side(name: str, code: str) -> Callable[[], float]:
        def measure() -> float:
            milliseconds, mebibytes = start(code)
            resident[name].append(mebibytes)
            return milliseconds

        return measure

    print(f"{title}, {rounds} rounds of one process each")
    times = in_turn({name: side(name, code) for name, code in sides.items()}, rounds)
    print(table({name: times[name] for name in list(times)[1:]}, "milliseconds", "et_cffi"), end="\n\n")
    # The round that warms up is no different for memory, and counted for no side or for all.
    print(
        table({name: values[1:] for name, values in resident.items()}, "MiB resident", "et_cffi"), end="\n\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    print(header("executorch", "torch", "numpy"))
    try:
        start(FIRST_RESULTS["executorch.runtime"])
    except subprocess.CalledProcessError as error:
        print(f"executorch.runtime does not run here ({error.stderr.splitlines()[-1]}): own figures only\n")
        del IMPORTS["executorch.runtime"], FIRST_RESULTS["executorch.runtime"]
    compare("import", IMPORTS, rounds)
    compare("import, load add.pte, run it once", FIRST_RESULTS, rounds)


if __name__ == "__main__":
    main()

"""What one call costs: the sum of two 2x2 arrays, where next to nothing is computed.

    python benchmarks/call_cost.py [--rounds N]

Beside `executorch.runtime` where that can be imported, in the same process, over the same library.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy
from side_by_side import MODELS, header, in_turn, table

import et_cffi

CALLS = 500  # in a batch: long enough for the clock, short enough to share what the machine is doing


def batch(execute: Callable[[Any], Any], inputs: Any) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            execute(inputs)
        return (time.perf_counter_ns() - start) / CALLS / 1000

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    print(header("executorch", "torch", "numpy"))

    model = MODELS / "add.pte"
    arrays = [numpy.array([[1, 2], [3, 4]], "f4"), numpy.array([[5, 6], [7, 8]], "f4")]
    # Loaded before torch is: its results are then TensorBuffers, as where there is no torch.
    own = et_cffi.Runtime.get().load_program(model).load_method("forward")
    sides = {"et_cffi, arrays": batch(own.execute, arrays)}
    try:
        import torch
        from executorch.runtime import Runtime
    except ImportError as error:
        print(f"executorch.runtime cannot be imported here ({error}): own figures only\n")
    else:
        tensors = [torch.tensor(array) for array in arrays]
        with_torch = et_cffi.Runtime.get().load_program(model).load_method("forward")
        official = Runtime.get().load_program(model).load_method("forward")
        sides["et_cffi, torch tensors"] = batch(with_torch.execute, tensors)
        sides["executorch.runtime, torch tensors"] = batch(official.execute, tensors)
        assert isinstance(own.execute(arrays)[0], et_cffi.TensorBuffer)
        results = [own.execute(arrays)[0], with_torch.execute(tensors)[0], official.execute(tensors)[0]]
        assert all(numpy.asarray(result).tolist() == [[6, 8], [10, 12]] for result in results)
    print(f"execute() of add.pte, {rounds} rounds of {CALLS} calls")
    print(table(in_turn(sides, rounds), "microseconds", "et_cffi, arrays"))


if __name__ == "__main__":
    main()

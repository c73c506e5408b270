"""One side of a comparison: a process that times statements when it is asked to.

Started by measure.py, with whatever Python has the side's packages; it needs nothing but the standard
library. Each line of its input is a request and each line of its output the answer, in JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
import timeit
import traceback
from typing import Any

# Libraries print what they like; the answers go where nothing else does.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

# PyPy compiles what it has seen often, and until then a call takes fifty times as long.
WARM_UP = 4.0 if sys.implementation.name == "pypy" else 0.0
BATCHES = 3
# timeit turns the collector off, and with it PyPy's finalisers, which give results back.
COLLECTING = "import gc; gc.enable()"


def calls_in(timer: timeit.Timer, seconds: float) -> int:
    """How many calls take about so long, after some to warm up."""
    until = time.monotonic() + WARM_UP * min(1, seconds * 50)
    while time.monotonic() < until:
        timer.timeit(100)
    calls = 1
    while timer.timeit(calls) < seconds / 4:
        calls *= 2
    took = min(timer.timeit(calls) for _ in range(BATCHES))
    return max(1, round(calls * seconds / took))


def answer(request: dict[str, Any], sides: dict[str, Any]) -> Any:
    name = request["side"]
    if "setup" in request:
        namespace: dict[str, Any] = {}
        exec(request["setup"], namespace)
        timer = timeit.Timer(request["statement"], COLLECTING, globals=namespace)
        sides[name] = (timer, calls_in(timer, request["seconds"]), namespace)
        return None
    timer, calls, namespace = sides[name]
    if "evaluate" in request:
        return eval(request["evaluate"], namespace)
    return timer.timeit(calls) / calls


def main() -> None:
    sides: dict[str, Any] = {}
    for line in sys.stdin:
        try:
            said = {"answer": answer(json.loads(line), sides)}
        except BaseException as error:
            said = {"error": "".join(traceback.format_exception(type(error), error, error.__traceback__))}
        print(json.dumps(said), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()

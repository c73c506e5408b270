"""Sides measured in turn, each in a process of its own, and what is made of their figures.

A figure from one run and a figure from another differ by what else the machine was doing. Here each round
measures every side, one after the other, and a ratio is taken within a round.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def environment(**more: str) -> dict[str, str]:
    """This process's environment, with bytecode written and read as usual."""
    return {**{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}, **more}


def run_code(python: str, code: str) -> str:
    """The last line that the code prints, in a process of its own."""
    # Away from the source tree, whose et_cffi would be found before an installed one.
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd="/", env=environment())
    if done.returncode:
        raise SystemExit(f"{python} failed:\n{done.stderr}")
    return done.stdout.splitlines()[-1]


class _Process:
    """Answers line by line."""

    def __init__(self, command: Sequence[str], **variables: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - close() closes it
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
            env=environment(**variables),
        )

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
        said = self._process.stdout.readline()
        if not said:
            status = self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(
                f"{self._process.args!r} ended with status {status}:\n{self._errors.read()[-2000:]}"
            )
        return said

    def close(self) -> None:
        self._process.communicate()
        self._errors.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Worker(_Process):
    """A Python with a side's packages (worker.py)."""

    def __init__(self, python: str, **variables: str) -> None:
        super().__init__([python, str(HERE / "worker.py")], **variables)

    def _request(self, **request: Any) -> Any:
        said = json.loads(self.ask(json.dumps(request)))
        if "error" in said:
            raise RuntimeError(said["error"])
        return said["answer"]

    def side(self, name: str, setup: str, statement: str, seconds: float) -> Callable[[], float]:
        """What times the statement, in batches of about so many seconds: seconds per call."""
        self._request(side=name, setup=setup, statement=statement, seconds=seconds)
        return lambda: float(self._request(side=name))

    def evaluate(self, name: str, expression: str) -> Any:
        """An expression's value among the names of a side's setup."""
        return self._request(side=name, evaluate=expression)


class Floor(_Process):
    """floor.cpp: a C++ loop over the same libraries."""

    def __init__(self, program: Path, model: Path, seconds: float, **variables: str) -> None:
        super().__init__([str(program), str(model)], **variables)
        calls = 1
        while self.seconds(calls) * calls < seconds / 4:
            calls *= 2
        self._calls = max(1, round(seconds / min(self.seconds(calls) for _ in range(3))))

    def seconds(self, calls: int) -> float:
        return float(self.ask(str(calls)))

    def copied(self) -> int:
        """Bytes copied until now, where the library of copies.c is in LD_PRELOAD."""
        return int(self.ask("copied"))

    def __call__(self) -> float:
        return self.seconds(self._calls)


def in_turn(sides: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """One figure of each side per round; a first round, which is not counted, warms them up."""
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, measure in sides.items():
            figure = measure()
            if number:
                figures[name].append(figure)
    return figures


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The quarter of the values below, the median, and the quarter above."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Round by round, how many times the other it is."""
    return [value / other for value, other in zip(values, others)]

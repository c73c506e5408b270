"""Runs numbered cases in child processes, so that one which ends its process is counted and not the last.

A child is forked with everything imported, works through the cases in order, and tells about each before and
after: when it dies or stays silent for too long, the case that it had begun is the one to blame, and a new
child goes on behind it. Needs fork, and no threads in the process that calls `run`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import select
import signal
import tempfile
import traceback
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

# A child starts afresh after this many cases. More than one, so that what a case destroyed without ending its
# process has others to end; not many, so that they are not far behind it.
_CASES_PER_CHILD = 100


class Result(NamedTuple):
    """What became of one case.

    `outcome` is what `work` returned, or "crash" (`detail`: the signal, and the Python stack at that time),
    "hang", "exit" (the process ended without a signal), or "exception" (`detail`: the traceback).
    """

    case: int
    outcome: str
    detail: str


def run(
    work: Callable[[int], tuple[str, str]], cases: range, *, seconds: float, address_space: int
) -> Iterator[Result]:
    """Calls `work(case)` in a child for each case.

    Args:
        work: returns an outcome and a detail.
        cases: which numbers.
        seconds: how long a case may take.
        address_space: bytes that a child may map, so that a size without sense fails instead of swapping.
    """
    at = 0
    while at < len(cases):
        batch = cases[at : at + _CASES_PER_CHILD]
        for result in _run_child(work, batch, seconds, address_space):
            if result.outcome == "crash" and result.case != batch[0]:
                alone = range(result.case, result.case + 1)
                (again,) = _run_child(work, alone, seconds, address_space)
                if again.outcome != "crash":
                    detail = f"after the cases from {batch[0]} on, and {again.outcome} alone\n{result.detail}"
                    result = result._replace(detail=detail)
            yield result
            at += 1


def _run_child(
    work: Callable[[int], tuple[str, str]], cases: range, seconds: float, address_space: int
) -> Iterator[Result]:
    """The results of one child: of all the cases, or up to and with the one that ended it."""
    with tempfile.TemporaryFile() as stacks:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _child(work, cases, writing, stacks, address_space)
        os.close(writing)
        done, silent = 0, False
        try:
            for result in _read(reading, seconds):
                if result is None:
                    silent = True
                    os.kill(pid, signal.SIGABRT)  # faulthandler then writes where it was
                    break
                yield result
                done += 1
        except BaseException:  # the caller wants no more
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            os.close(reading)
            status = os.waitpid(pid, 0)[1]
        if done == len(cases):
            return
        stacks.seek(0)
        stack = stacks.read().decode("utf-8", "replace").strip()
        if silent:
            yield Result(cases[done], "hang", f"no end after {seconds:g} s\n{stack}")
        elif os.WIFSIGNALED(status):
            yield Result(cases[done], "crash", f"{signal.Signals(os.WTERMSIG(status)).name}\n{stack}")
        else:
            yield Result(cases[done], "exit", f"status {status}\n{stack}")


def _child(work: Any, cases: range, writing: int, stacks: Any, address_space: int) -> None:
    try:
        faulthandler.enable(stacks, all_threads=False)
        resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for case in cases:
            try:
                outcome, detail = work(case)
            except BaseException:  # whatever it is, it must not get past here
                outcome, detail = "exception", traceback.format_exc()
            _write(writing, json.dumps([case, outcome, detail]).encode() + b"\n")
        os._exit(0)
    finally:
        # Never back into the caller's code, which belongs to the parent.
        os._exit(3)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _read(reading: int, seconds: float) -> Iterator[Result | None]:
    """The results as they come; None where none came in time."""
    rest = b""
    while select.select([reading], [], [], seconds)[0]:
        data = os.read(reading, 1 << 16)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield Result(*json.loads(line))
    yield None

"""python -m et_cffi batch: runs a method on many files."""

from __future__ import annotations

import argparse
import functools
import glob
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from et_cffi import ExecuTorchError, MethodMeta, MethodPool, Program, set_num_threads
from et_cffi.cli import show
from et_cffi.cli.describe import choose_method
from et_cffi.cli.destination import Destination
from et_cffi.cli.failure import FAILED, UsageError, line_of
from et_cffi.cli.inputs import read_inputs
from et_cffi.cli.measuring import processors
from et_cffi.cli.numbers import positive
from et_cffi.cli.outputs import Output, name_outputs, save_npz
from et_cffi.cli.source import Source, add_model_arguments, open_source, sha256
from et_cffi.cli.stacking import Stacked, check_stackable
from et_cffi.errors import MethodStateError, RuntimeCheckError
from et_cffi.inspection import inspect

SUMMARY = "run a method on many files"

DESCRIPTION = """\
Runs a method on many files, several at once, and writes the outputs for each to a .npz of the same
name in the directory --output. Each --input names the files of one input, as patterns (** for any
directories) or one by one; with several inputs the files go together in sorted order. A .npz is the
inputs of one run; everything else is as for `run`.

What is done is not done again: a result that is there and not older than its files is kept, so that
an interrupted batch goes on where it was. A result is whole or not there, even if the process is
killed. Results of another model or method in the directory are refused. A file that fails is told at
the end, and the others are done all the same.

--stack N gives the method N files in one run, along a dynamic first dimension: files of one row each,
with or without that dimension, or of several. If such a run fails, its files are run one by one.

examples:
  python -m et_cffi batch model.pte --input 'frames/*.npy' --output out/
  python -m et_cffi batch model.pte --input 'a/*.npy' --input 'b/*.npy' --output out/ --jobs 4
  python -m et_cffi batch model.pte --input 'frames/**/*.npy' --output out/ --stack 8

exit status: 0 if every file is done; 1 if one failed, or the model could not be loaded; 2 for bad
use or a bad file. An error is one line on stderr.
"""

_SHOWN = 20  # how many failures are told to a person


class _Item(NamedTuple):
    """A run: its files, one for each --input, and the result's name below the output directory."""

    files: tuple[str, ...]
    name: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    add_model_arguments(parser)
    parser.add_argument(
        "--input",
        metavar="FILES",
        action="append",
        nargs="+",
        required=True,
        help="the files of an input: patterns or names; repeat --input for a method of more inputs",
    )
    parser.add_argument(
        "--output", metavar="DIRECTORY", type=Path, required=True, help="where the results go"
    )
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=positive,
        help="how many methods run at once; by default one for each processor, each with one thread",
    )
    parser.add_argument(
        "--threads", metavar="N", type=positive, help="threads for kernels and backends; 1 with several jobs"
    )
    parser.add_argument("--stack", metavar="N", type=positive, default=1, help="so many files in one run")
    parser.add_argument("--again", action="store_true", help="do everything again, and replace what is there")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def execute(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    items = _items(arguments.input)
    source = open_source(arguments.model, arguments.data)
    meta = source.program.metadata(choose_method(source.program, arguments.method))
    if arguments.stack > 1:
        check_stackable(meta, arguments.stack)
    jobs = _jobs(arguments, source.program, meta.name())
    if jobs > 1 or arguments.threads is not None:
        set_num_threads(arguments.threads or 1)
    worker = _Worker(source.program, meta, jobs, arguments.stack)
    discarded = [item.name for item in items] if arguments.again else None
    destination = Destination(arguments.output, _made_by(source, arguments, meta), discarded)
    try:
        wanted = [item for item in items if not destination.is_newer(item.name, item.files)]
        began = time.perf_counter()
        failures = worker.run(wanted, destination)
        seconds = time.perf_counter() - began
    finally:
        destination.close()
    known = {
        "done": len(wanted) - len(failures),
        "before": len(items) - len(wanted),
        "failed": [{"files": list(item.files), "error": error} for item, error in failures],
        "seconds": seconds,
        "output": str(arguments.output),
    }
    print(json.dumps(known) if arguments.json else "\n".join(_lines(known)))
    return FAILED if failures else 0


# ---- what is to be done ---------------------------------------------------------------------------------


def _items(inputs: list[list[str]]) -> list[_Item]:
    """The runs, in sorted order of their files."""
    columns = [_files(patterns) for patterns in inputs]
    if len({len(files) for files in columns}) != 1:
        counts = ", ".join(str(len(files)) for files in columns)
        raise UsageError(f"each --input has to give as many files as the others, and they give {counts}")
    root = os.path.commonpath([str(Path(file).absolute().parent) for file in columns[0]])
    items: dict[Path, _Item] = {}
    for files in zip(*columns):
        # The name without its suffix, which may have dots of its own: with_suffix would take one more off.
        below = Path(files[0]).absolute().relative_to(root)
        name = below.with_name(f"{below.stem}.npz")
        if name in items:
            raise UsageError(f"{items[name].files[0]} and {files[0]} would both be {name} in the output")
        items[name] = _Item(files, name)
    return list(items.values())


def _files(patterns: list[str]) -> list[str]:
    found: set[str] = set()
    for pattern in patterns:
        matching = [pattern] if Path(pattern).is_file() else glob.glob(pattern, recursive=True)
        matching = [file for file in matching if Path(file).is_file()]
        if not matching:
            raise UsageError(f"--input {pattern}: there is no such file")
        found.update(matching)
    return sorted(found)


def _jobs(arguments: argparse.Namespace, program: Program, method: str) -> int:
    keeps_state = any(each.name == method and each.keeps_state for each in inspect(program).methods)
    if keeps_state:
        # Which of the methods a file meets, and after which others, would be chance.
        raise UsageError(
            f"the method '{method}' changes its own state (or its inputs) in place, so that a result may "
            "depend on the files before; use Python, where the order is yours"
        )
    if arguments.jobs is not None:
        return int(arguments.jobs)
    if arguments.threads is not None:
        return 1
    return processors()


def _made_by(source: Source, arguments: argparse.Namespace, meta: MethodMeta) -> dict[str, Any]:
    digests = [sha256(path) for path in (source.path, *arguments.data)]
    return {"sha256": digests, "method": meta.name()}


# ---- doing it -------------------------------------------------------------------------------------------


class _Worker:
    """Methods in a pool, for as many threads."""

    def __init__(self, program: Program, meta: MethodMeta, jobs: int, stack: int) -> None:
        self._program, self._meta, self._jobs, self._stack = program, meta, jobs, stack
        self._lock = threading.Lock()
        self._pool = MethodPool(program, meta.name(), jobs)
        self._failures: list[tuple[_Item, str]] = []

    def run(self, items: list[_Item], destination: Destination) -> list[tuple[_Item, str]]:
        """Does all of them, and returns those that failed and why, in the order of the items."""
        from concurrent.futures import ThreadPoolExecutor

        size = self._stack
        groups = iter([items[at : at + size] for at in range(0, len(items), size)])
        progress = show.Progress(len(items), "files")
        try:
            with ThreadPoolExecutor(self._jobs) as executor:
                futures = [
                    executor.submit(self._work, groups, destination, progress) for _ in range(self._jobs)
                ]
                for future in futures:
                    future.result()
        finally:
            progress.close()
            self._pool.close()
        places = {item.name: place for place, item in enumerate(items)}
        return sorted(self._failures, key=lambda failure: places[failure[0].name])

    def _work(self, groups: Iterator[list[_Item]], destination: Destination, progress: show.Progress) -> None:
        while True:
            with self._lock:
                group = next(groups, None)
            if group is None:
                return
            self._do(group, destination)
            with self._lock:
                for _ in group:
                    progress.step()

    def _do(self, group: list[_Item], destination: Destination) -> None:
        try:
            for item, outputs in zip(group, self._outputs(group)):
                destination.write(item.name, functools.partial(save_npz, outputs))
        except (UsageError, ExecuTorchError, OSError, MemoryError) as error:
            if len(group) > 1:
                for item in group:  # one of them spoils it for the others
                    self._do([item], destination)
                return
            with self._lock:
                self._failures.append((group[0], line_of(error)))

    def _outputs(self, group: list[_Item]) -> list[list[Output]]:
        sets = [read_inputs(item.files, self._meta) for item in group]
        if self._stack == 1:
            return [name_outputs(self._execute(sets[0]), self._meta)]
        stacked = Stacked(sets, self._meta)
        return stacked.split(name_outputs(self._execute(stacked.inputs), self._meta))

    def _execute(self, inputs: list[Any]) -> list[Any]:
        pool = self._pool
        try:
            return pool.execute(inputs)
        except RuntimeCheckError:
            self._replace(pool)
            raise
        except MethodStateError:  # the method that another file broke
            self._replace(pool)
            return self._pool.execute(inputs)

    def _replace(self, pool: MethodPool) -> None:
        """A method in which a check of the runtime failed does not run again: new ones take their place."""
        with self._lock:
            if self._pool is pool:
                self._pool = MethodPool(self._program, self._meta.name(), self._jobs)


def _lines(known: dict[str, Any]) -> list[str]:
    done, before, failed, seconds = (known[name] for name in ("done", "before", "failed", "seconds"))
    speed = f", {done / seconds:,.1f} per second" if done else ""
    lines = [
        f"{done:,} done, {len(failed):,} failed, {before:,} were done before, in {known['output']} "
        f"({show.duration(seconds)}{speed})"
    ]
    lines += [f"  {', '.join(each['files'])}: {each['error']}" for each in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        lines.append(f"  and {len(failed) - _SHOWN:,} more")
    return lines

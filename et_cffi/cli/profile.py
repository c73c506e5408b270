"""python -m et_cffi profile: where a method's time goes."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from et_cffi import Program, num_threads, set_num_threads
from et_cffi.cli import show
from et_cffi.cli.describe import choose_method
from et_cffi.cli.failure import UsageError
from et_cffi.cli.made_inputs import given_or_made
from et_cffi.cli.numbers import natural, positive
from et_cffi.cli.plots import check_plot_path, profile_figure
from et_cffi.cli.plots import save as save_plot
from et_cffi.cli.source import add_model_arguments, open_source
from et_cffi.etdump import Event, Run, read

SUMMARY = "where a method's time goes, by operator and delegate"

DESCRIPTION = """\
Runs a method with the runtime's own tracing (ETDump) and prints how long each operator and each
delegate takes, the longest first: time per run (the mean of all runs), its share of the whole, and
how often it is called. What a backend says of the inside of its delegate stands below it; XNNPACK
counts in microseconds. Tracing itself takes time, so that `bench` tells how long a run takes without.

--trace writes the runs as a Chrome trace, which https://ui.perfetto.dev opens.

examples:
  python -m et_cffi profile model.pte
  python -m et_cffi profile model.pte --input x.npy --each --plot profile.png
  python -m et_cffi profile model.pte --trace trace.json

It needs the package flatbuffers (pip install et_cffi[devtools]).

exit status: 0; 1 where the model could not be loaded or failed; 2 for bad use or a bad file.
An error is one line on stderr.
"""

_BAR = 24
_PLOTTED = 40  # how many bars fit a drawing
_EXECUTE, _LOAD, _DELEGATE = "Method::execute", "Program::load_method", "DELEGATE_CALL"


class Row(NamedTuple):
    """An operator, a delegate, or something inside of one."""

    name: str
    kind: str
    """"operator", "delegate", "inside" (of the delegate above), or "between" (what no instruction took)."""
    calls: float
    """Per run."""
    seconds: float
    """Per run, the mean."""
    share: float
    """Of the whole run."""


class Profile(NamedTuple):
    """Where the time of some runs went."""

    runs: int
    execute_s: float
    load_s: float
    rows: list[Row]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    add_model_arguments(parser)
    parser.add_argument(
        "--input",
        metavar="INPUT",
        action="append",
        default=[],
        help="an input, as for `run`; made by default",
    )
    parser.add_argument("--runs", type=positive, default=20, help="how many runs (default: 20)")
    parser.add_argument("--warmup", type=natural, default=3, help="runs before, not counted (default: 3)")
    parser.add_argument("--threads", type=positive, help="how many threads kernels and backends use")
    parser.add_argument(
        "--each", action="store_true", help="a row for each instruction, not one for all of an operator's"
    )
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw the rows (.png, .svg, .pdf)")
    parser.add_argument("--trace", metavar="FILE.json", type=Path, help="write a Chrome trace")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def execute(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    if arguments.plot is not None:
        check_plot_path(arguments.plot)
    if arguments.trace is not None and not arguments.trace.parent.is_dir():
        raise UsageError(f"--trace {arguments.trace}: there is no directory '{arguments.trace.parent}'")
    if arguments.threads is not None:
        set_num_threads(arguments.threads)
    source = open_source(arguments.model, arguments.data, enable_etdump=True)
    meta = source.program.metadata(choose_method(source.program, arguments.method))
    inputs = given_or_made(arguments.input, meta)
    with source.program.load_method(meta.name()) as method:
        for _ in range(arguments.warmup):
            method.execute(inputs)
        before = _recorded(source.program)
        for _ in show.progress(range(arguments.runs), arguments.runs, "runs"):
            method.execute(inputs)
        runs = _recorded(source.program)
    loads = [run for run in before if any(event.name == _LOAD for event in run.events)]
    backends = sorted(set(meta.backends))
    found = summarize(loads, runs, backends[0] if len(backends) == 1 else "", arguments.each)
    if arguments.trace is not None:
        name = f"{Path(source.path).name} {meta.name()}"
        arguments.trace.write_text(json.dumps(chrome_trace(loads + runs, name)), encoding="utf-8")
    if arguments.plot is not None:
        rows = [(row.name, row.seconds, row.kind == "inside") for row in found.rows[:_PLOTTED]]
        title = f"{Path(source.path).name}, {meta.name()}: {show.duration(found.execute_s)} per run"
        save_plot(profile_figure(rows, title), arguments.plot)
    if arguments.json:
        print(json.dumps(_as_json(found, meta.name())))
    else:
        _print(found, meta.name(), arguments)
    return 0


def _recorded(program: Program) -> list[Run]:
    """What was traced since the last time."""
    handle, path = tempfile.mkstemp(suffix=".etdp")
    os.close(handle)
    try:
        program.write_etdump_result_to_file(path)
        return read(path).runs
    finally:
        Path(path).unlink()


# ---- summing up -----------------------------------------------------------------------------------------


def summarize(loads: list[Run], runs: list[Run], backend: str, each: bool) -> Profile:
    """Where the time went: a row for each operator, or with `each` for each instruction.

    Args:
        loads: the loading of the method.
        runs: its runs.
        backend: what delegates are called: the one backend that there is, else "".
        each: whether instructions of the same operator have rows of their own.
    """
    count = len(runs)
    whole = sum(_named(run, _EXECUTE) for run in runs) / count / 1e9
    totals: dict[tuple[str, int | None], list[float]] = {}
    inside: dict[tuple[str, int | None], dict[str, list[float]]] = {}
    for run in runs:
        keys = {}
        for event in run.operators:
            key = (_name(event, backend), event.instruction if each else None)
            keys[event.instruction] = key
            _add(totals.setdefault(key, [0, 0]), event)
        for event in run.delegate_events:
            if event.instruction in keys:
                names = inside.setdefault(keys[event.instruction], {})
                _add(names.setdefault(event.name, [0, 0]), event)
    rows = []
    for key, (calls, nanoseconds) in sorted(totals.items(), key=lambda item: -item[1][1]):
        name = f"{key[1]}: {key[0]}" if each else key[0]
        kind = "delegate" if key[0].startswith("delegate") else "operator"
        rows.append(_row(name, kind, calls, nanoseconds, count, whole))
        parts = inside.get(key, {})
        for part, (calls, nanoseconds) in sorted(parts.items(), key=lambda item: -item[1][1]):
            rows.append(_row(part, "inside", calls, nanoseconds, count, whole))
    rest = max(0.0, whole - sum(row.seconds for row in rows if row.kind != "inside"))
    rows.append(Row("between instructions", "between", 0, rest, rest / whole if whole else 0))
    load = sum(_named(run, _LOAD) for run in loads) / 1e9
    return Profile(count, whole, load, rows)


def _add(total: list[float], event: Event) -> None:
    total[0] += 1
    total[1] += event.nanoseconds


def _row(name: str, kind: str, calls: float, nanoseconds: float, runs: int, whole: float) -> Row:
    seconds = nanoseconds / runs / 1e9
    return Row(name, kind, calls / runs, seconds, seconds / whole if whole else 0)


def _named(run: Run, name: str) -> int:
    return sum(event.nanoseconds for event in run.events if event.name == name)


def _name(event: Event, backend: str) -> str:
    return f"delegate {backend}".rstrip() if event.name == _DELEGATE else event.name


def chrome_trace(runs: list[Run], name: str) -> dict[str, Any]:
    """The events in the format of Chrome's tracing, times in microseconds from the first on.

    What happens inside of delegates has a track of its own: a backend's clock is not the runtime's.
    """
    begin = min((event.start for run in runs for event in run.events), default=0)
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": name}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "method"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "inside delegates"}},
    ]
    for run in runs:
        operators = {event.instruction: event.name for event in run.operators}
        # The outer one of two that begin together comes first.
        for event in sorted(run.events, key=lambda each: (each.start, -each.end)):
            within = event.delegate_id is not None
            called = event.name in ("OPERATOR_CALL", _DELEGATE)
            traced: dict[str, Any] = {
                "ph": "X",
                "pid": 1,
                "tid": 2 if within else 1,
                "name": operators.get(event.instruction, event.name) if called else event.name,
                "cat": "delegate" if within else "runtime",
                "ts": (event.start - begin) / 1e3,
                "dur": event.nanoseconds / 1e3,
            }
            if event.instruction is not None:
                traced["args"] = {"instruction": event.instruction}
            events.append(traced)
    return {"traceEvents": events, "displayTimeUnit": "ns"}


# ---- telling --------------------------------------------------------------------------------------------


def _as_json(found: Profile, method: str) -> dict[str, Any]:
    return {
        "method": method,
        "runs": found.runs,
        "threads": num_threads(),
        "execute_ms": found.execute_s * 1e3,
        "load_ms": found.load_s * 1e3,
        "rows": [
            {
                "name": row.name,
                "kind": row.kind,
                "calls": row.calls,
                "mean_ms": row.seconds * 1e3,
                "share": row.share,
            }
            for row in found.rows
        ],
    }


def _print(found: Profile, method: str, arguments: argparse.Namespace) -> None:
    print(
        f"method {method}: {show.duration(found.execute_s)} per run (mean of {found.runs}), loaded in "
        f"{show.duration(found.load_s)}, {show.count(num_threads(), 'thread')}"
    )
    rows = []
    for row in found.rows:
        rows.append(
            [
                f"  {row.name}" if row.kind == "inside" else row.name,
                f"{row.calls:g}" if row.calls else "",
                show.duration(row.seconds),
                f"{100 * row.share:.1f} %",
                show.bar(row.share, _BAR),
            ]
        )
    show.table(["operator", ">calls", ">time", ">share", ""], rows)
    for what, path in (("plot", arguments.plot), ("trace", arguments.trace)):
        if path is not None:
            print(f"{what}: {path}")

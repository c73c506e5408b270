"""`python -m et_cffi profile`: its sums beside events that are known, its trace, its plot."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import model_index
import numpy
import pytest

from et_cffi import Runtime, etdump
from et_cffi.cli import main
from et_cffi.cli.profile import chrome_trace, summarize

MODELS = model_index.DIRECTORY


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        status = main(["profile", *map(str, arguments)])
        return status, *capsys.readouterr()

    return call


def event(name, instruction, start, nanoseconds, delegate_id=None):
    return etdump.Event(name, instruction, start, start + nanoseconds, delegate_id, b"")


def known_run(start, scale):
    """A run of two adds, a delegate with two parts, and 100 * scale nanoseconds between."""
    events = [
        event("native_call_add.out", 0, start + 1, 90 * scale),
        event("OPERATOR_CALL", 0, start, 100 * scale),
        event("fc", 1, start + 200, 150 * scale, "fc"),
        event("conv", 1, start + 300, 250 * scale, "conv"),
        event("DELEGATE_CALL", 1, start + 200, 500 * scale),
        event("OPERATOR_CALL", 2, start + 800, 300 * scale),
        event("native_call_add.out", 2, start + 801, 1),
        event("Method::execute", None, start, 1000 * scale),
    ]
    return etdump.Run("Execute", events, [])


LOAD = etdump.Run("Default", [event("Program::load_method", None, 5, 7000)], [])


def test_sums():
    found = summarize([LOAD], [known_run(10_000, 1), known_run(90_000, 3)], "Backend", False)
    assert (found.runs, found.execute_s, found.load_s) == (2, pytest.approx(2e-6), pytest.approx(7e-6))
    assert [(row.name, row.kind, row.calls) for row in found.rows] == [
        ("delegate Backend", "delegate", 1),
        ("conv", "inside", 1),
        ("fc", "inside", 1),
        ("add.out", "operator", 2),
        ("between instructions", "between", 0),
    ]
    assert [row.seconds for row in found.rows] == pytest.approx([1e-6, 500e-9, 300e-9, 800e-9, 200e-9])
    assert [row.share for row in found.rows] == pytest.approx([0.5, 0.25, 0.15, 0.4, 0.1])


def test_each_instruction():
    found = summarize([], [known_run(0, 1)], "", True)
    assert [(row.name, round(row.seconds * 1e9)) for row in found.rows if row.kind != "inside"] == [
        ("1: delegate", 500),
        ("2: add.out", 300),
        ("0: add.out", 100),
        ("between instructions", 100),
    ]


def test_a_trace_of_known_events():
    trace = chrome_trace([LOAD, known_run(1005, 1)], "a name")
    events = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    assert (events[0]["name"], events[0]["ts"], events[0]["dur"]) == ("Program::load_method", 0, 7)
    found = {(each["name"], each["tid"], each["ts"], each["dur"]) for each in events}
    assert ("Method::execute", 1, 1.0, 1.0) in found
    assert ("add.out", 1, 1.8, 0.3) in found
    assert ("conv", 2, 1.3, 0.25) in found
    assert ("DELEGATE_CALL", 1, 1.2, 0.5) in found
    assert sum(each["ph"] == "M" for each in trace["traceEvents"]) == 3


# ---- the command ------------------------------------------------------------------------------------------


def recorded(name):
    """The operators that a run of a model calls, by the reader of ETDumps."""
    program = Runtime.get().load_program(MODELS / f"{name}.pte", enable_etdump=True)
    program.load_method("forward").execute(model_index.cases(name, "forward")[0].inputs)
    with tempfile.TemporaryDirectory() as directory:
        program.write_etdump_result_to_file(Path(directory, "a"))
        return etdump.read(Path(directory, "a")).runs[-1]


@pytest.mark.parametrize(
    "name", ["mlp_dynamic", "two_dynamic", "conv_xnnpack", "digits", "quantized_portable"]
)
def test_operators_of_models(name, run):
    status, out, err = run(MODELS / f"{name}.pte", "--json", "--runs", "4", "--warmup", "1")
    assert (status, err) == (0, "")
    known, ran = json.loads(out), recorded(name)
    assert known["runs"] == 4
    calls = {row["name"]: row["calls"] for row in known["rows"] if row["kind"] == "operator"}
    names = [each.name for each in ran.operators if each.name != "DELEGATE_CALL"]
    assert calls == {each: names.count(each) for each in names}
    inside = [row["name"] for row in known["rows"] if row["kind"] == "inside"]
    assert sorted(inside) == sorted({each.name for each in ran.delegate_events})
    rows = [row for row in known["rows"] if row["kind"] != "inside"]
    assert sum(row["mean_ms"] for row in rows) == pytest.approx(known["execute_ms"])
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    times = [row["mean_ms"] for row in rows[:-1]]
    assert times == sorted(times, reverse=True)
    assert known["load_ms"] > 0


def test_a_table_with_bars(run):
    status, out, _ = run(MODELS / "conv_xnnpack.pte", "--runs", "3", "--threads", "1")
    assert status == 0
    assert re.match(
        r"method forward: \S+ [mu]?s per run \(mean of 3\), loaded in \S+ [mu]?s, 1 thread\n", out
    )
    rows = re.findall(r"^ +(.+?)  +(?:1 +)?\S+ [mu]?s +(\S+) %(?:  (\S*))?$", out, re.MULTILINE)
    assert rows[0][0] == "delegate XnnpackBackend"
    for _, share, bar in rows:
        assert abs(len(bar) - 24 * float(share) / 100) <= 1.01


def test_a_trace_file(run, tmp_path):
    assert run(MODELS / "mlp_dynamic.pte", "--runs", "3", "--trace", "trace.json")[0] == 0
    trace = json.loads((tmp_path / "trace.json").read_text())
    spans = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    assert sum(each["name"] == "Method::execute" for each in spans) == 3  # none of the warm-up
    assert sum(each["name"] == "addmm.out" for each in spans) == 6
    assert min(each["ts"] for each in spans) == 0
    # What a viewer of these files asks of a track: two spans lie one inside the other, or beside it.
    for track in {each["tid"] for each in spans}:
        open_until = []
        for each in (span for span in spans if span["tid"] == track):
            while open_until and open_until[-1] <= each["ts"] + 1e-9:
                open_until.pop()
            assert not open_until or each["ts"] + each["dur"] <= open_until[-1] + 1e-9
            open_until.append(each["ts"] + each["dur"])


def test_a_plot(run, tmp_path):
    assert run(MODELS / "digits.pte", "--runs", "3", "--plot", "profile.svg")[0] == 0
    assert "<svg" in (tmp_path / "profile.svg").read_text(encoding="utf-8")


def test_a_plot_has_a_bar_for_each_row():
    from et_cffi.cli.plots import profile_figure

    rows = [("delegate", 3e-3, False), ("conv", 2e-3, True), ("add.out", 5e-4, False)]
    (axes,) = profile_figure(rows, "title").axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([3, 2, 0.5])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["delegate", "conv", "add.out"]
    assert axes.get_xlabel() == "time per run (ms)"
    assert axes.yaxis_inverted()


def test_given_inputs(run):
    case = model_index.cases("digits", "forward")[0]
    numpy.save("x.npy", case.inputs[0])
    assert run(MODELS / "digits.pte", "--input", "x.npy", "--runs", "2")[0] == 0
    assert run(MODELS / "digits.pte", "--input", "x.npy", "--input", "x.npy")[0] == 2


def test_a_terminal_of_another_encoding():
    done = subprocess.run(
        [sys.executable, "-m", "et_cffi", "profile", str(MODELS / "digits.pte"), "--runs", "2"],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b" %  #####" in done.stdout
    assert b"\\u" not in done.stdout


def test_without_flatbuffers(tmp_path):
    (tmp_path / "flatbuffers.py").write_text("raise ModuleNotFoundError('blocked', name='flatbuffers')")
    done = subprocess.run(
        [sys.executable, "-m", "et_cffi", "profile", str(MODELS / "digits.pte")],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: [^\n]*pip install et_cffi\[devtools\]\n", done.stderr)


def test_no_file_is_left_behind(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run(MODELS / "digits.pte", "--runs", "2")[0] == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("MODEL --runs 0", "1 or more"),
        ("MODEL --warmup -1", "0 or more"),
        ("MODEL --plot profile.docx", "give a file of one of these kinds"),
        ("MODEL --trace no/trace.json", "there is no directory 'no'"),
        ("nothing.pte", r"no file 'nothing\.pte'"),
        ("MODEL --method backward", "no method 'backward'"),
    ],
)
def test_bad_use_is_one_line(line, says, run):
    status, out, err = run(*line.replace("MODEL", str(MODELS / "digits.pte")).split())
    assert (status, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert re.search(says, err)


def test_a_model_that_cannot_run(run):
    status, out, err = run(MODELS / "missing_operators.pte")
    assert (status, out, err.count("\n")) == (1, "", 1)

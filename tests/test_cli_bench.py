"""`python -m et_cffi bench`: its statistics, its inputs, its plot."""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time

import model_index
import numpy
import pytest

import et_cffi
from et_cffi import Runtime, ScalarType
from et_cffi.cli import bench, main, measuring
from et_cffi.cli.made_inputs import make_inputs

MODELS = model_index.DIRECTORY


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    threads = et_cffi.num_threads()

    def call(*arguments):
        status = main(["bench", *map(str, arguments)])
        return status, *capsys.readouterr()

    yield call
    gc.collect()
    et_cffi.set_num_threads(threads)


def numbers(called):
    status, out, err = called
    assert (status, err) == (0, "")
    return json.loads(out)


# ---- statistics -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101])
def test_percentiles_are_numpys(count):
    values = numpy.random.default_rng(count).exponential(size=count)
    found = measuring.summarize(values.tolist())
    assert found.minimum == values.min()
    assert found.maximum == values.max()
    for name, share in (("median", 50), ("p90", 90), ("p99", 99)):
        assert getattr(found, name) == pytest.approx(numpy.percentile(values, share), rel=1e-12)
    assert found.mean == pytest.approx(values.mean(), rel=1e-12)
    assert found.throughput == pytest.approx(count / values.sum(), rel=1e-12)
    assert measuring.summarize(values.tolist(), 0.5).throughput == count / 0.5


def test_a_ratio_is_of_pairs():
    """Drift that both share leaves the ratio as it is."""
    rng = numpy.random.default_rng(1)
    drift = numpy.linspace(1, 10, 501)
    noise = numpy.exp(rng.normal(0, 0.1, 501))
    ratio = measuring.compare(drift.tolist(), (2 * drift * noise).tolist())
    assert ratio.median == pytest.approx(numpy.median(2 * noise), rel=1e-12)
    assert ratio.p10 == pytest.approx(numpy.percentile(2 * noise, 10), rel=1e-12)
    assert ratio.p90 == pytest.approx(numpy.percentile(2 * noise, 90), rel=1e-12)
    assert ratio.surely[0] < 2 < ratio.surely[1]
    assert ratio.surely[1] - ratio.surely[0] < 0.1


def test_how_sure_a_ratio_is():
    """Of many samples of a known median, the interval holds it in at least 95 of 100."""
    rng = numpy.random.default_rng(2)
    inside = 0
    for _ in range(1000):
        second = numpy.exp(rng.normal(0, 1, 40))
        low, high = measuring.compare([1.0] * 40, second.tolist()).surely
        inside += low <= 1 <= high
    assert 940 <= inside <= 995


def test_one_run_has_a_ratio():
    assert measuring.compare([2.0], [3.0]) == (1.5, (1.5, 1.5), 1.5, 1.5)


@pytest.mark.linux
def test_resident_memory_grows_by_what_is_used():
    before = measuring.resident()
    block = bytearray(os.urandom(1 << 20)) * 64
    grown = measuring.resident() - before
    assert 60 << 20 < grown < 80 << 20
    assert measuring.peak_resident() >= before + grown
    del block


# ---- inputs -----------------------------------------------------------------------------------------------


RUNNABLE = [
    (name, method)
    for name in model_index.names("runs")
    if name != "linear_external"  # needs its .ptd
    for method, described in model_index.models()[name]["methods"].items()
    if all(info["kind"] in {"tensor", "none"} for info in described["inputs"])
]


@pytest.mark.parametrize(("name", "method"), RUNNABLE)
def test_made_inputs_run(name, method):
    program = Runtime.get().load_program(model_index.path(name))
    meta = program.metadata(method)
    inputs = make_inputs(meta)
    assert len(inputs) == meta.num_inputs()
    for index, value in enumerate(inputs):
        if isinstance(value, numpy.ndarray):
            info = meta.input_tensor_meta(index)
            assert (value.shape, value.dtype.name) == (info.sizes(), str(ScalarType(info.dtype())))
    with program.load_method(method) as loaded:
        loaded.execute(inputs)


def test_numbers_are_not_made_up(run):
    status, out, err = run(MODELS / "scalar_inputs.pte")
    assert (status, out) == (2, "")
    assert "input 1 is of kind Int, which cannot be made up" in err
    numpy.save("x.npy", numpy.ones((2, 2), "f4"))
    given = ["--input", "x.npy", "--input=3", "--input=0.5", "--input=true"]
    assert run(MODELS / "scalar_inputs.pte", *given, "--runs", "3")[0] == 0


# ---- the command ------------------------------------------------------------------------------------------


def test_json(run):
    known = numbers(run(MODELS / "digits.pte", "--runs", "50", "--threads", "1,2", "--json"))
    assert [result["threads"] for result in known["results"]] == [1, 2]
    for result in known["results"]:
        assert result["runs"] == 50
        assert 0 < result["minimum_ms"] <= result["median_ms"] <= result["p90_ms"] <= result["p99_ms"]
        assert result["load_ms"] > 0
    assert known["ratios"] == []
    assert known["resident_bytes"]["peak"] >= known["resident_bytes"]["after_running"] > 1 << 20


def test_latency_is_what_a_run_takes(run, monkeypatch):
    """A run that takes 20 ms is measured as one."""
    execute = et_cffi.Method.execute

    def slow(self, inputs):
        time.sleep(0.02)
        return execute(self, inputs)

    monkeypatch.setattr(et_cffi.Method, "execute", slow)
    (result,) = numbers(run(MODELS / "digits.pte", "--seconds", "0.4", "--json"))["results"]
    assert 20 <= result["minimum_ms"] < 30
    assert 10 <= result["runs"] <= 20  # as many as fit in --seconds
    assert result["runs_per_second"] == pytest.approx(1000 / result["mean_ms"])
    (both,) = numbers(run(MODELS / "digits.pte", "--runs", "10", "--parallel", "2", "--json"))["results"]
    assert (both["runs"], both["parallel"]) == (20, 2)
    assert 51 < both["runs_per_second"] <= 100  # two at once, 50 a second each


@pytest.mark.parametrize("more", [[], ["--parallel", "20"], ["--compare", MODELS / "digits.pte"]])
def test_it_runs_as_long_as_asked(more, run, monkeypatch):
    """However long the runs of the warm-up took, and where methods wait for each other."""
    execute, turn, done = et_cffi.Method.execute, threading.Lock(), itertools.count()

    def slow(self, inputs):
        with turn:
            time.sleep(0.01 if next(done) >= 40 else 0.0001)
            return execute(self, inputs)

    monkeypatch.setattr(et_cffi.Method, "execute", slow)
    began = time.perf_counter()
    arguments = ("--seconds", "0.5", "--warmup", "2", "--json", *more)
    results = numbers(run(MODELS / "digits.pte", *arguments))["results"]
    assert 0.5 <= time.perf_counter() - began < 1.5
    assert sum(result["runs"] for result in results) >= 10


def test_a_slow_method_runs_some_times(run, monkeypatch):
    execute = et_cffi.Method.execute

    def slow(self, inputs):
        time.sleep(0.02)
        return execute(self, inputs)

    monkeypatch.setattr(et_cffi.Method, "execute", slow)
    for more, runs in (([], 10), (["--parallel", "4"], 12), (["--parallel", "20"], 20)):
        (result,) = numbers(run(MODELS / "digits.pte", "--seconds", "0.001", "--json", *more))["results"]
        assert result["runs"] == runs


def test_how_many_runs_are_kept(run, monkeypatch):
    monkeypatch.setattr(bench, "_MOST", 60)
    for more, runs in (([], 60), (["--parallel", "4"], 60), (["--runs", "70"], 70)):
        (result,) = numbers(run(MODELS / "digits.pte", "--seconds", "30", "--json", *more))["results"]
        assert result["runs"] == runs


def test_compare_takes_turns(run, monkeypatch):
    order = []
    execute = et_cffi.Method.execute

    def noted(self, inputs):
        slow = self.metadata.num_inputs() == 2
        order.append(slow)
        time.sleep(0.004 if slow else 0.002)
        return execute(self, inputs)

    monkeypatch.setattr(et_cffi.Method, "execute", noted)
    arguments = ("--runs", "12", "--warmup", "0", "--json")
    known = numbers(run(MODELS / "digits.pte", "--compare", MODELS / "add.pte", *arguments))
    assert [result["runs"] for result in known["results"]] == [12, 12]
    assert order[:2] == [False, True]  # the warm-up, which is a run each at least
    assert order[2:] == [False, True, True, False] * 6
    (ratio,) = known["ratios"]
    # Nothing of how large it is: the machine may be busy with something else.
    assert 0 < ratio["surely"][0] <= ratio["median"] <= ratio["surely"][1]
    out = run(MODELS / "digits.pte", "--compare", MODELS / "add.pte", *arguments[:-1])[1]
    assert re.search(r"\nadd\.pte takes \d+\.\d+ times as long with \d+ threads? \(95 % sure: ", out)


def test_a_table(run):
    out = run(MODELS / "digits.pte", "--runs", "20", "--threads", "1")[1]
    head, row = out.splitlines()[:2]
    assert head.split() == ["threads", "runs", "minimum", "median", "p90", "p99", "runs/s", "load"]
    assert row.split()[:2] == ["1", "20"]
    assert "peak resident: " in out


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_plot(kind, run, tmp_path):
    arguments = ("--runs", "200", "--threads", "1,2", "--plot", f"latency.{kind}")
    assert run(MODELS / "digits.pte", *arguments)[0] == 0
    content = (tmp_path / f"latency.{kind}").read_bytes()
    assert content.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[kind])
    if kind == "png":
        from matplotlib import image

        pixels = image.imread(tmp_path / "latency.png")[..., :3]
        colors = {tuple(color) for color in (pixels.reshape(-1, 3) * 255).round().astype(int).tolist()}
        assert {(31, 119, 180), (255, 127, 14)} <= colors  # a curve for each number of threads


def test_a_plot_shows_the_runs():
    from et_cffi.cli.plots import latency_figure

    seconds = [0.001 * (1 + index % 7) for index in range(70)]
    figure = latency_figure([("one", seconds)], "title")
    runs, shares = figure.axes
    assert runs.lines[0].get_ydata() == pytest.approx([each * 1e3 for each in seconds])
    assert runs.get_ylabel() == "latency (ms)"
    values, heights = shares.lines[0].get_data()
    for value, height in zip(values, heights):
        below = sum(each * 1e3 < value for each in seconds) / 70
        assert below < height <= sum(each * 1e3 <= value for each in seconds) / 70


def test_without_matplotlib(tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError('blocked', name='matplotlib')")
    for more, status in ((["--plot", "x.png"], 2), ([], 0)):
        done = subprocess.run(
            [sys.executable, "-m", "et_cffi", "bench", str(MODELS / "digits.pte"), "--runs", "5", *more],
            capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == status
        if status:
            assert re.fullmatch(r"error: --plot needs .* pip install et_cffi\[plot\]\n", done.stderr)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("MODEL --runs 0", "1 or more"),
        ("MODEL --threads 1,x", "invalid positive_list value|--threads"),
        ("MODEL --threads 0", "1 or more"),
        ("MODEL --seconds 0", "more than 0"),
        ("MODEL --seconds inf", "a finite number"),
        ("MODEL --seconds nan", "a finite number"),
        ("MODEL --data nothing.ptd", r"no data file 'nothing\.ptd'"),
        ("MODEL --parallel 2 --compare MODEL", "without --parallel"),
        ("MODEL --plot latency.docx", "give a file of one of these kinds"),
        ("MODEL --plot no/latency.png", "there is no directory 'no'"),
        ("MODEL --compare nothing.pte", r"no file 'nothing\.pte'"),
        ("MODEL --input nothing.npy", "No such file"),
    ],
)
def test_bad_use_is_one_line(line, says, run):
    status, out, err = run(*line.replace("MODEL", str(MODELS / "digits.pte")).split())
    assert (status, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert re.search(says, err)


def test_a_model_that_cannot_run(run):
    status, out, err = run(MODELS / "missing_backend.pte")
    assert (status, out, err.count("\n")) == (1, "", 1)


def test_methods_are_closed_after_an_error(run):
    """Else the number of threads could not be raised afterwards."""
    gc.collect()  # PyPy may not have met the methods of other tests yet
    numpy.save("x.npy", numpy.zeros((1, 1, 8, 9), "f4"))
    assert run(MODELS / "digits.pte", "--input", "x.npy")[0] == 2
    et_cffi.set_num_threads(et_cffi.num_threads() + 3)

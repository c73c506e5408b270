"""`python -m et_cffi batch`: results, going on after a kill, stacking, failures."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import model_index
import numpy
import pytest

import et_cffi
from et_cffi.cli import main

MODELS = model_index.DIRECTORY
F32 = numpy.float32


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    threads = et_cffi.num_threads()
    yield tmp_path
    gc.collect()
    et_cffi.set_num_threads(threads)


@pytest.fixture
def run(here, capsys):
    def call(*arguments):
        status = main(["batch", *map(str, arguments)])
        return status, *capsys.readouterr()

    return call


def known(called):
    status, out, err = called
    assert err == ""
    return status, json.loads(out)


def frames(count, directory="in", shape=(2, 2)):
    """Files of different values, by their number."""
    Path(directory).mkdir(exist_ok=True)
    values = [numpy.full(shape, index, F32) for index in range(count)]
    for index, value in enumerate(values):
        numpy.save(f"{directory}/{index:03}.npy", value)
    return values


def result(name, directory="out", output="output_0"):
    with numpy.load(f"{directory}/{name}.npz") as npz:
        return npz[output]


def written(directory="out"):
    return sorted(str(path.relative_to(directory)) for path in Path(directory).rglob("*") if path.is_file())


NOTE = ".et_cffi-batch.json"

# ---- results ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_every_file_has_its_result(jobs, run):
    a, b = frames(20, "a"), frames(20, "b")
    status, told = known(
        run(MODELS / "add.pte", "--input", "a/*.npy", "--input", "b/*.npy", "--output", "out", "--jobs", jobs,
            "--json")
    )  # fmt: skip
    assert status == 0
    assert (told["done"], told["before"], told["failed"]) == (20, 0, [])
    for index in range(20):
        assert numpy.array_equal(result(f"{index:03}"), a[index] + b[index])
    assert written() == [NOTE] + [f"{index:03}.npz" for index in range(20)]


def test_what_a_shell_made_of_a_pattern(run):
    values = frames(3)
    names = [f"in/{index:03}.npy" for index in range(3)]
    assert run(MODELS / "add.pte", "--input", *names, "--input", *names, "--output", "out")[0] == 0
    assert numpy.array_equal(result("002"), 2 * values[2])


def test_a_file_of_all_inputs(run):
    Path("in").mkdir()
    numpy.savez("in/a.b.npz", x=numpy.full((2, 2), 3, F32), y=numpy.full((2, 2), 4, F32))
    assert run(MODELS / "add.pte", "--input", "in/*.npz", "--output", "out")[0] == 0
    assert result("a.b").tolist() == [[7, 7], [7, 7]]


def test_directories_are_kept(run):
    for name in ("one/x", "two/x", "two/deep/x"):
        Path("in", name).parent.mkdir(parents=True, exist_ok=True)
        numpy.savez(f"in/{name}.npz", x=numpy.ones((2, 2), F32), y=numpy.ones((2, 2), F32))
    assert run(MODELS / "add.pte", "--input", "in/**/*.npz", "--output", "out")[0] == 0
    assert written() == [NOTE, "one/x.npz", "two/deep/x.npz", "two/x.npz"]


def test_two_files_of_one_name(run):
    frames(1)
    numpy.savez("in/000.npz", x=1)
    status, _, err = run(MODELS / "digits.pte", "--input", "in/*", "--output", "out")
    assert (status, Path("out").exists()) == (2, False)
    assert "would both be 000.npz" in err


def test_a_dtype_that_numpy_lacks(run):
    case = model_index.cases("dtype_bfloat16", "forward")[0]
    numpy.save("x.npy", case.inputs[0].view("V2"))
    assert run(MODELS / "dtype_bfloat16.pte", "--input", "x.npy", "--output", "out")[0] == 0
    assert numpy.array_equal(result("x"), case.outputs[0])
    assert str(result("x", output="dtype:output_0")) == "bfloat16"


# ---- going on ---------------------------------------------------------------------------------------------


def add(run, *more):
    return known(
        run(
            MODELS / "add.pte",
            "--input",
            "in/*.npy",
            "--input",
            "in/*.npy",
            "--output",
            "out",
            "--json",
            *more,
        )
    )


def test_what_is_done_is_not_done_again(run):
    frames(4)
    add(run)
    Path("out/002.npz").unlink()
    before = {name: Path("out", name).stat().st_mtime_ns for name in written() if name != NOTE}
    status, told = add(run)
    assert (status, told["done"], told["before"]) == (0, 1, 3)
    assert {name: Path("out", name).stat().st_mtime_ns for name in before} == before
    assert result("002").tolist() == [[4, 4], [4, 4]]
    assert add(run)[1]["done"] == 0


def test_a_file_that_changed_is_done_again(run):
    frames(3)
    add(run)
    numpy.save("in/001.npy", numpy.full((2, 2), 50, F32))
    later = Path("out/001.npz").stat().st_mtime_ns + 10**9
    os.utime("in/001.npy", ns=(later, later))
    assert add(run)[1]["done"] == 1
    assert result("001").tolist() == [[100, 100], [100, 100]]


def test_results_of_another_model_are_refused(run):
    frames(2)
    add(run)
    arguments = ("--input", "in/*.npy", "--input", "in/*.npy", "--output", "out")
    status, _, err = run(MODELS / "swap.pte", *arguments)
    assert (status, err.count("\n")) == (2, 1)
    assert "another model or method" in err
    assert "output_1" not in numpy.load("out/000.npz").files
    assert run(MODELS / "swap.pte", *arguments, "--again")[0] == 0
    assert "output_1" in numpy.load("out/000.npz").files


def test_again(run):
    frames(2)
    add(run)
    assert add(run, "--again")[1]["done"] == 2


@pytest.fixture
def slow_batch(here):
    """Starts a batch of big files in a process, whose results take a while to write."""
    Path("in").mkdir()
    for index in range(40):
        numpy.save(f"in/{index:03}.npy", numpy.full((2, 2), index, F32))
    # The process writes each result in two halves, and waits in between.
    Path("slow.py").write_text(
        "import sys, time\n"
        "import et_cffi.cli.batch as batch\n"
        "from et_cffi.cli import main\n"
        "whole = batch.save_npz\n"
        "def slowly(outputs, file):\n"
        "    import io\n"
        "    content = io.BytesIO()\n"
        "    whole(outputs, content)\n"
        "    half = len(content.getvalue()) // 2\n"
        "    file.write(content.getvalue()[:half]); file.flush(); time.sleep(0.1)\n"
        "    file.write(content.getvalue()[half:])\n"
        "batch.save_npz = slowly\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )

    def start():
        return subprocess.Popen(
            [sys.executable, "slow.py", "batch", str(MODELS / "add.pte"), "--input", "in/*.npy",
             "--input", "in/*.npy", "--output", "out", "--jobs", "2", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return start


def results():
    return sorted(Path("out").glob("*.npz"))


def wait_for_results(count, child):
    deadline = time.monotonic() + 60
    while len(results()) < count:
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def half_written():
    folder = Path("out/.partial")
    return folder.is_dir() and any(path.is_file() for path in folder.iterdir())


def stop_while_writing(child):
    for _ in range(2000):
        child.send_signal(signal.SIGSTOP)
        time.sleep(0.01)  # until it has stopped
        if half_written():
            return
        child.send_signal(signal.SIGCONT)
        time.sleep(0.001)
    raise AssertionError("it never writes")


def test_a_killed_batch_leaves_whole_files_and_goes_on(slow_batch, run):
    for count in (5, 12):
        child = slow_batch()
        wait_for_results(count, child)
        stop_while_writing(child)
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=60)
        assert len(results()) < 40
        for path in results():
            assert result(path.stem).tolist() == [[2 * int(path.stem)] * 2] * 2  # whole, and right
    # What was being written lies half written where nobody takes it for a result.
    assert half_written()
    before = len(results())
    status, told = add(run)
    assert (status, told["done"], told["before"]) == (0, 40 - before, before)
    assert [int(path.stem) for path in results()] == list(range(40))
    assert not Path("out/.partial").exists()


def test_two_batches_do_not_write_to_one_directory(slow_batch, run):
    child = slow_batch()
    wait_for_results(1, child)
    status, _, err = run(MODELS / "add.pte", "--input", "in/*.npy", "--input", "in/*.npy", "--output", "out")
    assert (status, err.count("\n")) == (2, 1)
    assert "another process is writing there" in err
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err, json.loads(out)["done"]) == (0, "", 40)


# ---- failures ---------------------------------------------------------------------------------------------


def test_failures_are_told_and_the_others_done(run):
    frames(5)
    Path("in/001.npy").write_bytes(b"no array")
    numpy.save("in/003.npy", numpy.zeros((3, 3), F32))
    status, told = add(run)
    assert (status, told["done"]) == (1, 3)
    assert [failure["files"][0] for failure in told["failed"]] == ["in/001.npy", "in/003.npy"]
    assert "no readable .npy" in told["failed"][0]["error"]
    assert "(3, 3)" in told["failed"][1]["error"]
    assert written() == [NOTE, "000.npz", "002.npz", "004.npz"]
    numpy.save("in/003.npy", numpy.full((2, 2), 3, F32))
    assert add(run)[1]["done"] == 1
    out = run(MODELS / "add.pte", "--input", "in/*.npy", "--input", "in/*.npy", "--output", "out")[1]
    assert re.match(r"0 done, 1 failed, 4 were done before, in out \(", out)
    assert "\n  in/001.npy, in/001.npy: in/001.npy is no readable .npy file" in out


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_failed_check_of_the_runtime_fails_one_file(jobs, run):
    """The method that it happened in does not run again, and is replaced."""
    cases = model_index.cases("aborts", "forward")
    good, bad = [next(case for case in cases if case.fails is fails) for fails in (False, True)]
    Path("in").mkdir()
    for index in range(12):
        numpy.save(f"in/{index:03}.npy", (bad if index % 3 == 1 else good).inputs[0])
    status, told = known(
        run(MODELS / "aborts.pte", "--input", "in/*.npy", "--output", "out", "--jobs", jobs, "--json")
    )
    assert (status, told["done"]) == (1, 8)
    assert [failure["files"][0][-7:-4] for failure in told["failed"]] == ["001", "004", "007", "010"]
    for index in (0, 2, 11):
        numpy.testing.assert_allclose(result(f"{index:03}"), good.outputs[0], rtol=1e-5)


# ---- stacking ---------------------------------------------------------------------------------------------


def mlp(x):
    """What mlp_dynamic computes of rows, one row at a time."""
    program = et_cffi.Runtime.get().load_program(MODELS / "mlp_dynamic.pte")
    method = program.load_method("forward")
    return numpy.concatenate([numpy.asarray(method.execute([row[None]])[0]) for row in x])


@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 5)])
def test_stacked_files(shape, run, monkeypatch):
    rng = numpy.random.default_rng(4)
    Path("in").mkdir()
    values = [rng.normal(size=shape).astype(F32) for _ in range(7)]
    for index, value in enumerate(values):
        numpy.save(f"in/{index:03}.npy", value)
    sizes = []
    execute = et_cffi.MethodPool.execute
    monkeypatch.setattr(
        et_cffi.MethodPool, "execute", lambda self, x: sizes.append(x[0].shape) or execute(self, x)
    )
    arguments = ("--input", "in/*.npy", "--output", "out", "--stack", "3", "--jobs", "1", "--json")
    assert known(run(MODELS / "mlp_dynamic.pte", *arguments))[1]["done"] == 7
    rows = 1 if len(shape) == 1 else shape[0]
    assert sizes == [(3 * rows, 5), (3 * rows, 5), (rows, 5)]
    for index, value in enumerate(values):
        expected = mlp(value.reshape(-1, 5)).reshape(*shape[:-1], 3)
        numpy.testing.assert_allclose(result(f"{index:03}"), expected, rtol=1e-5, atol=1e-6)


def test_a_bad_file_does_not_spoil_its_stack(run):
    Path("in").mkdir()
    for index in range(6):
        numpy.save(f"in/{index:03}.npy", numpy.full((1, 4 if index == 2 else 5), index, F32))
    arguments = ("--input", "in/*.npy", "--output", "out", "--stack", "4", "--json")
    status, told = known(run(MODELS / "mlp_dynamic.pte", *arguments))
    assert (status, told["done"]) == (1, 5)
    assert [failure["files"] for failure in told["failed"]] == [["in/002.npy"]]
    numpy.testing.assert_allclose(result("003"), mlp(numpy.full((1, 5), 3, F32)), rtol=1e-5)


def test_stacked_rows_of_a_channels_last_model(run):
    case = model_index.cases("conv_dynamic_channels_last", "forward")[0]
    Path("in").mkdir()
    for index, image in enumerate(case.inputs[0]):
        numpy.save(f"in/{index:03}.npy", image)
    count = len(case.inputs[0])
    assert run(
        MODELS / "conv_dynamic_channels_last.pte", "--input", "in/*.npy", "--output", "out", "--stack", count
    )[0] == 0  # fmt: skip
    for index in range(count):
        numpy.testing.assert_allclose(result(f"{index:03}"), case.outputs[0][index], rtol=1e-4, atol=1e-5)


# ---- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("digits.pte --input in/*.npy", "--output"),
        ("digits.pte --output out", "--input"),
        ("digits.pte --input in/*.txt --output out", r"in/\*\.txt: there is no such file"),
        ("add.pte --input in/*.npy --input in/000.npy --output out", "they give 3, 1"),
        ("digits.pte --input in/*.npy --output in/000.npy", "it is no directory"),
        ("digits.pte --input in/*.npy --output out --stack 2", r"input 0 has the fixed shape \(1, 1, 8, 8\)"),
        ("mlp_dynamic.pte --input in/*.npy --output out --stack 9", "at most 8"),
        ("scalar_inputs.pte --input in/*.npy --output out --stack 2", "fixed shape"),
        ("state.pte --input in/*.npy --output out", "changes its own state"),
        ("digits.pte --input in/*.npy --output out --jobs 0", "1 or more"),
        ("nothing.pte --input in/*.npy --output out", "no file"),
    ],
)
def test_bad_use_is_one_line(line, says, run):
    frames(3)
    model, *arguments = line.split()
    status, out, err = run(MODELS / model, *arguments)
    assert (status, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert re.search(says, err)
    assert not Path("out").exists()


def test_a_model_that_cannot_run(run):
    frames(2)
    status, out, err = run(MODELS / "missing_operators.pte", "--input", "in/*.npy", "--output", "out")
    assert (status, out, err.count("\n"), Path("out").exists()) == (1, "", 1, False)

"""The example as a command, on a cluster of its own. It needs dask[distributed]: `nox -s dask`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import et_cffi

HERE = Path(__file__).resolve().parent
MODELS = HERE.parent.parent / "tests" / "models"
MODEL = MODELS / "digits.pte"
COUNT = 60


@pytest.fixture
def images(tmp_path):
    digit = numpy.load(MODELS / "digit.npy")
    noise = numpy.random.default_rng(0).normal(0, 1, (COUNT, *digit.shape)).astype("float32")
    noise[0] = 0
    for number, values in enumerate(digit + noise):
        numpy.save(tmp_path / f"{number:03}.npy", values)
    return digit + noise


def score(*arguments, directory):
    command = [sys.executable, str(HERE / "score.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=directory, timeout=300)


@pytest.mark.parametrize("threads", [1, 3])
def test_every_input_is_scored_and_the_model_is_loaded_once_by_each_worker(images, threads, tmp_path):
    output = tmp_path / "scores.npz"
    done = score(MODEL, tmp_path, output, "--workers", 2, "--threads", threads, directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{COUNT} inputs scored in 2 processes, which loaded the model 2 times" in done.stdout
    with numpy.load(output) as scores:
        assert sorted(scores) == [f"{number:03}" for number in range(COUNT)]
        with numpy.load(MODELS / "digits.npz") as eager:
            numpy.testing.assert_allclose(scores["000"], eager["output_0"], 1e-4, 1e-5)
        method = et_cffi.Runtime.get().load_program(MODEL).load_method("forward")
        for number, values in enumerate(images):
            expected = numpy.asarray(method.execute([values])[0])
            numpy.testing.assert_allclose(scores[f"{number:03}"], expected, 1e-5, 1e-6)


def test_an_input_that_the_model_does_not_take_is_an_error_of_et_cffi(tmp_path):
    numpy.save(tmp_path / "wrong.npy", numpy.zeros((1, 1, 8, 9), "float32"))
    done = score(MODEL, tmp_path, tmp_path / "scores.npz", "--workers", 1, directory=tmp_path)
    assert done.returncode != 0
    assert "ShapeError: input 0" in done.stderr
    assert not (tmp_path / "scores.npz").exists()

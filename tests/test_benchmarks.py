"""Every benchmark runs, with next to nothing to do. What is counted has to be right; no time is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"

# torch: larger models are exported on the spot. The scripts themselves are given no peer.
pytestmark = [pytest.mark.torch, pytest.mark.cpython, pytest.mark.linux]


MODELS = [
    *("add_planned-40.pte", "add_unplanned-40.pte"),
    *("linear_portable-1.pte", "linear_portable-12.pte", "linear_xnnpack-1.pte", "linear_xnnpack-12.pte"),
    *("conv_portable-8.pte", "conv_xnnpack-8.pte"),
]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with the models that the scripts would have the official side export."""
    made = tmp_path_factory.mktemp("benchmarks")
    command = [sys.executable, BENCHMARKS / "models.py", *[made / name for name in MODELS]]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made


def figures_of(work, script, *arguments):
    """What the script wrote to its JSON file, and what it printed."""
    out = work / f"{script}.json"
    command = [sys.executable, BENCHMARKS / f"{script}.py", "--work", work, "--json", out, *arguments]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| --- |" in done.stdout
    return json.loads(out.read_text())


def is_figures(sides, rounds):
    return all(len(values) == rounds and min(values) > 0 for values in sides.values())


def test_call_cost_alone(work):
    said = figures_of(work, "call_cost", "--rounds", "2", "--seconds", "0.0005")
    said.pop("header")
    assert len(said) == 7  # those whose first side is et_cffi on its own
    for sides in said.values():
        assert set(sides) - {"a loop in C++"} in ({"et_cffi, arrays"}, {"et_cffi, array"}, {"et_cffi"})
        assert is_figures(sides, 2)


def test_large_counts_what_is_copied(work):
    """40 kB a tensor: nothing where it is not planned, two inputs and an output where it is."""
    said = figures_of(work, "large", "--rounds", "1", "--seconds", "0.0005", "--kilobytes", "40")
    for title, megabytes in (("0.04 MB each, not planned", 0), ("0.04 MB each, planned", 0.12)):
        assert is_figures(said[title]["seconds"], 1)
        for side in ("et_cffi, arrays", "a loop in C++"):
            assert said[title]["MB copied"][side] == pytest.approx(megabytes)


def test_start_alone(work):
    said = figures_of(work, "start", "--rounds", "1")
    assert set(said["import"]) == {"Python alone", "et_cffi"}
    assert set(said["first result"]) == {"et_cffi", "et_cffi with numpy", "the same in C++"}
    for sides in (said["import"], said["first result"]):
        _seconds, resident, peak, has_numpy, _result = sides["et_cffi"][0]
        assert 0 < resident <= peak
        assert not has_numpy
    assert said["first result"]["et_cffi with numpy"][0][3]


def test_weights_stay_in_the_file(work):
    said = figures_of(work, "weights", "--rounds", "1", "--megabytes", "12")
    (found,) = said["portable kernels"]["et_cffi, arrays"]
    assert found["own after load"] < 6 < 11 < found["mapped after run"]
    assert found["written"] == 0
    (packed,) = said["XNNPACK"]["et_cffi, arrays"]
    assert packed["own after load"] > 11


def test_threads(work):
    widths = ("--portable-width", "8", "--xnnpack-width", "8")
    said = figures_of(work, "threads", "--rounds", "1", "--seconds", "0.0005", *widths)
    for title, count in (("portable kernels", 2), ("XNNPACK", 5)):
        assert len(said[title]["seconds"]) == len(said[title]["processors"]) == count
        assert is_figures(said[title]["seconds"], 1)


def test_size_alone(work):
    sizes = figures_of(work, "size")["bytes"]["et_cffi"]
    assert set(sizes) == {"cffi", "et-cffi", "numpy", "pycparser"}
    assert all(size > 0 for size in sizes.values())

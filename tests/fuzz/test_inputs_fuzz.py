"""Any object as an input, for a short while; `python tests/fuzz/inputs.py` does it for long."""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys

import hypothesis
import inputs
import numpy
import pytest
from hypothesis import strategies
from hypothesis.extra import numpy as arrays

import et_cffi

# In CI the same examples every time: there the outcome is to say something about a change.
SETTINGS = hypothesis.settings(
    derandomize="CI" in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


def test_no_case_ends_the_process():
    """In children of another process: a crash is a result there, and no test before has left it threads."""
    command = [sys.executable, str(pathlib.Path(inputs.__file__)), "--cases", "1500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.filterwarnings("ignore")
@hypothesis.settings(SETTINGS, max_examples=200)
@hypothesis.given(seed=strategies.integers(0, 2**32))
def test_cases(seed):
    inputs.one_case(random.Random(seed))


LAYOUTS = {
    "as it is": lambda array: array,
    "transposed": lambda array: array.T,
    "Fortran": numpy.asfortranarray,
    "reversed": lambda array: array[::-1] if array.ndim else array,
    "every second": lambda array: numpy.repeat(array, 2, axis=0)[::2] if array.ndim else array,
    "broadcast": lambda array: numpy.broadcast_to(array, (2, *array.shape)),
    "read-only": lambda array: numpy.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
}


@pytest.mark.filterwarnings("ignore")
@hypothesis.settings(SETTINGS, max_examples=300)
@hypothesis.given(
    array=strategies.one_of(
        arrays.arrays(numpy.float32, (2, 2)),
        arrays.arrays(numpy.float32, arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)),
        arrays.arrays(
            strategies.one_of(arrays.scalar_dtypes(), arrays.array_dtypes()),
            arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
        ),
    ),
    layout=strategies.sampled_from(sorted(LAYOUTS)),
    planned=strategies.booleans(),
)
def test_arrays(array, layout, planned):
    """An array is taken just where it has the method's dtype, shape and layout, and for what it holds."""
    array = LAYOUTS[layout](array)
    method = inputs._program("add" if planned else "add_unplanned").load_method("forward")
    other = numpy.arange(4, dtype=numpy.float32).reshape(2, 2)
    fits = array.dtype == numpy.float32 and array.shape == (2, 2) and array.flags.c_contiguous
    try:
        (result,) = method.execute([array, other])
    except et_cffi.ExecuTorchError:
        assert not fits
    else:
        assert fits
        assert numpy.array_equal(numpy.asarray(result), array + other, equal_nan=True)

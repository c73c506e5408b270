"""Nothing grows: not over runs, inputs, refusals, programs, methods, or what goes through DLPack."""

from __future__ import annotations

import logging
import pickle

import model_index
import numpy
import pytest
from dlpack_producer import Producer
from holding import X, Y
from support import case_of, collect, load, program, resident

import et_cffi.method
from et_cffi import Runtime, ffi, from_cdata
from et_cffi.errors import ExecuTorchError

pytestmark = pytest.mark.linux

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def unlogged(monkeypatch):
    """pytest keeps every line that is logged, which would be what grows."""
    monkeypatch.setattr(logging.getLogger("et_cffi"), "disabled", True)


def check_flat(work, times, warm_up, most):
    """`times` calls leave fewer than `most` bytes behind. A leak grows every time; what an allocator or a
    collector keeps for later grows once or twice."""

    def level(calls):
        for _ in range(calls):
            work()
        collect()
        return resident()

    levels = [level(warm_up)]
    for _ in range(4):
        levels.append(level(times))
        if levels[-1] - levels[-2] < most:
            return
    raise AssertionError(f"{times} calls each led from one to the next of {levels} bytes")


# Each leaks, where it leaks at all, at least an object of 100 bytes each time.
RUNS = 10_000


@pytest.mark.parametrize("in_one_step", [True, False])
@pytest.mark.parametrize("clone", [True, False])
@pytest.mark.parametrize("name", ["add", "add_unplanned", "identity_first_unplanned", "twenty_unplanned"])
def test_runs(name, clone, in_one_step):
    """Fails where a run leaves anything behind, such as an output that is not given back."""
    method, inputs = load(name), case_of(name).inputs

    def run():
        if in_one_step:
            method.execute(inputs, clone_outputs=clone)
        else:
            method.set_inputs(inputs)
            method.execute(clone_outputs=clone)
            method.get_outputs(clone_outputs=not clone)

    check_flat(run, RUNS if name != "twenty_unplanned" else 1000, 500, MEGABYTE)


@pytest.mark.parametrize("name", ["add", "add_unplanned"])
def test_pointers_in_and_out(name):
    """Fails where an input's cdata or its owner stays held, or a result's pointer is never let go of."""
    method = load(name)

    def run():
        x, y = ffi.new("float[4]"), ffi.new("float[4]")
        (result,) = method.execute(
            [from_cdata(x, (2, 2)), from_cdata(ffi.cast("float *", y), (2, 2), owner=y)]
        )
        assert result.cdata()[3] == 0

    check_flat(run, RUNS, 500, MEGABYTE)


@pytest.mark.parametrize("source", ["path", "bytes"])
def test_programs_that_are_pickled(source):
    path = model_index.path("conv_xnnpack")
    program = Runtime.get().load_program(path if source == "path" else path.read_bytes())
    check_flat(lambda: pickle.loads(pickle.dumps(program)), 500, 50, MEGABYTE)


def test_runs_with_large_outputs():
    """A megabyte each, so that one in a hundred would show."""
    method = load("big_bound")
    x = numpy.zeros((5000, 3), numpy.float32)
    check_flat(lambda: method.execute([x]), 1000, 50, 4 * MEGABYTE)


@pytest.mark.parametrize("name", ["conv_xnnpack", "conv_xnnpack_unplanned", "quantized_xnnpack", "state"])
def test_runs_of_delegates_and_state(name):
    method, inputs = load(name), case_of(name).inputs
    check_flat(lambda: method.execute(inputs), 2000, 200, MEGABYTE)


SOURCES = {
    "bytes": lambda name: model_index.path(name).read_bytes(),
    "bytearray": lambda name: bytearray(model_index.path(name).read_bytes()),
    "path": model_index.path,
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("name", ["add", "conv_xnnpack"])
def test_loads(name, make):
    """Fails where a program or a method is not given back."""
    source, inputs = make(name), case_of(name).inputs

    def work():
        Runtime.get().load_program(source).load_method("forward").execute(inputs)

    check_flat(work, 1000, 100, 2 * MEGABYTE)


def test_methods():
    """Fails where a method is not given back."""
    loaded = program("conv_xnnpack")
    inputs = case_of("conv_xnnpack").inputs
    check_flat(lambda: loaded.load_method("forward").execute(inputs), 1000, 100, 2 * MEGABYTE)


def refused(work):
    try:
        work()
    except ExecuTorchError:
        return
    raise AssertionError("not refused")


def test_refused_inputs():
    """Fails where what was described of a refused set is not let go of."""
    method, x = load("add_unplanned"), X.copy()
    wrong = [[x, Y.astype(numpy.float64)], [x], [x, None], [x, "y"], [x, Producer(Y.astype("f2"))], object()]

    def work():
        for inputs in wrong:
            refused(lambda inputs=inputs: method.set_inputs(inputs))
            refused(lambda inputs=inputs: method.execute(inputs))
        refused(method.execute)
        refused(method.get_outputs)

    check_flat(work, 1000, 100, 2 * MEGABYTE)


def test_sets_refused_half_way():
    method, case = load("scalar_inputs_unplanned"), case_of("scalar_inputs_unplanned")
    x, number, *rest = case.inputs
    bad = [x, number + 1, *rest]
    check_flat(lambda: refused(lambda: method.set_inputs(bad)), RUNS, 500, 4 * MEGABYTE)


def test_refused_programs():
    data = model_index.path("conv_xnnpack").read_bytes()

    def work():
        refused(lambda: Runtime.get().load_program(data[:-1]))
        refused(lambda: Runtime.get().load_program(data[:5]))
        refused(lambda: program("missing_operators").load_method("forward"))
        refused(lambda: program("add").load_method("backward"))

    check_flat(work, 1000, 100, 2 * MEGABYTE)


def test_dlpack_in():
    """Fails where a capsule is not given back."""
    method = load("add_unplanned")

    class OfNumpy:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **keywords):
            return self.array.__dlpack__(**keywords)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    x, y = OfNumpy(X.copy()), OfNumpy(Y.copy())
    check_flat(lambda: method.execute([x, y]), RUNS, 500, MEGABYTE)


def test_dlpack_out():
    """Fails where a capsule's deleter does not give back the tensor, claimed or not."""
    method, x = load("add_unplanned"), X.copy()

    def work():
        (result,) = method.execute([x, x])
        numpy.from_dlpack(result)
        result.__dlpack__()
        result.__dlpack__(max_version=(1, 0))
        result.__dlpack__(copy=True)

    check_flat(work, RUNS // 2, 500, MEGABYTE)


def test_results_as_inputs():
    method, x = load("add_unplanned"), X.copy()
    results = [method.execute([x, x])[0]]

    def work():
        results[0] = method.execute([results[0], x])[0]

    check_flat(work, RUNS, 500, MEGABYTE)


def test_results_as_arrays():
    method, x = load("add_unplanned"), X.copy()

    def work():
        (result,) = method.execute([x, x])
        memoryview(numpy.asarray(result)).release()
        result.tobytes()

    check_flat(work, RUNS, 500, MEGABYTE)


@pytest.mark.cpython
def test_a_failed_conversion_of_an_output(monkeypatch):
    """Fails where the outputs behind one that cannot be converted are not owned (method.py, _converted)."""

    def fails(torch, buffer):
        raise ZeroDivisionError

    method = load("twenty_unplanned")
    monkeypatch.setattr(et_cffi.method, "to_torch", fails)
    monkeypatch.setattr(method, "_torch", object())
    method.set_inputs(case_of("twenty_unplanned").inputs)

    def work():
        with pytest.raises(ZeroDivisionError):
            method.execute()

    check_flat(work, 2000, 200, 8 * MEGABYTE)  # of 19 outputs each, of half a kilobyte each

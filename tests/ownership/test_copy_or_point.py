"""Copied or pointed at, by one rule: a planned input is copied inside the call that sets it; any other is
pointed at if its source keeps the memory in place and lets it be written, and else copied.

Between set_inputs and execute the caller writes to its own memory: what the run then reads says which it was.
"""

from __future__ import annotations

import numpy
import pytest
from dlpack_producer import READ_ONLY, Producer
from holding import ALL, COPIED, OTHER, POINTED_AT, Source, X, Y, run
from support import FORMAT, case_of, collect, load, presented


@pytest.mark.parametrize("kind", POINTED_AT)
def test_pointed_at(kind):
    """Fails where such a source is not pinned (_buffer.py, tensor_buffer.py, _dlpack.py: `pinned=`) or
    may_point_at says no to it (input.cpp)."""
    method = load("add_unplanned")
    x = Source(ALL[kind], X)
    method.set_inputs([x.give(), Y])
    x.write(OTHER)
    numpy.testing.assert_array_equal(run(method), OTHER + Y)
    x.write(X)
    numpy.testing.assert_array_equal(run(method), X + Y)


@pytest.mark.parametrize("kind", [kind for kind in COPIED if kind not in {"bytes"}])
def test_copied(kind):
    """Fails where a source that may not be written, is misaligned, or cannot be asked where it is, is pinned
    (_buffer.py: `pinned=`, _dlpack.py: `read_only`; input.cpp: the alignment in may_point_at)."""
    method = load("add_unplanned")
    x = Source(ALL[kind], X)
    method.set_inputs([x.give(), Y])
    x.write(OTHER)
    numpy.testing.assert_array_equal(run(method), X + Y)


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "bytes"])
def test_a_planned_input_is_copied_when_it_is_set(kind):
    """Fails where may_point_at does not ask whether the input is planned (input.cpp)."""
    method = load("add")
    x = Source(ALL[kind], X)
    method.set_inputs([x.give(), Y])
    x.write(OTHER)
    numpy.testing.assert_array_equal(run(method), X + Y)


@pytest.mark.parametrize("kind", POINTED_AT)
def test_pointed_at_after_a_run_in_one_step(kind):
    """The C path of CPython follows the same rule: a later run without inputs reads the caller's memory.
    Fails where it does not pin (cpython.c, describe: `memory->flags`)."""
    method = load("add_unplanned")
    x = Source(ALL[kind], X)
    method.execute([x.give(), Y])
    x.write(OTHER)
    numpy.testing.assert_array_equal(run(method), OTHER + Y)


@pytest.mark.parametrize("kind", [kind for kind in COPIED if kind not in {"bytes"}])
def test_copied_by_a_run_in_one_step(kind):
    """Fails where the C path pins what is read-only (cpython.c, describe: `memory->flags`)."""
    method = load("add_unplanned")
    x = Source(ALL[kind], X)
    method.execute([x.give(), Y])
    x.write(OTHER)
    numpy.testing.assert_array_equal(run(method), X + Y)


def read_only_sources(values):
    array = values.copy()
    array.flags.writeable = False
    yield array, array
    data = values.tobytes()
    yield memoryview(data).cast("f", values.shape), data
    owner = values.copy()
    yield Producer(owner, versioned=True, flags=READ_ONLY), owner


@pytest.mark.parametrize("in_one_step", [False, True])
@pytest.mark.parametrize("which", range(3))
def test_read_only_memory_is_unchanged_after_a_method_that_writes_its_input(which, in_one_step):
    """Fails where a read-only source is pinned (_buffer.py, _dlpack.py: `pinned=`; cpython.c: `flags`)."""
    case = case_of("writes_input_unplanned")
    x, y = case.inputs
    written = case.input_after(0)
    assert written.tobytes() != x.tobytes()
    source, memory = list(read_only_sources(x))[which]
    before = bytes(memoryview(memory).cast("B"))
    method = load("writes_input_unplanned")
    if in_one_step:
        outputs = method.execute([source, y])
    else:
        method.set_inputs([source, y])
        outputs = method.execute()
    numpy.testing.assert_array_equal(outputs[0], written)
    assert bytes(memoryview(memory).cast("B")) == before == x.tobytes()


def test_writable_memory_is_written_by_a_method_that_writes_its_input():
    """The control of the one above: this model does write to what it is pointed at."""
    case = case_of("writes_input_unplanned")
    x, y = case.inputs
    load("writes_input_unplanned").execute([x, y])
    numpy.testing.assert_array_equal(x, case.input_after(0))


@pytest.mark.parametrize("make", [bytes, bytearray])
def test_raw_bytes(make):
    """Bytes for a dtype without a format code follow the same rule. Fails as the tests above do."""
    case = case_of("dtype_bfloat16_unplanned")
    assert case.inputs_info[0]["dtype"] not in FORMAT
    (values,) = case.inputs
    memory = make(values.tobytes())
    method = load("dtype_bfloat16_unplanned")
    method.set_inputs([memory])
    expected = case.outputs[0].tobytes()
    if make is bytearray:
        numpy.frombuffer(memory, presented("bfloat16"))[...] = 0
        expected = numpy.asarray(load("dtype_bfloat16_unplanned").execute([bytes(len(memory))])[0]).tobytes()
        assert expected != case.outputs[0].tobytes()
    del memory
    collect()
    assert run(method).tobytes() == expected


def test_an_array_in_another_order():
    """A channels-last array is not C-contiguous, and is pointed at all the same."""
    case = case_of("conv_channels_last_unplanned")
    (values,) = case.inputs
    array = numpy.ascontiguousarray(values.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    other = case_of("conv_channels_last_unplanned", number=1)
    method = load("conv_channels_last_unplanned")
    method.set_inputs([array])
    array[...] = other.inputs[0]
    numpy.testing.assert_allclose(run(method), other.outputs[0], case.rtol, case.atol)


def test_a_lent_result_is_copied_before_it_is_overwritten():
    """A result that was lent out of the method's own memory comes back in: the run writes there while it
    reads. Fails where is_lent says no (method.cpp, set_inputs: `inputs_[i].copied =`)."""
    values = case_of("planned_output").inputs[0]
    method = load("planned_output")
    for source in (lambda out: out, numpy.asarray):
        (lent,) = method.execute([values], clone_outputs=False)
        (back,) = method.execute([source(lent)], clone_outputs=False)
        numpy.testing.assert_array_equal(back, values)


def test_lent_results_are_copied_before_any_is_installed():
    """Installing the first may overwrite what the second is in. Fails where set_inputs copies each as it
    installs it (method.cpp)."""
    method = load("swap")
    lent = method.execute([X, Y], clone_outputs=False)
    numpy.testing.assert_array_equal(lent[0], Y)
    back = method.execute(lent, clone_outputs=False)
    numpy.testing.assert_array_equal(back[0], X)
    numpy.testing.assert_array_equal(back[1], Y)

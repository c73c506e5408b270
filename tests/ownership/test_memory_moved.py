"""The pin is not trusted: before each run, what was pointed at must be where it was, and as much of it.

Every refusal here stands in front of a read of freed memory, so none may be left to luck.
"""

from __future__ import annotations

import array as arrays
import contextlib
import sys

import numpy
import pytest
from dlpack_producer import Producer
from holding import OTHER, X, Y, run
from support import case_of, load

from et_cffi import Method
from et_cffi.errors import MemoryMovedError, ShapeError

MOVED = pytest.raises(MemoryMovedError, match=r"moved or resized after it was set.*set the inputs again")


def own(values):
    """An array that owns its memory, as resize wants it."""
    array = numpy.empty(values.shape, values.dtype)
    array[...] = values
    assert array.base is None
    return array


def in_two_steps(method: Method, inputs: list) -> None:
    method.set_inputs(inputs)


def in_one_step(method: Method, inputs: list) -> None:
    method.execute(inputs)


SET = pytest.mark.parametrize("set_them", [in_two_steps, in_one_step])
# 1 << 20 leaves its allocation for a mapping of its own; 2 keeps the address, with less behind it; so may 1.
SIZES = pytest.mark.parametrize("size", [1 << 20, 1000, 5, 2, 1, 0])


@SET
@SIZES
def test_an_array_that_was_resized(set_them, size):
    """Fails where execute does not look (method.py, _read: `_have_moved(self._held)`), or where the address
    alone is compared (_buffer.py, _locate: `view.nbytes`; cpython.c, pin_moved: `length`)."""
    method = load("add_unplanned")
    x = own(X)
    set_them(method, [x, Y])
    x.resize(size, refcheck=False)
    with MOVED:
        method.execute()
    with MOVED:  # not only the first time
        method.execute()
    method.set_inputs([OTHER, Y])
    numpy.testing.assert_array_equal(run(method), OTHER + Y)


VIEWS = {
    "slice": lambda array: array[:],
    "reshaped": lambda array: array.reshape(4).reshape(2, 2),
    "memoryview": memoryview,
    "array_of_memoryview": lambda array: numpy.asarray(memoryview(array)),
    "memoryview_of_slice": lambda array: memoryview(array[:]),
}


@SET
@SIZES
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_an_array_that_was_resized_under_a_view(set_them, size, view):
    """The view stays what it was, and dangles. Fails where only the exporter itself is asked where it is
    (_buffer.py, _locate: the loop over its lenders; cpython.c, pin_moved: `owner`)."""
    method = load("add_unplanned")
    x = own(X)
    set_them(method, [view(x), Y])
    x.resize(size, refcheck=False)
    with MOVED:
        method.execute()


@SET
def test_an_array_that_was_not_resized(set_them):
    """The control: being asked changes nothing."""
    for view in VIEWS.values():
        method = load("add_unplanned")
        x = own(X)
        set_them(method, [view(x), Y])
        x.resize(2, 2, refcheck=False)
        x[...] = OTHER
        numpy.testing.assert_array_equal(run(method), OTHER + Y)


@SET
@pytest.mark.parametrize("name", ["identity_only_unplanned", "view_of_input_unplanned"])
def test_an_output_in_the_memory_of_an_input_that_was_resized(set_them, name):
    """Fails where reading an output that is in an input's memory does not look (method.py, _read)."""
    method = load(name)
    x = own(case_of(name).inputs[0])
    set_them(method, [x])
    first = [numpy.array(output) for output in method.execute()]
    x.resize(1 << 20, refcheck=False)
    with MOVED:
        method.get_outputs(clone_outputs=False)
    # Those that were handed over are the caller's own, and are given again.
    for output, before in zip(method.get_outputs(), first):
        numpy.testing.assert_array_equal(output, before)


class Resizes(Producer):
    """Resizes another array while it is asked for its own memory."""

    def __init__(self, values, victim):
        super().__init__(values)
        self.victim = victim

    def __dlpack__(self, **keywords):
        self.victim.resize(1 << 20, refcheck=False)
        return super().__dlpack__(**keywords)


@SET
@pytest.mark.parametrize("name", ["add", "add_unplanned"])
def test_an_array_that_was_resized_while_the_next_input_was_described(set_them, name):
    """Fails where _give does not look before it gives the pointers on (method.py: `_have_moved(described)`),
    so that the runtime copies a planned input from freed memory."""
    method = load(name)
    x = own(X)
    producer = Resizes(Y.copy(), x)
    # CPython's C API asks every producer before it looks at an array, which then has the new shape.
    with pytest.raises(
        (MemoryMovedError, ShapeError), match=r"moved or resized after it was set|input 0 has the shape"
    ):
        set_them(method, [x, producer])
    assert producer.deleted == 1
    method.set_inputs([OTHER, Y])
    numpy.testing.assert_array_equal(run(method), OTHER + Y)


if sys.version_info >= (3, 12):

    class LendsAndResizes:
        def __init__(self, values, victim):
            self.values, self.victim = values, victim

        def __buffer__(self, flags):
            self.victim.resize(1 << 20, refcheck=False)
            return memoryview(self.values)

    @SET
    @pytest.mark.parametrize("name", ["add", "add_unplanned"])
    def test_an_array_that_was_resized_by_a_buffer_method(set_them, name):
        """Fails where the C path takes such a class for plain (cpython.c: `view->obj == source`), and as
        above. Where it has asked first, Python finds the array's new shape."""
        x = own(X)
        with pytest.raises((MemoryMovedError, ShapeError)):
            set_them(load(name), [x, LendsAndResizes(Y.copy(), x)])


@SET
def test_a_released_memoryview(set_them):
    """The caller's view may go: the method has one of its own."""
    method = load("add_unplanned")
    memory = bytearray(X.tobytes())
    view = memoryview(memory).cast("f", (2, 2))
    set_them(method, [view, Y])
    with contextlib.suppress(BufferError):  # CPython, where the view itself was lent
        view.release()
    numpy.testing.assert_array_equal(run(method), X + Y)
    numpy.frombuffer(memory, numpy.float32)[...] = OTHER.ravel()
    numpy.testing.assert_array_equal(run(method), OTHER + Y)


@SET
@pytest.mark.parametrize("make", [bytearray, lambda data: arrays.array("f", data)])
def test_memory_that_its_owner_would_resize(set_them, make):
    """CPython refuses to resize what is lent out; PyPy resizes it, and then the run refuses."""
    method = load("add_unplanned")
    memory = make(X.tobytes())
    set_them(method, [memoryview(memory).cast("B").cast("f", (2, 2)), Y])
    try:
        memory.extend(make(bytes(1 << 20)))
    except BufferError:
        numpy.testing.assert_array_equal(run(method), X + Y)
    else:
        with MOVED:
            method.execute()


@SET
def test_memory_that_the_caller_dropped(set_them):
    """It was the caller's, and the method holds it: nothing else may get it."""
    method = load("add_unplanned")
    set_them(method, [memoryview(arrays.array("f", X.ravel())).cast("B").cast("f", (2, 2)), Y.copy()])
    garbage = [arrays.array("f", [9e9] * 4) for _ in range(1000)]
    assert len(garbage) == 1000
    numpy.testing.assert_array_equal(run(method), X + Y)

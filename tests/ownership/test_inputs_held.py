"""An input is held for exactly the window in which the runtime may read it: from set until it is replaced,
or until the method is gone. One reference while it is held, none after."""

from __future__ import annotations

import sys
import weakref

import numpy
import pytest
from dlpack_producer import Producer
from holding import ALL, OTHER, WATCHED, WATCHED_COPIED, WATCHED_POINTED_AT, Source, X, Y, only, run
from support import collect, load

HELD = pytest.mark.parametrize("kind", WATCHED_POINTED_AT)
SETS = {
    "set_inputs": lambda method, inputs: method.set_inputs(inputs),
    "execute": lambda method, inputs: method.execute(inputs),
    # One that the C path of CPython leaves to Python, beside one that it would take.
    "mixed": lambda method, inputs: method.execute([inputs[0], Producer(numpy.asarray(Y))]),
}
if sys.implementation.name == "pypy":  # where all of them go the same way, and each collection takes long
    del SETS["execute"], SETS["mixed"]
SET = pytest.mark.parametrize("set_them", SETS.values(), ids=SETS)


@HELD
@SET
def test_held_until_replaced(kind, set_them):
    """Fails where set inputs are not kept (method.py, _replace_inputs: `self._held = pointed_at`), and where
    replaced ones are kept too long (`held.release()` in the loop over `replaced`)."""
    method = load("add_unplanned")
    x = Source(ALL[kind], X)
    set_them(method, [x.give(), Y])
    x.forget()
    assert x.alive()
    numpy.testing.assert_array_equal(run(method), X + Y)
    assert x.alive()
    only(method, OTHER)
    assert not x.alive()
    numpy.testing.assert_array_equal(run(method), OTHER + OTHER)


@HELD
@SET
def test_held_until_closed(kind, set_them):
    """Fails where close() does not let go of the inputs (method.py, close: the loop over `self._held`)."""
    method = load("add_unplanned")
    x = Source(ALL[kind], X)
    set_them(method, [x.give(), Y])
    x.forget()
    assert x.alive()
    method.close()
    assert not x.alive()


@HELD
@SET
def test_held_until_the_method_is_dropped(kind, set_them):
    """Fails where anything but the method keeps its inputs, such as a cache of descriptions."""
    method = load("add_unplanned")
    x = Source(ALL[kind], X)
    set_them(method, [x.give(), Y])
    x.forget()
    assert x.alive()
    del method
    assert not x.alive()


@SET
@pytest.mark.parametrize("kind", WATCHED)
def test_a_planned_input_is_not_held(kind, set_them):
    """It was copied inside the call. Fails where _let_go does not release what was described (method.py)."""
    method = load("add")
    x = Source(ALL[kind], X)
    set_them(method, [x.give(), Y])
    x.forget()
    assert not x.alive()
    numpy.testing.assert_array_equal(run(method), X + Y)


@SET
@pytest.mark.parametrize("kind", WATCHED_COPIED)
def test_a_copied_input_is_not_held(kind, set_them):
    """Fails where _pointed_at keeps inputs that the runtime was not pointed at (method.py)."""
    method = load("add_unplanned")
    x = Source(ALL[kind], X)
    set_them(method, [x.give(), Y])
    x.forget()
    assert not x.alive()
    numpy.testing.assert_array_equal(run(method), X + Y)


@pytest.mark.cpython
@SET
@pytest.mark.parametrize("kind", ["numpy", "numpy_view", "ctypes", "result"])
def test_one_reference_while_held_and_none_after(kind, set_them):
    """Fails where a description keeps a second reference to what it describes, and where set inputs are not
    kept (method.py, _replace_inputs)."""
    method = load("add_unplanned")
    x, memory, _ = ALL[kind](X)
    del memory
    before = sys.getrefcount(x)
    set_them(method, [x, Y])
    assert sys.getrefcount(x) == before + 1
    method.execute()
    assert sys.getrefcount(x) == before + 1
    set_them(method, [x, Y])  # the same input once more is still held once
    assert sys.getrefcount(x) == before + 1
    only(method, OTHER)
    assert sys.getrefcount(x) == before


@pytest.mark.cpython
@SET
@pytest.mark.parametrize(("name", "make"), [("add", bytearray), ("add", bytes), ("add_unplanned", bytes)])
def test_no_reference_to_what_was_copied(name, make, set_them):
    """Fails where _let_go or _pointed_at does not release what was copied (method.py)."""
    method = load(name)
    memory = make(X.tobytes())
    before = sys.getrefcount(memory)
    set_them(method, [memoryview(memory).cast("f", X.shape), Y])
    assert sys.getrefcount(memory) == before


@SET
def test_a_capsule_is_given_back_once(set_them):
    """Fails where nothing calls the deleter (_dlpack.py: `release_owner`), or something does it again."""
    method = load("add_unplanned")
    x = Producer(X.copy())
    set_them(method, [x, Y])
    collect()
    assert x.deleted == 0
    only(method, OTHER)
    assert x.deleted == 1  # at once, not when a collector comes round to it
    del method
    collect()
    assert x.deleted == 1


def test_an_input_list_is_not_held():
    """The caller's list is the caller's: only what is in it is held."""

    class Inputs(list):
        pass

    method = load("add_unplanned")
    inputs = Inputs([X.copy(), Y.copy()])
    gone = weakref.ref(inputs)
    method.execute(inputs)
    method.set_inputs(inputs)
    del inputs
    collect()
    assert gone() is None
    numpy.testing.assert_array_equal(run(method), X + Y)

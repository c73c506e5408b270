"""The memory of results is used again, once nobody holds them and not before, and within a bound."""

from __future__ import annotations

import gc
import itertools

import numpy
import pytest
from support import collect, load

X = numpy.arange(4, dtype=numpy.float32).reshape(2, 2)
MODELS = ["add", "add_unplanned"]


def address(result):
    return numpy.asarray(result).__array_interface__["data"][0]


@pytest.mark.parametrize("name", MODELS)
def test_a_loop_that_drops_its_results_uses_two_blocks(name):
    """Fails where OutputSlot::take_memory always allocates."""
    method, seen = load(name), set()
    for number in range(50):
        result = method.execute([X + number, X])[0]
        seen.add(address(result))
        numpy.testing.assert_array_equal(numpy.asarray(result), X + number + X)
        collect()  # PyPy drops them only then
    assert len(seen) <= 2


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clone", [True, False])
def test_what_somebody_holds_is_never_written_through(name, clone):
    """Fails where take_memory does not ask whether the block is shared."""
    if name == "add" and not clone:
        return check_lent_results(load(name))
    method, held = load(name), []
    for number in range(20):
        result = method.execute([X + number, X], clone_outputs=clone)[0]
        # By the result itself, by an array over it, by a capsule's consumer.
        keep = [lambda r: r, numpy.asarray, numpy.from_dlpack][number % 3]
        held.append(keep(result))
        del result
        gc.collect()
    for number, kept in enumerate(held):
        numpy.testing.assert_array_equal(numpy.asarray(kept), X + number + X)
    assert len({address(kept) for kept in held}) == len(held)


def check_lent_results(method):
    """A lent planned output is the arena's: the same memory each time, as its caller asked for."""
    results = [method.execute([X + number, X], clone_outputs=False)[0] for number in range(3)]
    assert len({address(result) for result in results}) == 1
    numpy.testing.assert_array_equal(numpy.asarray(results[0]), X + 2 + X)


@pytest.mark.parametrize("name", MODELS)
def test_a_result_that_is_an_input_of_the_next_run(name):
    """The runtime reads it while it writes the next: it must not be given the same block."""
    method = load(name)
    result = method.execute([X, X])[0]
    for number in itertools.islice(itertools.count(1), 10):
        result = method.execute([result, X])[0]
        numpy.testing.assert_array_equal(numpy.asarray(result), X * (number + 2))


def test_results_set_as_inputs_and_dropped():
    """Only the method holds the result, as an input, when it takes memory for the next one."""
    method = load("add_unplanned")
    method.set_inputs([method.execute([X, X])[0], X])
    gc.collect()
    for _ in range(4):
        # The input is the first result throughout, whatever memory the runs take.
        numpy.testing.assert_array_equal(numpy.asarray(method.execute()[0]), 3 * X)

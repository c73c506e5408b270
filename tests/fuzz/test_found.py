"""What fuzzing found in et_cffi itself, one test each."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
from collections.abc import Sequence

import model_index
import numpy
import pytest

import et_cffi

ONES = numpy.ones((2, 2), numpy.float32)


def load(name):
    return et_cffi.Runtime.get().load_program(model_index.path(name)).load_method("forward")


def test_a_program_from_memory_in_a_cycle():
    """The collector empties a memoryview that it finds in a cycle; who held a buffer of that view crashed.

    Fails if program_from_buffer keeps the cdata of ffi.from_buffer(view), and not the view itself.
    """
    code = f"""
import gc, et_cffi
data = open({str(model_index.path("add"))!r}, "rb").read()
for _ in range(20):
    program = et_cffi.Runtime.get().load_program(bytes(bytearray(data)))
    cycle = [program, program.load_method("forward")]
    cycle.append(cycle)
    del program, cycle
    gc.collect()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


class Shorter(list):
    """Says that it has two items, and gives one."""

    def __len__(self):
        return 2

    def __iter__(self):
        return iter([ONES])


def test_a_list_that_gives_fewer_items_than_it_says():
    """Fails if inputs are counted by len() and read by iterating: the rest were the last call's, freed."""
    method = load("add_unplanned")
    method.execute([ONES * 3, ONES * 5])
    with pytest.raises(et_cffi.errors.InputCountError):
        method.execute(Shorter())
    with pytest.raises(et_cffi.errors.InputCountError):
        method.set_inputs(Shorter())


def test_a_list_that_is_emptied_while_it_is_read():
    """Fails if the caller's own list is iterated."""

    class Empties:
        def __dlpack__(self, **keywords):
            given.clear()
            gc.collect()
            return ONES.__dlpack__(**keywords)

        def __dlpack_device__(self):
            return ONES.__dlpack_device__()

    given = [Empties(), ONES * 2]
    method = load("add_unplanned")
    assert numpy.array_equal(numpy.asarray(method.execute(given)[0]), ONES * 3)


class Endless(Sequence):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return 1.0


class EndlessList(list):
    def __iter__(self):
        return itertools.repeat(ONES)


@pytest.mark.parametrize("inputs", [Endless(), EndlessList([ONES, ONES])], ids=["sequence", "list"])
def test_a_sequence_without_end(inputs):
    """Fails, by never ending, if all of its items are taken."""
    with pytest.raises(et_cffi.errors.InputCountError):
        load("add").execute(inputs)

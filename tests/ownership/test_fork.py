"""A process that ran methods forks: its child runs them too, and has the right numbers."""

from __future__ import annotations

import model_index
import numpy
import pytest
from forking import in_a_child
from support import child, host_inputs, load, program

MODELS = [
    ("add_unplanned", "forward"),
    ("conv", "forward"),
    ("state", "forward"),
    ("conv_xnnpack", "forward"),
    ("conv_xnnpack_unplanned", "forward"),
    ("mlp_dynamic_xnnpack", "forward"),
    ("xnnpack_threads", "forward"),
]


def runs(method, name, method_name, times):
    for _ in range(times):
        for case in model_index.cases(name, method_name):
            for output, expected in zip(method.execute(host_inputs(case)), case.outputs):
                if not numpy.allclose(output, expected, case.rtol, case.atol):
                    return False
    return True


@pytest.mark.parametrize("loaded_in", ["parent", "child"])
@pytest.mark.parametrize(("name", "method_name"), MODELS)
def test_a_child_runs_what_its_parent_ran(name, method_name, loaded_in):
    """XNNPACK's pool has threads that the child has not. Fails where the child waits for them."""
    method = load(name, method_name)
    stateful = name == "state"
    assert runs(method, name, method_name, 1)

    def work():
        mine = method if loaded_in == "parent" and not stateful else program(name).load_method(method_name)
        return runs(mine, name, method_name, 1 if stateful else 3)

    for _ in range(3):
        assert in_a_child(work) == 0
    if not stateful:
        assert runs(method, name, method_name, 1)


def test_inputs_that_were_set_before_are_the_childs_own():
    """Memory is copied by a fork: what the child writes to its input, its parent never sees."""
    method = load("add_unplanned")
    x, y = numpy.ones((2, 2), numpy.float32), numpy.full((2, 2), 5, numpy.float32)
    method.set_inputs([x, y])

    def work():
        x[...] = 100
        return numpy.asarray(method.execute()[0]).tolist() == [[105, 105], [105, 105]]

    assert in_a_child(work) == 0
    numpy.testing.assert_array_equal(method.execute()[0], x + y)


def test_a_child_that_ends_in_the_ordinary_way():
    """It takes everything down that its parent had made. Fails where a destructor waits for a thread."""
    code = """
import os, sys, warnings
from support import load, case_of
method = load("xnnpack_threads")
outputs = method.execute(case_of("xnnpack_threads").inputs)
warnings.simplefilter("ignore")
pid = os.fork()
if pid == 0:
    method.execute(case_of("xnnpack_threads").inputs)
    sys.exit(5)  # by way of the interpreter's end
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
"""
    done = child(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

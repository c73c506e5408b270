"""No reference is lost: run by `nox -s leaks` with pytest-leaks, in a CPython that counts all references.

Nothing here goes through numpy, whose wheels are built for an interpreter that does not count. Each test does
its work some times over, so that one lost reference each time is told from one that is kept for the next.
"""

from __future__ import annotations

import array as arrays
import gc
import pickle
import sys
import weakref

import model_index
import pytest

from et_cffi import Runtime, from_cdata
from et_cffi._lib import capsule, ffi, lib
from et_cffi.errors import ExecuTorchError, MethodStateError

TIMES = range(5)
X, Y = arrays.array("f", [1, -2, 3, 5]), arrays.array("f", [70, 110, 130, -170])
SUM = arrays.array("f", [71, 108, 133, -165])


def matrix(values):
    """A writable buffer of two rows and two columns."""
    return memoryview(bytearray(values.tobytes())).cast("f", (2, 2))


def values_of(result):
    # By the buffer protocol, where a result has it of itself: tobytes goes by way of numpy.
    data = memoryview(result).tobytes() if sys.implementation.name == "cpython" else result.tobytes()
    return arrays.array("f", data)


@pytest.fixture(scope="module")
def programs():
    names = ["add", "add_unplanned", "scalar_inputs_unplanned", "conv_xnnpack", "missing_operators"]
    return {name: Runtime.get().load_program(model_index.path(name)) for name in names}


# Loaded in each test and not by a fixture: pytest-leaks would count one that pytest keeps.
NAMES = pytest.mark.parametrize("name", ["add", "add_unplanned"])


@pytest.mark.parametrize("clone", [True, False])
@NAMES
def test_execute(programs, name, clone):
    method = programs[name].load_method("forward")
    for _ in TIMES:
        (result,) = method.execute([matrix(X), matrix(Y)], clone_outputs=clone)
        assert values_of(result) == SUM
        assert method.get_outputs(clone_outputs=clone)[0] is result
        method.get_outputs(clone_outputs=not clone)


@NAMES
def test_set_inputs(programs, name):
    method = programs[name].load_method("forward")
    for _ in TIMES:
        method.set_inputs([matrix(X), matrix(Y)])
        method.set_inputs((matrix(X), matrix(Y)))
        for _ in TIMES:
            (result,) = method.execute()
            assert values_of(result) == SUM


@NAMES
def test_pointers(programs, name):
    method = programs[name].load_method("forward")
    for _ in TIMES:
        x, y = ffi.new("float[2][2]", [[1, -2], [3, 5]]), ffi.new("float[4]", list(Y))
        given = [from_cdata(x, (2, 2)), from_cdata(ffi.cast("float *", y), (2, 2), owner=y)]
        pointer = method.execute(given)[0].cdata()
        assert list(pointer[0:4]) == list(SUM)


def test_pickled(programs):
    for _ in TIMES:
        assert pickle.loads(pickle.dumps(programs["add"])).method_names == {"forward"}


@NAMES
def test_results_as_inputs(programs, name):
    method = programs[name].load_method("forward")
    (result,) = method.execute([matrix(X), matrix(Y)])
    for _ in TIMES:
        (other,) = method.execute([result, matrix(Y)])
        method.set_inputs([other, other])
        method.execute()


@pytest.mark.parametrize("from_bytes", [True, False])
@pytest.mark.parametrize("name", ["add", "conv_xnnpack"])
def test_load_and_drop(name, from_bytes):
    path = model_index.path(name)
    for _ in TIMES:
        program = Runtime.get().load_program(path.read_bytes() if from_bytes else path)
        methods = [program.load_method("forward"), program.load_method("forward")]
        assert program.metadata("forward").num_inputs() == methods[0].metadata.num_inputs()
        methods[0].close()
        del program
        methods[1].close()
        methods[1].close()


def refused(work, *arguments):
    try:
        work(*arguments)
    except ExecuTorchError:
        return
    raise AssertionError("not refused")


@NAMES
def test_refused_inputs(programs, name):
    method = programs[name].load_method("forward")
    x = matrix(X)
    sets = [[x], [x, x, x], [x, "y"], [x, None], [x, object()], [x, matrix(X).cast("B").cast("i")], object()]
    sets.append([x, memoryview(bytearray(16)).cast("f", (4,))])
    for _ in TIMES:
        for inputs in sets:
            refused(method.set_inputs, inputs)
            refused(method.execute, inputs)
            refused(method.get_outputs)
            refused(method.execute)
    assert values_of(method.execute([x, matrix(Y)])[0]) == SUM


def test_sets_refused_half_way(programs):
    method = programs["scalar_inputs_unplanned"].load_method("forward")
    for _ in TIMES:
        method.set_inputs([matrix(X), 3, 0.5, True])
        for _ in TIMES:
            refused(method.set_inputs, [matrix(X), 4, 0.5, True])
            refused(method.execute, [matrix(X), 4, 0.5, True])


def test_refused_programs(programs):
    data = model_index.path("add").read_bytes()
    for _ in TIMES:
        refused(Runtime.get().load_program, data[:-1])
        refused(Runtime.get().load_program, b"")
        refused(Runtime.get().load_program, "no such file")
        refused(programs["missing_operators"].load_method, "forward")
        refused(programs["add"].load_method, "backward")


class OnlyDlpack:
    """Hides everything of a result but its DLPack."""

    def __init__(self, result, *, fails=False, **keywords):
        self.result, self.fails, self.keywords = result, fails, keywords

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **keywords):
        if self.fails:
            raise ZeroDivisionError
        return self.result.__dlpack__(**(self.keywords or keywords))


@NAMES
def test_dlpack_in(programs, name):
    method = programs[name].load_method("forward")
    (result,) = method.execute([matrix(X), matrix(Y)])
    for _ in TIMES:
        for keywords in ({}, {"max_version": None}, {"copy": True}):
            producer = OnlyDlpack(result, **keywords)
            method.execute([producer, matrix(Y)])
            method.set_inputs([producer, producer])
            method.execute()


@NAMES
def test_dlpack_that_fails(programs, name):
    method = programs[name].load_method("forward")
    (result,) = method.execute([matrix(X), matrix(Y)])
    for _ in TIMES:
        for set_them in (method.set_inputs, method.execute):
            try:
                set_them([OnlyDlpack(result), OnlyDlpack(result, fails=True)])
            except ZeroDivisionError:
                continue
            raise AssertionError("not raised")


@NAMES
def test_dlpack_out(programs, name):
    method = programs[name].load_method("forward")
    (result,) = method.execute([matrix(X), matrix(Y)])
    for _ in TIMES:
        for version in (None, (1, 0)):
            for copy in (None, True):
                result.__dlpack__(max_version=version, copy=copy)  # and nobody claims it
                at, versioned = capsule.claim(result.__dlpack__(max_version=version, copy=copy))
                if versioned:
                    lib.etcffi_dlpack_release_versioned(ffi.cast("DLManagedTensorVersioned *", at))
                else:
                    lib.etcffi_dlpack_release(ffi.cast("DLManagedTensor *", at))


@NAMES
def test_a_producer_that_runs_the_method(programs, name):
    method = programs[name].load_method("forward")
    (result,) = method.execute([matrix(X), matrix(Y)])

    class Nested(OnlyDlpack):
        def __dlpack__(self, **keywords):
            method.execute([result, result])
            return super().__dlpack__(**keywords)

    for _ in TIMES:
        method.execute([matrix(X), Nested(result)])
        method.set_inputs([Nested(result), matrix(Y)])


def test_cycles(programs):
    class Knot(bytearray):
        method = None

    for _ in TIMES:
        memory = Knot(X.tobytes())
        memory.method = programs["add_unplanned"].load_method("forward")
        memory.method.set_inputs([memoryview(memory).cast("f", (2, 2)), matrix(Y)])
        gone = weakref.ref(memory.method)
        del memory
        for _ in range(3):
            gc.collect()
        assert gone() is None


def test_use_after_close(programs):
    for _ in TIMES:
        method = programs["add"].load_method("forward")
        with method:
            method.execute([matrix(X), matrix(Y)])
        for use in (method.execute, method.get_outputs):
            try:
                use()
            except MethodStateError:
                continue
            raise AssertionError("not refused")

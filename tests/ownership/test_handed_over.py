"""Results: a fresh buffer per call for each output without planned memory, no copy where none is wanted, the
same objects when read twice, and valid memory whatever is dropped, in any order."""

from __future__ import annotations

import ctypes
import itertools

import model_index
import numpy
import pytest
from dlpack_producer import Producer
from holding import OTHER, X, Y, settle
from support import address, case_of, load

from et_cffi import Runtime, TensorBuffer, ffi, lib
from et_cffi._lib import capsule

CLONE = pytest.mark.parametrize("clone", [True, False], ids=["cloned", "not cloned"])


@CLONE
def test_a_result_is_unchanged_after_a_later_call(clone):
    """An output without planned memory has a buffer of its own in each run. Fails where the buffer is kept
    for the next run (method.cpp, execute: `slot.fresh = etcffi_block::allocate`)."""
    method = load("add_unplanned")
    (first,) = method.execute([X, Y], clone_outputs=clone)
    (second,) = method.execute([OTHER, Y], clone_outputs=clone)
    method.set_inputs([OTHER, OTHER])
    (third,) = method.execute(clone_outputs=clone)
    for result, expected in ((first, X + Y), (second, OTHER + Y), (third, OTHER + OTHER)):
        numpy.testing.assert_array_equal(result, expected)
    assert len({address(first), address(second), address(third)}) == 3


def test_a_planned_result_is_unchanged_if_it_is_cloned():
    """Fails where make_result lends planned memory to who asked for a copy (method.cpp: `!clone`)."""
    method = load("add")
    (first,) = method.execute([X, Y])
    method.execute([OTHER, Y])
    numpy.testing.assert_array_equal(first, X + Y)


def test_a_planned_result_is_lent_if_it_is_not_cloned():
    """No copy means no copy: the next run writes there. Fails where make_result copies all the same
    (method.cpp: the loop over `planned_`)."""
    method = load("add")
    (first,) = method.execute([X, Y], clone_outputs=False)
    values = numpy.asarray(first)
    numpy.testing.assert_array_equal(values, X + Y)
    (second,) = method.execute([OTHER, Y], clone_outputs=False)
    assert address(first) == address(second)
    numpy.testing.assert_array_equal(values, OTHER + Y)


def test_a_lent_result_is_valid_memory_after_its_method_is_gone():
    """Fails where a lent result does not hold the block it is in (method.cpp, make_result: `block` is a
    reference of its own)."""
    method = load("add")
    (lent,) = method.execute([X, Y], clone_outputs=False)
    method.close()
    del method
    settle()
    garbage = [bytearray(b"\xff" * 256) for _ in range(1000)]
    assert garbage
    numpy.testing.assert_array_equal(lent, X + Y)


@CLONE
def test_an_output_without_planned_memory_is_never_copied(clone):
    """The buffer that the run wrote is the result, cloned or not. Fails where make_result copies it
    (method.cpp: `memory.data == fresh->data()`)."""
    method = load("add_unplanned")
    (first,) = method.execute([X, Y], clone_outputs=clone)
    (other,) = method.get_outputs(clone_outputs=not clone)
    assert address(first) == address(other)
    array = numpy.asarray(first)
    assert array.__array_interface__["data"][0] == address(first)
    array[0, 0] = 4321
    assert numpy.asarray(first)[0, 0] == 4321


@CLONE
@pytest.mark.parametrize("in_one_step", [True, False], ids=["one step", "two steps"])
@pytest.mark.parametrize("name", ["add", "add_unplanned", "same_twice_unplanned", "identity_first_unplanned"])
def test_read_twice_in_one_execution_they_are_the_same_objects(name, in_one_step, clone):
    """Fails where the results of an execution are not kept (method.py: `kept[clone] = results` in _ran, and
    `results[clone] =` in _convert)."""
    method = load(name)
    inputs = case_of(name).inputs
    if in_one_step:
        executed = method.execute(inputs, clone_outputs=clone)
    else:
        method.set_inputs(inputs)
        executed = method.execute(clone_outputs=clone)
    read = method.get_outputs(clone_outputs=clone)
    again = method.get_outputs(clone_outputs=clone)
    assert all(one is two is three for one, two, three in zip(executed, read, again))
    assert executed is not read  # the list is the caller's
    executed.clear()
    assert len(method.get_outputs(clone_outputs=clone)) == len(read)
    others = method.execute(inputs, clone_outputs=clone)
    assert all(one is not other for one, other in zip(read, others))


IDENTITIES = [
    name
    for name in model_index.models()
    if name.startswith(("identity", "swap", "view_of_input")) and "bundled" not in name
]


@CLONE
@pytest.mark.parametrize("name", IDENTITIES)
def test_an_output_that_is_an_input(name, clone):
    """Such an output is left where the input is. Fails where it is given a buffer of its own (method.cpp,
    describe_outputs: `slot.wants_memory = false`), which moves the input there."""
    method = load(name)
    for case in model_index.cases(name, "forward"):
        inputs = case.inputs
        method.set_inputs(inputs)
        outputs = [numpy.array(output) for output in method.execute(clone_outputs=clone)]
        for output, expected in zip(outputs, case.outputs):
            numpy.testing.assert_array_equal(output, expected)
        for value, before in zip(inputs, case.inputs):
            numpy.testing.assert_array_equal(value, before)


@CLONE
@pytest.mark.parametrize("name", [name for name in IDENTITIES if name.endswith("_unplanned")])
def test_an_output_that_is_an_input_is_no_pointer_into_it(name, clone):
    """The memory is the caller's, who may free it. Fails where make_result hands it over (method.cpp)."""
    method = load(name)
    case = case_of(name)
    inputs = case.inputs
    outputs = method.execute(inputs, clone_outputs=clone)
    for value in inputs:
        value[...] = -1
    for output, expected in zip(outputs, case.outputs):
        numpy.testing.assert_array_equal(output, expected)


@CLONE
@pytest.mark.parametrize("name", ["constant_output", "constant_output_unplanned"])
def test_a_constant_is_not_handed_over(name, clone):
    """It is in the program's bytes, which must stay as they are. Fails as above."""
    method = load(name)
    case = case_of(name)
    outputs = method.execute(case.inputs, clone_outputs=clone)
    for output in outputs:
        numpy.asarray(output)[...] = -1
    for output, expected in zip(method.execute(case.inputs), case.outputs):
        numpy.testing.assert_array_equal(output, expected)


# Planned, not planned, in the memory of an input, and with a delegate.
DROPPED = ["add", "add_unplanned", "identity_only_unplanned", "conv_xnnpack_unplanned"]
ORDERS = list(itertools.permutations(["program", "method", "source", "result"]))


@CLONE
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("name", DROPPED)
def test_dropped_in_every_order(name, order, clone):
    """What is left after each drop goes on working. Fails where a handle does not hold what it needs
    (method.h: `program_(program)`; program.py: Destructor's second argument; tensor.h: `block`)."""
    case = case_of(name)
    alive = {"source": bytes(bytearray(model_index.path(name).read_bytes()))}
    alive["program"] = Runtime.get().load_program(alive["source"])
    alive["method"] = alive["program"].load_method("forward")
    alive["result"] = alive["method"].execute(case.inputs, clone_outputs=clone)[0]
    garbage = []
    for dropped in order:
        del alive[dropped]
        settle()
        garbage += [bytearray(b"\xff" * 4096) for _ in range(50)]
        if "result" in alive:
            numpy.testing.assert_allclose(alive["result"], case.outputs[0], case.rtol, case.atol)
        if "method" in alive:
            output = alive["method"].execute(case.inputs)[0]
            numpy.testing.assert_allclose(output, case.outputs[0], case.rtol, case.atol)
        if "program" in alive:
            output = alive["program"].load_method("forward").execute(case.inputs)[0]
            numpy.testing.assert_allclose(output, case.outputs[0], case.rtol, case.atol)


def consumers(result):
    """Ways to hold on to a result's memory without the result, each with a reader."""
    array, taken, capsule_of_it = numpy.asarray(result), numpy.from_dlpack(result), result.__dlpack__()
    yield lambda: array
    yield lambda: taken
    yield lambda: numpy.from_dlpack(OneCapsule(capsule_of_it))


class OneCapsule:
    def __init__(self, made):
        self.made = made

    def __dlpack__(self, **keywords):
        return self.made

    def __dlpack_device__(self):
        return (1, 0)


@CLONE
@pytest.mark.parametrize("which", range(3))
def test_what_was_made_of_a_result_outlives_it(which, clone):
    """Fails where a buffer or a capsule does not hold the tensor (cpython.c, lender_getbuffer: `view->obj`;
    tensor.cpp, export_tensor: `made->tensor`)."""
    for name in ("add", "add_unplanned"):
        method = Runtime.get().load_program(model_index.path(name)).load_method("forward")
        (result,) = method.execute([X, Y], clone_outputs=clone)
        assert type(result) is TensorBuffer
        read = list(consumers(result))[which]
        del result, method
        settle()
        garbage = [bytearray(b"\xff" * 128) for _ in range(1000)]
        assert garbage
        numpy.testing.assert_array_equal(read(), X + Y)


def test_an_attribute_is_lent_and_outlives_its_method():
    """What a run adds up is seen in place. Fails where get_attribute clones, or hands over memory without its
    block (method.cpp)."""
    method = load("state_named")
    attribute = method.get_attribute("total")
    before = numpy.array(attribute)
    (x,) = case_of("state_named").inputs
    method.execute([x])
    numpy.testing.assert_array_equal(attribute, before + x)
    method.close()
    del method
    garbage = [bytearray(b"\xff" * 256) for _ in range(1000)]
    assert garbage
    numpy.testing.assert_array_equal(attribute, before + x)


# ---- deleters ---------------------------------------------------------------------------------------------


def claimed(result, versioned):
    """The managed tensor of a new capsule, which is the caller's from here on."""
    made = result.__dlpack__(max_version=(1, 0) if versioned else None)
    at, is_versioned = capsule.claim(made)
    assert is_versioned == versioned
    return ffi.cast("DLManagedTensorVersioned *" if versioned else "DLManagedTensor *", at)


VERSIONED = pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])


@VERSIONED
@pytest.mark.linux
def test_a_deleter_called_by_a_thread_that_python_knows_nothing_of(versioned):
    """It is plain C. Fails where it needs the interpreter (tensor.cpp, export_tensor: `deleter`)."""
    pthread = ctypes.CDLL(None)
    for _ in range(50):
        (result,) = load("add_unplanned").execute([X, Y])
        managed = claimed(result, versioned)
        del result
        thread = ctypes.c_void_p()
        deleter = ctypes.c_void_p(int(ffi.cast("uintptr_t", managed.deleter)))
        argument = ctypes.c_void_p(int(ffi.cast("uintptr_t", managed)))
        # A deleter is called as a thread's start routine: it takes one pointer, and its answer is not read.
        assert pthread.pthread_create(ctypes.byref(thread), None, deleter, argument) == 0
        assert pthread.pthread_join(thread, None) == 0


def test_the_last_reference_may_be_a_deleters():
    """Fails where a capsule does not hold the tensor's block (tensor.cpp, export_tensor: `made->tensor`)."""
    (result,) = load("add_unplanned").execute([X, Y])
    managed = claimed(result, True)
    del result
    settle()
    data = ffi.cast("float *", managed.dl_tensor.data)
    assert list(data[0:4]) == (X + Y).ravel().tolist()
    lib.etcffi_dlpack_release_versioned(managed)


def test_a_result_may_be_an_input_after_its_method_is_gone():
    """A chain of results, each the input of the next and held by nobody else."""
    values = X
    result = None
    for _ in range(5):
        method = load("add_unplanned")
        result = method.execute([values if result is None else result, Y])[0]
        del method
        settle()
        values = values + Y
    numpy.testing.assert_array_equal(result, values)


@CLONE
def test_a_result_holds_no_input(clone):
    """A result is never in an input's memory. Fails where make_result hands that over (method.cpp)."""
    method = load("identity_only_unplanned")
    case = case_of("identity_only_unplanned")
    producer = Producer(case.inputs[0])
    (result,) = method.execute([producer], clone_outputs=clone)
    method.close()
    assert producer.deleted == 1
    numpy.testing.assert_array_equal(result, case.outputs[0])

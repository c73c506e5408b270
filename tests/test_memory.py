"""What a method uses of memory, and planned buffers in the caller's."""

from __future__ import annotations

import gc
import mmap
import threading
import weakref

import model_index
import numpy
import pytest

from et_cffi import Runtime, errors

ROOM = 64


def load(name, **options):
    return Runtime.get().load_program(model_index.path(name)).load_method("forward", **options)


def planned(name):
    return Runtime.get().load_program(model_index.path(name)).metadata("forward").planned_buffers


def aligned(nbytes, offset=0):
    array = numpy.zeros(nbytes + 64 + offset, numpy.uint8)
    start = -array.ctypes.data % 64 + offset
    return array[start : start + nbytes]


def test_what_a_method_uses():
    method, case = load("two_dynamic"), model_index.cases("two_dynamic", "forward")[0]
    use = method.memory
    assert [(buffer.nbytes, buffer.device) for buffer in use.planned] == planned("two_dynamic")
    assert all(buffer.owner == "method" and str(buffer.device) == "cpu:0" for buffer in use.planned)
    assert use.structures > 500
    assert use.temporary_peak == 0
    method.execute(case.inputs)
    assert method.memory.structures == use.structures


@pytest.mark.parametrize(
    "make", [aligned, bytearray, lambda n: mmap.mmap(-1, n)], ids=["array", "bytearray", "mmap"]
)
def test_planned_buffers_in_the_callers_memory(make):
    case = model_index.cases("add", "forward")[0]
    ((nbytes, _),) = planned("add")
    buffer = make(nbytes + ROOM)
    method = load("add", planned_memory=[buffer])
    assert [use.owner for use in method.memory.planned] == ["caller"]
    result = method.execute(case.inputs)[0]
    assert numpy.array_equal(numpy.asarray(result), case.outputs[0])
    assert case.outputs[0].tobytes() in bytes(buffer[0:nbytes])
    assert case.inputs[0].tobytes() in bytes(buffer[0:nbytes])


def test_state_in_the_callers_memory_is_seen_there():
    cases = model_index.cases("state", "forward")
    ((nbytes, _),) = planned("state")
    buffer = aligned(nbytes + ROOM)
    buffer[:] = 255  # zeroed by the load: the state begins at zero
    method = load("state", planned_memory=[buffer])
    for case in cases:
        assert numpy.array_equal(numpy.asarray(method.execute(case.inputs)[0]), case.outputs[0])
    total = sum(case.inputs[0] for case in cases)
    assert total.astype(numpy.float32).tobytes() in bytes(buffer)


def test_none_is_memory_of_the_methods_own():
    method = load("add", planned_memory=[None])
    assert [use.owner for use in method.memory.planned] == ["method"]


@pytest.mark.parametrize(
    ("give", "error", "says"),
    [
        (lambda n: [], errors.InputCountError, "has 1 planned buffers, and memory for 0"),
        (lambda n: [None, None], errors.InputCountError, "memory for 2"),
        (lambda n: [aligned(n + ROOM - 1)], errors.MemoryMissingError, "are needed"),
        (lambda n: [aligned(n + ROOM, 8)], errors.LayoutError, "no multiple of 16"),
        (lambda n: [bytes(n + ROOM)], errors.ArgumentError, "read-only"),
        (lambda n: [aligned(2 * (n + ROOM))[::2]], errors.ArgumentError, "not contiguous"),
        (lambda n: [3], TypeError, "item 0 of planned_memory is a int"),
    ],
)
def test_memory_that_does_not_do(give, error, says):
    ((nbytes, _),) = planned("add")
    with pytest.raises(error, match=says):
        load("add", planned_memory=give(nbytes))


def test_shared_state_is_not_the_callers():
    buffers = [aligned(1024), aligned(1024)]
    with pytest.raises(
        errors.ArgumentError, match=r"planned buffer 1 .* shared with the program's other methods"
    ):
        load("state_shared", planned_memory=buffers)
    load("state_shared", planned_memory=[buffers[0], None])
    with pytest.raises(errors.ArgumentError, match="overlap"):
        load("state_shared", planned_memory=[buffers[0], buffers[0][64:]])


def collect():
    for _ in range(4):
        gc.collect()


def region_for(name):
    """A buffer for the model's one planned buffer, and a way to see whether it is held."""
    ((nbytes, _),) = planned(name)
    region = numpy.zeros(nbytes + ROOM, numpy.uint8)
    return region, weakref.ref(region)


def test_the_memory_is_held_as_long_as_the_method():
    region, held = region_for("add")
    method = load("add", planned_memory=[region])
    del region
    collect()
    assert held() is not None
    method.close()
    del method
    collect()
    assert held() is None


def test_a_lent_result_holds_the_memory():
    case = model_index.cases("add", "forward")[0]
    region, held = region_for("add")
    method = load("add", planned_memory=[region])
    del region
    lent = method.execute(case.inputs, clone_outputs=False)[0]
    # A capsule could outlive the region, so it is one over a copy.
    copied = numpy.from_dlpack(lent)
    with pytest.raises(errors.DeviceError, match="planned_memory, which DLPack cannot keep alive"):
        lent.__dlpack__(copy=False)
    method.close()
    del method
    collect()
    assert held() is not None
    assert numpy.array_equal(numpy.asarray(lent), case.outputs[0])
    del lent
    collect()
    assert held() is None
    assert numpy.array_equal(copied, case.outputs[0])


@pytest.mark.cpython
def test_memory_that_moves():
    case = model_index.cases("add", "forward")[0]
    array = numpy.zeros(1 << 20, numpy.uint8)  # large: mapped by itself, so resizing moves it
    method = load("add", planned_memory=[array])
    method.execute(case.inputs)
    array.resize(1 << 22, refcheck=False)
    with pytest.raises(errors.MemoryMovedError, match="planned_memory was moved"):
        method.execute(case.inputs)


def test_two_methods_do_not_meet():
    """Each method's planned memory is its own: run together, neither sees the other's."""
    cases = model_index.cases("add", "forward")
    methods = [load("add") for _ in range(4)]
    wrong = []

    def work(method):
        for _ in range(500):
            result = numpy.asarray(method.execute(cases[0].inputs)[0])
            if not numpy.array_equal(result, cases[0].outputs[0]):
                wrong.append(result)

    threads = [threading.Thread(target=work, args=(method,)) for method in methods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

"""Results on a device: how they are read and lent, what is refused, how long they live."""

from __future__ import annotations

import gc
import itertools
import sys
import threading

import device_plugin
import model_index
import numpy
import pytest
from device_cases import Claimed, address, case, check, inputs, load, program, values
from device_plugin import CPU, CUDA

from et_cffi import Device, DeviceType, ScalarType
from et_cffi.errors import AllocationError, DeviceError, ExecuTorchError, MethodStateError

sys.path.insert(0, str(device_plugin.HERE / "fakes"))

import cupy

COPIED = 2  # DLPACK_FLAG_BITMASK_IS_COPIED


def run(name="device_add", method="forward", number=0):
    example = case(name, method, number)
    return load(name, method).execute(inputs(example))[0], example


def fresh(device):
    """A result, and counters that were set back. No fixture, which pytest would hold beyond the test."""
    result, _ = run()
    gc.collect()
    device.reset()
    return result


# ---- what it says, and what it refuses --------------------------------------------------------------------


def test_what_a_result_says_of_itself(device):
    result = fresh(device)
    assert result.device == Device(DeviceType.CUDA, 0)
    assert result.dtype is ScalarType.Float
    assert (result.shape, result.strides, result.nbytes, result.ndim) == ((2, 2), (8, 4), 16, 2)
    assert repr(result) == "TensorBuffer(shape=(2, 2), dtype=float32, device=cuda:0)"
    assert result.__dlpack_device__() == (CUDA, 0)
    other, _ = run("device_add_index1")
    assert other.__dlpack_device__() == (CUDA, 1)
    assert str(other.device) == "cuda:1"


@pytest.mark.parametrize(
    ("read", "way"),
    [
        (lambda result: result.__array_interface__, "array"),
        (lambda result: result.tobytes(), "bytes"),
        (lambda result: result.cdata(), "C"),
        (numpy.asarray, "array"),
        (numpy.array, "array"),
        (lambda result: numpy.zeros((2, 2), numpy.float32) + result, "array"),
    ],
)
def test_the_host_is_refused_in_words(device, read, way):
    result = fresh(device)
    with pytest.raises(
        DeviceError, match=rf"cuda:0, which the host cannot.*{way}.*copied to the host.*to_host"
    ):
        read(result)
    assert device.copies() == (0, 0)


@pytest.mark.parametrize("read", [memoryview, numpy.from_dlpack])
def test_other_ways_to_the_hosts_memory_are_refused(device, read):
    result = fresh(device)
    with pytest.raises((BufferError, TypeError, RuntimeError)) as caught:
        read(result)
    if read is memoryview and sys.implementation.name == "cpython":
        assert "copied to the host first (to_host())" in str(caught.value)
    assert device.copies() == (0, 0)


# ---- into memory of the caller's --------------------------------------------------------------------------


def test_into_memory_on_the_device(device):
    """Written there by the backend: nothing is allocated, and nothing crosses."""
    method, memory = load("device_add"), fresh(device)
    example = case("device_add")
    given = [load("device_add").execute(inputs(example))[0] for _ in range(2)]
    gc.collect()
    device.reset()
    (result,) = method.execute(given, out=[memory])
    assert result is memory
    assert device.copies() == (0, 0)
    assert device.counters().allocations == 0
    assert numpy.array_equal(numpy.asarray(memory.to_host()), 2 * example.outputs[0])


def test_into_memory_on_the_host(device):
    example = case("device_add")
    memory = numpy.zeros((2, 2), numpy.float32)
    given = [load("device_add").execute(inputs(example))[0] for _ in range(2)]
    method = load("device_add")
    device.reset()
    (result,) = method.execute(given, out=[memory])
    assert result is memory
    assert device.copies() == (0, 1)
    assert numpy.array_equal(memory, 2 * example.outputs[0])


def test_into_memory_on_another_device(device):
    other, _ = run("device_add_index1")
    example = case("device_add")
    with pytest.raises(DeviceError, match="output 0 is on cuda:1, and the method returns it on cuda:0"):
        load("device_add").execute(inputs(example), out=[other])


def test_a_host_output_into_memory_on_the_device(device):
    example = case("device_to_host")
    result, _ = run()
    with pytest.raises(DeviceError, match=r"output 0.* is on cuda:0, and the method returns it on cpu"):
        load("device_to_host").execute(inputs(example), out=[result] + [None] * (len(example.outputs) - 1))


# ---- to the host ------------------------------------------------------------------------------------------


def test_to_host(device):
    result = fresh(device)
    host = result.to_host()
    counters = device.counters()
    assert (counters.device_to_host, counters.device_to_host_bytes, counters.host_to_device) == (1, 16, 0)
    assert host.device == Device(DeviceType.CPU, 0)
    assert (host.shape, host.strides, host.dtype) == (result.shape, result.strides, result.dtype)
    assert numpy.array_equal(numpy.asarray(host), case("device_add").outputs[0])
    device.write(address(result), bytes(16))
    assert numpy.array_equal(numpy.asarray(host), case("device_add").outputs[0])
    assert host.to_host() is host
    assert device.copies() == (0, 1)


def test_to_host_keeps_the_layout(device):
    result, example = run("device_kinds", "channels_last")
    array = numpy.asarray(result.to_host())
    assert numpy.array_equal(array, example.outputs[0])
    assert array.strides == result.strides != example.outputs[0].strides


def test_an_empty_result(device):
    result, example = run("device_kinds", "dynamic", 2)
    assert example.outputs[0].size == 0
    device.reset()
    assert numpy.asarray(result.to_host()).shape == example.outputs[0].shape
    Claimed(result, stream=2).release()
    assert device.copies() == (0, 0)


def test_a_copy_that_fails(device):
    result = fresh(device)
    device.fail_next("device to host")
    with pytest.raises(ExecuTorchError, match="copying 16 bytes from cuda:0 to cpu:0"):
        result.to_host()
    assert numpy.array_equal(numpy.asarray(result.to_host()), case("device_add").outputs[0])


# ---- DLPack -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (1, 1), (2, 0)])
@pytest.mark.parametrize(
    ("model", "method", "where", "dtype", "strides"),
    [
        ("device_add", "forward", (CUDA, 0), (2, 32, 1), (2, 1)),
        ("device_add_index1", "forward", (CUDA, 1), (2, 32, 1), (2, 1)),
        ("device_kinds", "channels_last", (CUDA, 0), (2, 32, 1), (12, 1, 6, 3)),
        ("device_kinds", "int64", (CUDA, 0), (0, 64, 1), (2, 1)),
    ],
)
def test_a_capsule_says_everything(device, model, method, where, dtype, strides, max_version):
    result, example = run(model, method)
    device.reset()
    claimed = Claimed(result, max_version=max_version)
    assert claimed.versioned is (max_version is not None and max_version >= (1, 0))
    assert (claimed.device, claimed.dtype, claimed.strides) == (where, dtype, strides)
    assert claimed.shape == example.outputs[0].shape
    assert claimed.flags == 0
    assert claimed.address == address(result)
    assert device.copies() == (0, 0)
    claimed.release()


def test_cupy_reads_it_where_it_is(device):
    result = fresh(device)
    array = cupy.from_dlpack(result)
    assert array.data.ptr == address(result)
    assert device.copies() == (0, 0)
    assert numpy.array_equal(cupy.asnumpy(array), case("device_add").outputs[0])


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("copy", [None, True])
def test_dlpack_to_the_host(device, copy, versioned):
    result = fresh(device)
    asked = {"max_version": (1, 0)} if versioned else {}
    claimed = Claimed(result, dl_device=(CPU, 0), copy=copy, **asked)
    assert claimed.device == (CPU, 0)
    assert claimed.flags == (COPIED if versioned else 0)
    assert device.copies() == (0, 1)
    claimed.release()


class OnHost:
    """A producer that brings a result to the host, for a numpy that does not know to ask for that."""

    def __init__(self, result):
        self.result = result

    def __dlpack_device__(self):
        return (CPU, 0)

    def __dlpack__(self, **asked):
        return self.result.__dlpack__(**{**asked, "dl_device": (CPU, 0), "copy": True})


def test_numpy_reads_what_was_brought_to_the_host(device):
    assert numpy.array_equal(numpy.from_dlpack(OnHost(fresh(device))), case("device_add").outputs[0])
    assert device.copies() == (0, 1)


def test_dlpack_to_the_host_without_a_copy_is_refused(device):
    result = fresh(device)
    with pytest.raises(DeviceError, match=r"on cuda:0.*takes a copy.*copy=False"):
        result.__dlpack__(dl_device=(CPU, 0), copy=False)
    Claimed(result, dl_device=(CUDA, 0), copy=False).release()
    assert device.copies() == (0, 0)


@pytest.mark.parametrize("where", [(CUDA, 1), (3, 0), (CPU, 1), (8, 0)])
def test_dlpack_to_another_device_is_refused(device, where):
    result = fresh(device)
    with pytest.raises(DeviceError, match=r"on cuda:0, and DLPack device .* was asked for"):
        result.__dlpack__(dl_device=where)


def test_a_copy_on_the_device(device):
    result = fresh(device)
    claimed = Claimed(result, copy=True, max_version=(1, 0))
    assert (claimed.device, claimed.flags) == ((CUDA, 0), COPIED)
    assert claimed.address != address(result)
    assert device.read(claimed.address, 16) == device.read(address(result), 16)
    assert device.copies() == (1, 1)
    claimed.release()
    assert device.counters().live_blocks == 1


@pytest.mark.parametrize("stream", [None, 1, -1])
def test_streams_that_are_ordered_already(device, stream):
    result = fresh(device)
    Claimed(result, stream=stream).release()
    assert device.copies() == (0, 0)


@pytest.mark.parametrize("stream", [2, 3, 0x7F0012345678])
def test_another_stream_is_waited_for(device, stream):
    """By the one operation that an allocator has for it: a copy to the host, of one byte."""
    result = fresh(device)
    Claimed(result, stream=stream).release()
    counters = device.counters()
    assert (counters.device_to_host, counters.device_to_host_bytes, counters.host_to_device) == (1, 1, 0)
    device.fail_next("device to host")
    with pytest.raises(ExecuTorchError, match="copying 1 bytes"):
        result.__dlpack__(stream=stream)


@pytest.mark.parametrize("stream", [0, -2, "1", 1.0])
def test_what_is_no_stream(device, stream):
    result = fresh(device)
    with pytest.raises(DeviceError, match="names no CUDA stream"):
        result.__dlpack__(stream=stream)


def test_the_host_has_no_stream(device):
    result = fresh(device)
    host = result.to_host()
    with pytest.raises(DeviceError, match="no stream"):
        host.__dlpack__(stream=1)
    Claimed(host, dl_device=(CPU, 0), copy=False).release()


# ---- how long it lives ------------------------------------------------------------------------------------


def test_each_run_has_memory_of_its_own(device):
    first, second = model_index.cases("device_add", "forward")
    method = load("device_add")
    for clone in (True, False):
        one = method.execute(inputs(first), clone_outputs=clone)
        other = method.execute(inputs(second), clone_outputs=clone)
        assert address(one[0]) != address(other[0])
        check(device, one, first)
        check(device, other, second)


def test_outputs_read_twice_are_the_same_objects(device):
    method = load("device_add")
    (result,) = method.execute(inputs(case("device_add")))
    assert method.get_outputs()[0] is result
    with pytest.raises(ExecuTorchError):
        method.set_inputs([None, None])
    with pytest.raises(MethodStateError):
        method.get_outputs()
    check(device, [result], case("device_add"))


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["program", "method", "result", "capsule"])), ids=" ".join
)
def test_drop_order(device, order):
    """Whatever goes first, what is left can be used; and nothing is left on the device in the end."""
    example = case("device_add")
    held = {"program": program("device_add")}
    held["method"] = held["program"].load_method("forward")
    held["result"] = held["method"].execute(inputs(example))[0]
    held["capsule"] = Claimed(held["result"])
    for name in order:
        del held[name]
        gc.collect()
        if "method" in held:
            check(device, held["method"].execute(inputs(example)), example)
        if "program" in held:
            check(device, held["program"].load_method("forward").execute(inputs(example)), example)
        if "result" in held:
            check(device, [held["result"]], example)
        if "capsule" in held:
            assert device.read(held["capsule"].address, 16) == example.outputs[0].tobytes()


@pytest.mark.parametrize("name", ["device_add", "device_add_planned", "device_two", "device_identity"])
def test_loops_do_not_grow(device, name):
    example = case(name)
    method = load(name)
    given = inputs(example)
    kept = []
    for turn in range(60):
        kept = method.execute(given if turn % 2 else [cupy.asarray(each) for each in given[:2]] + given[2:])
        if turn == 9:
            gc.collect()
            before = device.live(), [device.counters(index).live_bytes for index in (0, 1)]
    check(device, kept, example)
    gc.collect()
    assert (device.live(), [device.counters(index).live_bytes for index in (0, 1)]) == before
    for _ in range(20):
        method = load(name)
        method.execute(given)
        method.close()
        gc.collect()
    del kept
    gc.collect()
    assert device.live() == 0


def test_a_result_is_let_go_of_on_another_thread(device):
    results = load("device_add").execute(inputs(case("device_add")))
    gc.collect()
    assert device.live() == 1

    def drop():
        results.clear()
        gc.collect()

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    gc.collect()
    assert device.live() == 0


def test_results_pass_between_threads(device):
    """Each thread with a method of its own, and each result used by the next."""
    example = case("device_add")
    x, y = inputs(example)
    passed, failures = [None] * 4, []
    barrier = threading.Barrier(4)

    def work(number):
        try:
            method = load("device_add")
            for _ in range(20):
                passed[number] = method.execute([x, y])[0]
                barrier.wait()
                other = passed[(number + 1) % 4]
                (total,) = method.execute([other, other])
                assert numpy.array_equal(values(device, total), example.outputs[0] * 2)
                barrier.wait()
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert device.faults() == ""


def test_a_device_without_memory_left(device):
    example = case("device_add")
    method = load("device_add")
    method.execute(inputs(example))
    device.fail_next("allocation")
    with pytest.raises(AllocationError, match="allocating 16 bytes on cuda:0"):
        method.execute(inputs(example))
    check(device, method.execute(inputs(example)), example)

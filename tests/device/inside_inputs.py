"""Inputs of device programs: what is pointed at, what is copied, what is refused, who is let go of when."""

from __future__ import annotations

import array as arrays
import gc
import sys
import threading

import device_plugin
import model_index
import numpy
import pytest
from device_cases import (
    Claimed,
    HostProducer,
    OldProducer,
    Producer,
    address,
    case,
    check,
    inputs,
    load,
    values,
)
from device_plugin import CUDA, CUDA_HOST, CUDA_MANAGED, HERE

from et_cffi import Runtime
from et_cffi.errors import (
    DeviceError,
    DtypeError,
    ExecuTorchError,
    LayoutError,
    MemoryMissingError,
    MemoryMovedError,
    MethodStateError,
    ShapeError,
)

sys.path.insert(0, str(HERE / "fakes"))

import cupy

NAME = "BackendWithCompilerDemo"


def example():
    return case("device_add")


def on_cupy(case, index=0):
    with cupy.cuda.Device(index):
        return [cupy.asarray(values) for values in inputs(case)]


# ---- borrowed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "index"), [("device_add", 0), ("device_add_index1", 1)])
def test_nothing_is_copied_of_cupys_pool(device, name, index):
    x, y = on_cupy(case(name), index)
    outputs = load(name).execute([x, y])
    assert device.copies() == (0, 0)
    assert device.seen() == [x.data.ptr, y.data.ptr, address(outputs[0])]
    assert device.counters(index).allocations == 1  # the output's
    check(device, outputs, case(name))


def test_the_stream_is_passed(device):
    """1 is the legacy default stream in the array API standard, which the producer is to make wait."""
    x, y = on_cupy(example())
    load("device_add").execute([x, y])
    assert (x.streams, y.streams) == ([1], [1])


def test_a_part_of_an_array(device):
    numbers = numpy.arange(8, dtype=numpy.float32).reshape(4, 2)
    whole = cupy.asarray(numbers)
    (result,) = load("device_add").execute([whole[0:2], whole[2:4]])
    assert device.copies() == (0, 0)
    assert device.seen()[:2] == [whole.data.ptr, whole.data.ptr + 16]
    assert numpy.array_equal(values(device, result), numbers[:2] + numbers[2:])


def test_a_borrowed_array_may_change_until_the_run(device):
    x, y = on_cupy(example())
    method = load("device_add")
    method.set_inputs([x, y])
    changed = numpy.full((2, 2), 7, numpy.float32)
    device.write(x.data.ptr, changed.tobytes())
    (result,) = method.execute()
    assert numpy.array_equal(values(device, result), changed + example().inputs[1])
    assert device.copies() == (0, 0)


def test_the_storage_is_held_and_not_the_array(device):
    """A pool hands out what was freed. What was set as an input is not, whatever becomes of the array."""
    x, y = on_cupy(example())
    taken = {x.data.ptr, y.data.ptr}
    method = load("device_add")
    method.set_inputs([x, y])
    del x, y
    others = [cupy.asarray(numpy.full((2, 2), 100 + i, numpy.float32)) for i in range(4)]
    assert not taken & {other.data.ptr for other in others}
    check(device, method.execute(), example())
    # And is, once the inputs were replaced.
    method.set_inputs(others[:2])
    gc.collect()
    again = [cupy.asarray(numpy.zeros((2, 2), numpy.float32)) for _ in range(2)]
    assert {other.data.ptr for other in again} == taken


@pytest.mark.parametrize("which", [0, 1])
def test_a_storage_that_was_given_back_is_noticed(device, which):
    arrays = on_cupy(example())
    method = load("device_add")
    method.set_inputs(arrays)
    arrays[which].data.mem.free()
    other = cupy.asarray(numpy.zeros((2, 2), numpy.float32))
    assert other.data.ptr == arrays[which].data.ptr  # the array still names memory that is another's
    runs = device.runs
    with pytest.raises(MemoryMovedError, match="set the inputs again"):
        method.execute()
    assert device.runs == runs
    check(device, method.execute(on_cupy(example())), example())


def test_capsules_are_given_back_once_and_in_time(device):
    x, y = on_cupy(example())
    method = load("device_add")
    method.set_inputs([x, y])
    assert device.leases == 2
    method.set_inputs([y, x])
    assert device.leases == 2
    method.set_inputs(example().inputs)
    assert device.leases == 0
    method.set_inputs([x, y])
    with pytest.raises(ShapeError):
        method.set_inputs([x, numpy.zeros((3, 2), numpy.float32)])
    method.set_inputs(example().inputs)
    assert device.leases == 0
    method.set_inputs([x, y])
    method.close()
    assert device.leases == 0


def test_a_result_goes_straight_back_in(device):
    first, second = model_index.cases("device_add", "forward")
    method = load("device_add")
    (one,) = method.execute(inputs(first))
    (other,) = method.execute(inputs(second))
    device.reset()
    (total,) = method.execute([one, other])
    assert device.copies() == (0, 0)
    assert device.seen()[:2] == [address(one), address(other)]
    assert values(device, total).tobytes() == (first.outputs[0] + second.outputs[0]).tobytes()
    (again,) = load("device_add").execute([total, one])  # of one method into another
    assert device.copies() == (0, 0)
    assert numpy.array_equal(values(device, again), values(device, total) + values(device, one))


def test_a_result_is_known_whoever_lends_it(device):
    """CuPy's array over a result is of no pool, but the memory is a block of this library all the same."""
    method = load("device_add")
    (result,) = method.execute(inputs(example()))
    borrowed = cupy.from_dlpack(result)
    expected = values(device, result)
    del result
    device.reset()
    method.set_inputs([borrowed, borrowed])
    del borrowed
    (total,) = method.execute()
    assert device.copies() == (0, 0)
    assert numpy.array_equal(values(device, total), expected * 2)


def test_a_row_of_a_result(device):
    """An address within a block is the block's too."""
    x = numpy.arange(12, dtype=numpy.float32).reshape(4, 3)
    method = load("device_kinds", "dynamic")
    (result,) = method.execute([x, x])
    rows = cupy.from_dlpack(result)
    device.reset()
    (total,) = method.execute([rows[1:3], rows[2:4]])
    assert device.copies() == (0, 0)
    assert device.seen()[:2] == [address(result) + 12, address(result) + 24]
    assert numpy.array_equal(values(device, total), 2 * (x[1:3] + x[2:4]))


@pytest.mark.parametrize("lender", ["a result", "CuPy"])
def test_what_may_not_be_written_is_copied(device, lender):
    """A kernel may write to its input."""
    method = load("device_add")
    (result,) = method.execute(inputs(example()))
    array = result if lender == "a result" else cupy.asarray(values(device, result))
    at = address(array)

    class ReadOnly(cupy.ndarray if lender == "CuPy" else object):
        def __init__(self):
            if lender == "CuPy":
                super().__init__(array.shape, array.dtype, array.data)

        def __dlpack_device__(self):
            return (CUDA, 0)

        def __dlpack__(self, **asked):
            flat = numpy.empty((2, 2), numpy.float32)
            return device.lend(at, flat, device=(CUDA, 0), versioned=True, flags=device_plugin.READ_ONLY)

    device.reset()
    (total,) = method.execute([ReadOnly(), array])
    assert device.copies() == (1, 1)
    assert at not in device.seen()[:1]
    assert device.seen()[1] == at
    assert numpy.array_equal(values(device, total), example().outputs[0] * 2)


# ---- copied -----------------------------------------------------------------------------------------------


def foreign_cupy(device, array, index=0):
    """A CuPy array over memory that CuPy's pool knows nothing of."""
    block = device.foreign(array.nbytes, index)
    memory = cupy.cuda.memory.UnownedMemory(block.address, array.nbytes, block, index)
    return cupy._upload(array, cupy.cuda.MemoryPointer(memory, 0))


@pytest.mark.parametrize("make", [Producer, OldProducer, foreign_cupy])
def test_memory_of_an_unknown_allocator_is_copied(device, make):
    """To a block of this library, through the host, since an allocator has no other copy."""
    x, y = (make(device, values) for values in inputs(example()))
    method = load("device_add")
    method.set_inputs([x, y])
    assert device.copies() == (2, 2)
    assert device.counters().device_to_host_bytes == device.counters().host_to_device_bytes == 32
    assert device.leases == 0
    del x, y
    outputs = method.execute()
    assert device.copies() == (2, 2)
    check(device, outputs, example())
    # The blocks of the copies are used again.
    assert device.counters().allocations == 3
    x, y = (make(device, values) for values in inputs(example()))
    check(device, method.execute([x, y]), example())
    assert device.counters().allocations == 4


@pytest.mark.parametrize(("make", "versioned"), [(Producer, True), (OldProducer, False)])
def test_any_producer_is_asked_with_the_stream(device, make, versioned):
    x, y = (make(device, values) for values in inputs(example()))
    check(device, load("device_add").execute([x, y]), example())
    assert x.asked[-1]["stream"] == 1
    assert ("max_version" in x.asked[-1]) is versioned


def test_an_array_that_only_carries_cupys_name_is_copied(device):
    class ndarray(Producer):
        __module__ = "cupy"

        @property
        def data(self):
            raise AssertionError("not asked for")

    x, y = (ndarray(device, values) for values in inputs(example()))
    check(device, load("device_add").execute([x, y]), example())
    assert device.copies() == (2, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda values: values,
        lambda values: memoryview(values),
        lambda values: cupy.asnumpy(cupy.asarray(values)),
        lambda values: (arrays.array("f", values.ravel()), values.shape)[0],
    ],
    ids=["numpy", "memoryview", "asnumpy", "array.array"],
)
def test_a_host_input_is_copied_over(device, make):
    given = [make(values) for values in inputs(example())]
    if isinstance(given[0], arrays.array):
        given = [memoryview(each).cast("B").cast("f", (2, 2)) for each in given]
    method = load("device_add")
    method.set_inputs(given)
    assert device.copies() == (2, 0)
    assert device.counters().host_to_device_bytes == 32
    for each in given:
        numpy.asarray(each)[...] = 0  # the copy was made when it was set
    check(device, method.execute(), example())
    assert device.copies() == (2, 0)


@pytest.mark.parametrize("kind", [CUDA_HOST, CUDA_MANAGED])
def test_pinned_and_managed_memory_is_the_hosts(device, kind):
    x, y = (HostProducer(device, values, kind) for values in inputs(example()))
    check(device, load("device_add").execute([x, y]), example())
    assert device.copies() == (2, 0)
    # And so is what a method takes on the host, where it is used in place.
    mixed = case("device_mixed")
    x, y, z = inputs(mixed)
    check(device, load("device_mixed").execute([x, y, HostProducer(device, z, kind)]), mixed)
    # The host's memory has no stream.
    lent = HostProducer(device, x, kind)
    load("device_add").execute([lent, y])
    assert "stream" not in lent.asked[0]


def test_mixed_sources(device):
    x, y = inputs(example())
    method = load("device_add")
    for one in (x, cupy.asarray(x), Producer(device, x)):
        for other in (y, cupy.asarray(y), Producer(device, y), HostProducer(device, y, CUDA_HOST)):
            check(device, method.execute([one, other]), example())


def test_a_layout_other_than_the_default(device):
    laid = case("device_kinds", "channels_last")
    x, y = (cupy.asarray(values) for values in inputs(laid))
    method = load("device_kinds", "channels_last")
    check(device, method.execute([x, y]), laid)
    assert device.copies() == (0, 0)
    with pytest.raises(LayoutError, match="input 1"):
        method.execute([x, cupy.asarray(laid.inputs[1])])


# ---- what a backend needs ---------------------------------------------------------------------------------


def test_room_behind_an_array_is_the_pools(device):
    """CuPy's blocks are multiples of 512 bytes, of which 16 are the array's."""
    Runtime.get().backend_registry.set_input_needs(NAME, padding=496, alignment=512)
    check(device, load("device_add").execute(on_cupy(example())), example())
    assert device.copies() == (0, 0)


def test_an_array_without_the_room_is_copied(device):
    Runtime.get().backend_registry.set_input_needs(NAME, padding=497, alignment=1)
    method = load("device_add")
    check(device, method.execute(on_cupy(example())), example())
    assert device.copies() == (2, 2)
    # The copies have it: this reads that far behind each, within its block.
    for copy in device.seen()[:2]:
        device.read(copy, 16 + 497)


def test_an_array_at_another_address_is_copied(device):
    Runtime.get().backend_registry.set_input_needs(NAME, padding=0, alignment=512)
    x, y = inputs(example())
    both = cupy.asarray(numpy.concatenate([x, y]))
    check(device, load("device_add").execute([both[0:2], both[2:4]]), example())
    assert device.copies() == (1, 1)
    assert [copy % 512 for copy in device.seen()[:2]] == [0, 0]


@pytest.mark.parametrize(("padding", "copies"), [(64, (0, 0)), (65, (1, 1))])
def test_room_behind_a_result(device, padding, copies):
    (result,) = load("device_add").execute(inputs(example()))
    device.reset()
    Runtime.get().backend_registry.set_input_needs(NAME, padding=padding, alignment=1)
    with load("device_add") as method:
        method.execute([result, inputs(example())[1]])
    assert device.counters().copies == (copies[0] + 1, copies[1])


# ---- refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda device, values: cupy.asarray(values), Producer])
@pytest.mark.parametrize(("name", "which"), [("device_mixed", 2), ("device_add_copied", 0), ("add", 1)])
def test_a_device_input_of_a_host_method_is_refused(device, make, name, which):
    """Planned or not, for the exporter's device programs as for any."""
    example = case(name)
    given = inputs(example)
    given[which] = make(device, given[which])
    method = load(name)
    with pytest.raises(
        DeviceError, match=rf"input {which}\b.*on cuda:0.*takes it on cpu:0.*copy it to the host"
    ):
        method.execute(given)
    assert device.leases == 0
    assert device.copies() == (0, 0)
    check(device, method.execute(inputs(example)), example)


def test_a_result_on_a_device_is_refused_by_a_host_method(device):
    (result,) = load("device_add").execute(inputs(example()))
    with pytest.raises(DeviceError, match=r"input 0\b.*on cuda:0.*takes it on cpu:0.*to_host\(\)"):
        load("add").execute([result, example().inputs[1]])
    check(
        device, load("add").execute([result.to_host(), numpy.zeros((2, 2), numpy.float32)]), Same(example())
    )


class Same:
    def __init__(self, example):
        self.outputs = example.outputs
        self.outputs_info = [{**info, "device": "cpu"} for info in example.outputs_info]


@pytest.mark.parametrize(
    ("name", "index", "wanted"),
    [("device_add", 1, 0), ("device_add_index1", 0, 1), ("device_add_planned", 1, 0)],
)
@pytest.mark.parametrize("make", [Producer, None])
def test_another_device_of_the_kind_is_refused(device, name, index, wanted, make):
    x, y = inputs(case(name))
    with cupy.cuda.Device(index):
        given = cupy.asarray(y) if make is None else make(device, y, index)
    method = load(name)
    with pytest.raises(
        DeviceError, match=rf"input 1\b.*on cuda:{index}.*takes it on cuda:{wanted}.*copy it there"
    ):
        method.execute([x, given])
    assert device.copies() == (0, 0)
    check(device, method.execute([x, y]), case(name))


@pytest.mark.parametrize("number", [256, -256, 1 << 20, -1])
def test_a_number_that_no_device_has(device, number):
    """The runtime's numbers have 8 bits: 256 is not taken for 0."""
    x, y = inputs(example())
    wrong = Producer(device, x, stated=(CUDA, number))
    with pytest.raises(DeviceError, match=rf"input 0\b.*on cuda:{number}, .*takes it on cuda:0"):
        load("device_add").execute([wrong, y])


@pytest.mark.parametrize("kind", [0, 4, 7, 8, 10, 14, 99])
def test_a_device_that_cannot_be_named_is_refused_before_its_memory_is_asked_for(device, kind):
    x, y = inputs(example())
    wrong = Producer(device, x, said=(kind, 0))
    with pytest.raises(
        DeviceError, match=rf"input 0\b.*DLPack device type {kind}, which the runtime cannot name"
    ):
        load("device_add").execute([wrong, y])
    assert wrong.asked == []


@pytest.mark.parametrize(
    ("said", "stated", "match"),
    [
        ((CUDA, 0), (CUDA, 1), "says cuda:0, and its capsule cuda:1"),
        ((1, 0), (CUDA, 0), "says cpu:0, and its capsule cuda:0"),
        ((CUDA, 0), (1, 0), "says cuda:0, and its capsule cpu:0"),
        ((CUDA, 0), (8, 0), "DLPack device type 8"),
    ],
)
def test_a_capsule_of_another_device_than_was_said(device, said, stated, match):
    x, y = inputs(example())
    with pytest.raises(DeviceError, match=rf"input 0\b.*{match}"):
        load("device_add").execute([Producer(device, x, said=said, stated=stated), y])
    assert device.leases == 0
    assert device.copies() == (0, 0)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda x: x.astype(numpy.int64), DtypeError, "int64.*float32"),
        (lambda x: x.reshape(4), ShapeError, "rank 1"),
        (lambda x: x[:1], ShapeError, r"\(1, 2\)"),
        (lambda x: numpy.asfortranarray(x), LayoutError, "strides"),
    ],
)
@pytest.mark.parametrize("name", ["device_add", "device_add_planned"])
def test_what_is_wrong_on_the_host_is_wrong_on_a_device(device, make, error, match, name):
    x, y = inputs(example())
    method = load(name)
    for wrong in (cupy.asarray(make(y)), Producer(device, make(y)), make(y)):
        with pytest.raises(error, match=rf"input 1\b.*{match}"):
            method.execute([x, wrong])
        with pytest.raises(MethodStateError):
            method.execute()
        with pytest.raises(MethodStateError):
            method.get_outputs()
    check(device, method.execute([x, y]), case(name))


def test_an_array_without_memory(device):
    x, y = inputs(example())

    class Empty(Producer):
        def __dlpack__(self, **asked):
            return device.lend(0, self.array, device=(CUDA, 0))

    with pytest.raises(MemoryMissingError, match="input 0"):
        load("device_add").execute([Empty(device, x), y])


@pytest.mark.parametrize("name", ["device_add", "device_add_planned"])
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("host to device", "copying 16 bytes from cpu:0 to cuda:0"),
        ("device to host", "copying 16 bytes from cuda:0 to cuda:0"),
        ("allocation", "allocating 16 bytes on cuda:0"),
    ],
)
def test_an_allocator_that_fails(device, name, what, words):
    x, y = inputs(example())
    given = [Producer(device, x), y] if what == "device to host" else [x, y]
    method = load(name)
    device.fail_next(what)
    with pytest.raises(ExecuTorchError, match=words):
        method.execute(given)
    assert device.leases == 0
    check(device, method.execute([x, y]), case(name))


# ---- threads ----------------------------------------------------------------------------------------------


def test_threads(device):
    """One method for each thread, on both devices, with every way in."""
    rounds, failures = 30, []

    def work(name, index):
        try:
            example = case(name)
            method = load(name)
            x, y = inputs(example)
            for turn in range(rounds):
                given = [x, y]
                if turn % 3 == 1:
                    given = [Producer(device, x, index), y]
                elif turn % 3 == 2:
                    given = [Producer(device, x, index), Producer(device, y, index)]
                outputs = method.execute(given)
                check(device, outputs, example)
                (total,) = method.execute([outputs[0], outputs[0]])
                assert numpy.array_equal(values(device, total), example.outputs[0] * 2)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=("device_add_index1" if number % 2 else "device_add", number % 2))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_claim_of_a_capsule_is_not_a_promise_on_a_device(device):
    """On the host it is one. Here only the list counts."""
    x, y = inputs(example())
    producer = Producer(device, x)
    method = load("device_add")
    method.set_inputs([producer, y])
    device.write(producer.memory.address, numpy.zeros((2, 2), numpy.float32).tobytes())
    check(device, method.execute(), example())
    Claimed(producer).release()

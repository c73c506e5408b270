"""DLPack in and out: the claim, exactly one call of every deleter, and what a capsule states."""

from __future__ import annotations

import threading
import weakref

import numpy
import pytest
from dlpack_producer import (
    CODES,
    CPU,
    CUDA,
    CUDA_HOST,
    CUDA_MANAGED,
    IS_COPIED,
    METAL,
    READ_ONLY,
    OldProducer,
    Producer,
)
from support import (
    ITEMSIZE,
    add_inputs,
    address,
    address_of,
    case_of,
    check_outputs,
    collect,
    host_inputs,
    laid_out,
    load,
    resident,
    strides_of,
)

from et_cffi import ffi
from et_cffi._lib import capsule
from et_cffi.errors import (
    DeviceError,
    DtypeError,
    ExecuTorchError,
    InputCountError,
    InputKindError,
    LayoutError,
    MemoryMissingError,
    ShapeError,
)

VERSIONED = pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])
PLANNED = pytest.mark.parametrize("model", ["add", "add_unplanned"])


def producer(values=None, **stated):
    return Producer(add_inputs()[0] if values is None else values, **stated)


# ---- in: the deleter is called exactly once, whatever happens ---------------------------------------------


@VERSIONED
def test_a_planned_input_is_given_back_by_the_end_of_the_call(versioned):
    case = case_of("add")
    x, y = (producer(values, versioned=versioned) for values in case.inputs)
    method = load("add")
    check_outputs(method.execute([x, y]), case)
    assert (x.deleted, y.deleted) == (1, 1)
    check_outputs(method.execute([x, y]), case)
    del method
    collect()
    assert (x.deleted, y.deleted) == (2, 2)
    assert len(x.asked) == len(x.leases) == 2


@VERSIONED
@pytest.mark.parametrize("end", ["replaced", "closed", "dropped"])
def test_an_unplanned_input_is_held_until_it_is_replaced_or_the_method_gone(versioned, end):
    case = case_of("add_unplanned")
    x, y = (producer(values, versioned=versioned) for values in case.inputs)
    method = load("add_unplanned")
    method.set_inputs([x, y])
    collect()
    assert (x.deleted, y.deleted) == (0, 0)
    check_outputs(method.execute(), case)
    check_outputs(method.execute(), case)
    assert (x.deleted, y.deleted) == (0, 0)
    if end == "replaced":
        method.set_inputs(case.inputs)
    elif end == "closed":
        method.close()
    else:
        del method
    collect()
    assert (x.deleted, y.deleted) == (1, 1)


STATED_WRONG = {
    "no such code": ({"code": 77}, DtypeError, "code 77"),
    "no such width": ({"bits": 24}, DtypeError, "24 bits"),
    "lanes": ({"lanes": 4}, DtypeError, "4 lanes"),
    "another dtype": ({"code": 0, "bits": 32}, DtypeError, "int32"),
    "17 dimensions": ({"shape": [1] * 17, "strides": None}, ShapeError, "17 dimensions"),
    "a negative rank": ({"ndim": -1}, ShapeError, "-1 dimensions"),
    "no shape": ({"shape": None, "strides": None, "ndim": 2}, ShapeError, "no shape"),
    "a negative size": ({"shape": [2, -2]}, ShapeError, "shape"),
    "sizes that overflow": ({"shape": [1 << 62, 1 << 62]}, ShapeError, "shape"),
    "bytes that overflow": ({"shape": [1 << 31, 1 << 31]}, ShapeError, "shape"),
    "another rank": ({"shape": [4], "strides": [1]}, ShapeError, "(4,)"),
    "another shape": ({"shape": [1, 4], "strides": [4, 1]}, ShapeError, "(1, 4)"),
    "an empty one": ({"shape": [0, 2]}, ShapeError, "(0, 2)"),
    "beyond 32 bits": ({"shape": [0, 1 << 31]}, ShapeError, str(1 << 31)),
    "beyond 32 bits without strides": ({"shape": [0, 1 << 40], "strides": None}, ShapeError, str(1 << 40)),
    "transposed": ({"strides": [1, 2]}, LayoutError, "contiguous"),
    "strided": ({"strides": [4, 2]}, LayoutError, "contiguous"),
    "stride 0": ({"strides": [0, 1]}, LayoutError, "contiguous"),
    "backwards": ({"strides": [2, -1]}, LayoutError, "contiguous"),
    "no memory": ({"data": 0}, MemoryMissingError, "no memory"),
    "no memory and an offset": ({"data": 0, "byte_offset": 16}, MemoryMissingError, "no memory"),
    "on a device in the capsule": ({"device": (CUDA, 3)}, DeviceError, "cuda:3"),
    "an unnameable device in the capsule": ({"device": (METAL, 0)}, DeviceError, "device type 8"),
    "on a device": ({"device": (CUDA, 0), "claimed_device": (CUDA, 0)}, DeviceError, "cuda:0"),
}


@VERSIONED
@PLANNED
@pytest.mark.parametrize("wrong", STATED_WRONG)
@pytest.mark.parametrize("index", [0, 1])
def test_a_refused_input_is_given_back_once(wrong, model, versioned, index):
    stated, kind, named = STATED_WRONG[wrong]
    refused, other = producer(versioned=versioned, **stated), producer(versioned=versioned)
    inputs = [refused, other] if index == 0 else [other, refused]
    method = load(model)
    with pytest.raises(kind) as caught:
        method.execute(inputs)
    words = str(caught.value)
    assert words.startswith(f"input {index}")
    assert named in words
    assert len(refused.asked) == 1
    # The runtime was not given any of them.
    assert refused.deleted == 1
    assert other.deleted == len(other.leases)
    check_outputs(method.execute(host_inputs(case_of(model))), case_of(model))
    assert refused.deleted == 1


@VERSIONED
@PLANNED
@pytest.mark.parametrize("second", [None, 3, object(), "text", b"1234", numpy.zeros((2, 2))], ids=type)
def test_inputs_before_a_refused_one_are_given_back_once(model, versioned, second):
    first = producer(versioned=versioned)
    method = load(model)
    for tries in (1, 2, 3):
        with pytest.raises(ExecuTorchError, match="input 1"):
            method.execute([first, second])
        assert first.deleted == tries
    check_outputs(method.execute(case_of(model).inputs), case_of(model))
    assert first.deleted == 3


@PLANNED
def test_a_wrong_number_of_inputs_asks_for_no_memory(model):
    first = producer()
    with pytest.raises(InputCountError, match="takes 2 inputs, and 3 were given"):
        load(model).execute([first, first, first])
    assert first.asked == []


@pytest.mark.parametrize("version", [(0, 9), (2, 0), (77, 3)])
def test_another_major_version_is_refused_by_name(version):
    first = producer(versioned=True, version=version)
    with pytest.raises(ExecuTorchError, match=rf"^input 0.*version {version[0]}\b") as caught:
        load("add").execute([first, add_inputs()[1]])
    assert first.deleted == 1, f"not while {caught} is held"


def test_a_later_minor_version_is_taken():
    case = case_of("add")
    first = producer(versioned=True, version=(1, 9))
    check_outputs(load("add").execute([first, case.inputs[1]]), case)
    assert first.deleted == 1


@VERSIONED
def test_a_capsule_without_a_deleter(versioned):
    case = case_of("add_unplanned")
    first = producer(versioned=versioned, has_deleter=False)
    method = load("add_unplanned")
    check_outputs(method.execute([first, case.inputs[1]]), case)
    method.close()
    assert first.deleted == 0


class Capsules:
    """Hands over the same things again and again."""

    def __init__(self, *things):
        self.things = list(things)

    def __dlpack__(self, **keywords):
        return self.things.pop(0)


@VERSIONED
def test_a_consumed_capsule_is_refused(versioned):
    first = producer(versioned=versioned)
    made = first.capsule()
    method = load("add")
    with pytest.raises(InputKindError, match=r"input 1.*already consumed"):
        method.execute([Capsules(made), Capsules(made)])
    assert first.deleted == 1
    del made
    collect()
    assert first.deleted == 1


@pytest.mark.parametrize(
    "thing", [None, 7, "dltensor", b"dltensor", object(), numpy.zeros((2, 2), "f4")], ids=type
)
def test_what_is_no_capsule_is_refused(thing):
    with pytest.raises(InputKindError, match=r"input 0.*DLPack capsule"):
        load("add").execute([Capsules(thing), add_inputs()[1]])


@pytest.mark.cpython
def test_a_capsule_of_something_else_is_refused():
    from datetime import datetime_CAPI

    with pytest.raises(InputKindError, match=r"input 0.*datetime\.datetime_CAPI"):
        load("add").execute([Capsules(datetime_CAPI), add_inputs()[1]])


class Failing:
    """Raises in the middle of the protocol."""

    def __init__(self, error, where):
        self.error, self.where, self.calls = error, where, []

    def __dlpack_device__(self):
        self.calls.append("__dlpack_device__")
        if self.where == "__dlpack_device__":
            raise self.error
        return (CPU, 0)

    def __dlpack__(self, **keywords):
        self.calls.append("__dlpack__")
        raise self.error


@PLANNED
@pytest.mark.parametrize("where", ["__dlpack_device__", "__dlpack__"])
@pytest.mark.parametrize(
    "error", [RuntimeError("mine"), BufferError("mine"), KeyboardInterrupt("mine")], ids=repr
)
def test_an_exception_of_the_producer_is_the_callers(model, where, error):
    first, failing = producer(), Failing(error, where)
    method = load(model)
    with pytest.raises(type(error)) as caught:
        method.execute([first, failing])
    assert caught.value is error
    assert failing.calls[-1] == where
    assert first.deleted == 1
    check_outputs(method.execute(case_of(model).inputs), case_of(model))


def test_a_type_error_within_a_producer_is_the_callers():
    error = TypeError("mine")
    with pytest.raises(TypeError) as caught:
        load("add").execute([Failing(error, "__dlpack__"), add_inputs()[1]])
    assert caught.value is error


@pytest.mark.parametrize("kind", [METAL, 4, 7, 9, 10, 12, 14, 15, 16, 99, -1, 0])
def test_a_device_that_cannot_be_named_is_refused_before_any_memory_is_asked_for(kind):
    first = producer(claimed_device=(kind, 0))
    with pytest.raises(DeviceError, match=rf"input 0.*device type {kind}\b.*copy it to the host"):
        load("add").execute([first, add_inputs()[1]])
    assert first.asked == []


@pytest.mark.parametrize("kind", [CPU, CUDA_HOST, CUDA_MANAGED])
def test_memory_that_the_host_reads(kind):
    case = case_of("add")
    first = producer(device=(kind, 0), claimed_device=(kind, 0))
    check_outputs(load("add").execute([first, case.inputs[1]]), case)
    assert first.deleted == 1


def test_a_producer_that_does_not_say_where_it_is():
    case = case_of("add")
    first = producer()
    check_outputs(load("add").execute([Capsules(first.capsule()), case.inputs[1]]), case)
    assert first.deleted == 1


def test_an_attribute_of_the_object_is_no_protocol():
    """Special methods are looked up on the type."""

    class Plain:
        pass

    thing = Plain()
    thing.__dlpack__ = producer().__dlpack__
    with pytest.raises(InputKindError, match=r"input 0.*Plain"):
        load("add").execute([thing, add_inputs()[1]])


# ---- in: what is asked for, and what is read --------------------------------------------------------------


def test_a_versioned_capsule_is_asked_for():
    first = producer()
    load("add").execute([first, add_inputs()[1]])
    assert len(first.asked) == 1
    assert first.asked[0]["max_version"][0] == 1
    assert (first.asked[0]["stream"], first.asked[0]["dl_device"], first.asked[0]["copy"]) == (
        None,
        None,
        None,
    )


def test_a_producer_that_takes_no_keyword():
    case = case_of("add")
    first = OldProducer(case.inputs[0])
    check_outputs(load("add").execute([first, case.inputs[1]]), case)
    assert first.asked == [{"stream": None}]
    assert first.deleted == 1


@PLANNED
@pytest.mark.parametrize("offset", [1, 4, 16, 4096, -8])
def test_a_byte_offset(model, offset):
    case = case_of(model)
    values = case.inputs[0]
    first = Producer(values, byte_offset=offset % (1 << 64), data=values.ctypes.data - offset)
    check_outputs(load(model).execute([first, case.inputs[1]]), case)


@PLANNED
def test_misaligned_memory(model):
    case = case_of(model)
    room = bytearray(case.inputs[0].nbytes + 1)
    odd = numpy.frombuffer(room, "f4", offset=1, count=4).reshape(2, 2)
    odd[...] = case.inputs[0]
    check_outputs(load(model).execute([producer(odd), case.inputs[1]]), case)


@pytest.mark.parametrize("name", ["rank0", "size_one", "rank5", "rank16", "empty"])
@pytest.mark.parametrize("strides", ["stated", "left out"])
@VERSIONED
def test_ranks_from_none_to_the_limit(name, strides, versioned):
    case = case_of(name)
    stated = {"strides": None} if strides == "left out" else {}
    source = Producer(case.inputs[0], versioned=versioned, **stated)
    method = load(name)
    check_outputs(method.execute([source]), case)
    method.close()
    assert source.deleted == 1


@VERSIONED
def test_no_elements_need_no_memory(versioned):
    case = case_of("empty")
    source = Producer(case.inputs[0], versioned=versioned, data=0)
    check_outputs(load("empty").execute([source]), case)


@pytest.mark.parametrize("strides", [[0, 0], [-5, 1 << 62], [1, 1]])
def test_no_elements_have_no_layout(strides):
    case = case_of("empty")
    check_outputs(load("empty").execute([Producer(case.inputs[0], strides=strides)]), case)


@pytest.mark.parametrize("strides", [(0, 0, 1), (77, -5, 1), (1 << 40, 1 << 50, 1)])
def test_a_dimension_of_size_one_has_no_layout(strides):
    case = case_of("size_one")
    check_outputs(load("size_one").execute([Producer(case.inputs[0], strides=strides)]), case)


@pytest.mark.parametrize(
    "name", ["conv_channels_last", "conv_channels_last_unplanned", "conv_dynamic_channels_last"]
)
def test_layouts(name):
    case = case_of(name)
    values = case.inputs[0]
    method = load(name)
    check_outputs(method.execute([Producer(laid_out(values, (0, 2, 3, 1)))]), case)
    for wrong in (Producer(values), Producer(values, strides=None)):
        with pytest.raises(LayoutError, match=r"input 0.*dim order \(0, 2, 3, 1\)"):
            method.execute([wrong])
        assert wrong.deleted == 1


@VERSIONED
def test_writable_memory_is_read_where_it_is(versioned):
    """What the caller writes between the two steps is what the run reads."""
    first, second = case_of("add_unplanned", number=0), case_of("add_unplanned", number=1)
    x, y = (Producer(values, versioned=versioned) for values in first.inputs)
    method = load("add_unplanned")
    method.set_inputs([x, y])
    x.array[...], y.array[...] = second.inputs
    check_outputs(method.execute(), second)


@pytest.mark.parametrize("flags", [READ_ONLY, READ_ONLY | 4])
def test_read_only_memory_is_copied_and_given_back(flags):
    case = case_of("add_unplanned")
    x, y = (Producer(values, versioned=True, flags=flags) for values in case.inputs)
    method = load("add_unplanned")
    method.set_inputs([x, y])
    assert (x.deleted, y.deleted) == (1, 1)
    x.array[...] = y.array[...] = 0
    check_outputs(method.execute(), case)


@pytest.mark.parametrize("flags", [0, READ_ONLY])
def test_a_method_that_writes_its_input(flags):
    case = case_of("writes_input_unplanned")
    x, y = case.inputs
    check_outputs(load("writes_input_unplanned").execute([Producer(x, versioned=True, flags=flags), y]), case)
    after = case.inputs[0] if flags else case.input_after(0)
    assert numpy.array_equal(x, after)
    assert not numpy.array_equal(case.inputs[0], case.input_after(0))


def test_a_producer_that_is_a_buffer_too_is_read_as_a_buffer():
    class Both(numpy.ndarray):
        def __dlpack__(self, **keywords):
            raise AssertionError("asked for a capsule")

    case = case_of("add")
    check_outputs(load("add").execute([case.inputs[0].view(Both), case.inputs[1]]), case)


# ---- out --------------------------------------------------------------------------------------------------


def result(name="add"):
    case = case_of(name)
    return load(name).execute(host_inputs(case))[0], case


class Claimed:
    """A capsule's managed tensor, claimed as a consumer does."""

    def __init__(self, made, versioned):
        at, self.versioned = capsule.claim(made)
        assert self.versioned is versioned
        self.managed = ffi.cast("DLManagedTensorVersioned *" if versioned else "DLManagedTensor *", at)
        self.tensor = self.managed.dl_tensor

    def release(self):
        self.managed.deleter(self.managed)

    def array(self):
        tensor = self.tensor
        dtype = {(code, bits): name for name, (code, bits) in CODES.items()}[
            tensor.dtype.code, tensor.dtype.bits
        ]
        shape = tuple(tensor.shape[0 : tensor.ndim])
        memory = numpy.frombuffer(
            ffi.buffer(tensor.data, int(numpy.prod(shape)) * ITEMSIZE[dtype]), numpy.uint8
        )
        return memory.view(f"u{ITEMSIZE[dtype]}"), dtype, shape


@pytest.mark.parametrize(
    ("max_version", "versioned"),
    [
        (None, False),
        ((0, 8), False),
        ((0, 0), False),
        ((1, 0), True),
        ((1, 1), True),
        ((1, 5), True),
        ((2, 0), True),
    ],
)
def test_the_consumers_version_decides_the_capsule(max_version, versioned):
    buffer, case = result()
    keywords = {} if max_version is None else {"max_version": max_version}
    made = buffer.__dlpack__(**keywords)
    assert f'"{"dltensor_versioned" if versioned else "dltensor"}"' in repr(made)
    claimed = Claimed(made, versioned)
    if versioned:
        assert claimed.managed.version.major == 1
        assert claimed.managed.flags == 0
    memory, dtype, shape = claimed.array()
    assert (dtype, shape) == ("float32", (2, 2))
    assert memory.tobytes() == case.outputs[0].tobytes()
    claimed.release()


@VERSIONED
@pytest.mark.parametrize("dtype", [name for name in CODES if name != "bool"])
def test_every_dtype_that_dlpack_names(dtype, versioned):
    buffer, case = result(f"dtype_{dtype}")
    claimed = Claimed(buffer.__dlpack__(max_version=(1, 0) if versioned else None), versioned)
    tensor = claimed.tensor
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (*CODES[dtype], 1)
    assert (tensor.device.device_type, tensor.device.device_id) == (CPU, 0)
    assert tensor.byte_offset == 0
    assert tuple(tensor.shape[0 : tensor.ndim]) == (2, 3)
    assert tuple(tensor.strides[0 : tensor.ndim]) == (3, 1)
    data = bytes(ffi.buffer(tensor.data, 6 * ITEMSIZE[dtype]))
    assert data == case.outputs[0].tobytes()
    claimed.release()


@pytest.mark.parametrize("dtype", ["qint8", "quint8", "qint32", "quint4x2", "quint2x4", "bits16"])
def test_a_dtype_that_dlpack_does_not_name_is_refused(dtype):
    buffer, _ = result(f"dtype_{dtype}")
    for max_version in (None, (1, 0)):
        with pytest.raises(DtypeError, match=f"DLPack has no name for the dtype {dtype}"):
            buffer.__dlpack__(max_version=max_version)


@VERSIONED
def test_real_strides(versioned):
    buffer, case = result("conv_channels_last")
    claimed = Claimed(buffer.__dlpack__(max_version=(1, 0) if versioned else None), versioned)
    shape = case.outputs[0].shape
    assert tuple(claimed.tensor.strides[0:4]) == strides_of(shape, (0, 2, 3, 1), 1)
    claimed.release()


@VERSIONED
@pytest.mark.parametrize("copy", [None, False, True])
def test_copy(versioned, copy):
    buffer, case = result()
    max_version = (1, 0) if versioned else None
    claimed = Claimed(buffer.__dlpack__(max_version=max_version, copy=copy), versioned)
    assert (address_of(claimed.tensor.data) == address(buffer)) is (not copy)
    if versioned:
        assert claimed.managed.flags == (IS_COPIED if copy else 0)
    memory, _, _ = claimed.array()
    assert memory.tobytes() == case.outputs[0].tobytes()
    numpy.asarray(buffer)[...] = 0
    assert (memory.tobytes() == case.outputs[0].tobytes()) is bool(copy)
    claimed.release()


def test_device_and_stream():
    buffer, _ = result()
    assert buffer.__dlpack_device__() == (CPU, 0)
    Claimed(buffer.__dlpack__(dl_device=(CPU, 0), stream=None), False).release()
    with pytest.raises(BufferError, match=r"cpu:0.*\(2, 0\)"):
        buffer.__dlpack__(dl_device=(CUDA, 0))
    for stream in (1, -1, 0):
        with pytest.raises(BufferError, match="stream"):
            buffer.__dlpack__(stream=stream)


def test_arguments_are_keywords():
    buffer, _ = result()
    with pytest.raises(TypeError):
        buffer.__dlpack__(None)


@pytest.mark.parametrize(
    "name",
    [
        "add",
        "conv_channels_last",
        "dtype_int8",
        "dtype_uint16",
        "dtype_float16",
        "dtype_complex64",
        "rank0",
        "empty",
    ],
)
def test_numpy_reads_the_same_memory(name):
    buffer, case = result(name)
    array = numpy.from_dlpack(buffer)
    assert array.dtype == case.outputs[0].dtype
    assert array.shape == case.outputs[0].shape
    if array.size:
        assert address(array) == address(buffer)
        assert array.strides == buffer.strides
    numpy.testing.assert_allclose(array, case.outputs[0], rtol=case.rtol, atol=case.atol)


def test_bools_reach_numpy():
    buffer, case = result("dtype_bool")
    array = numpy.from_dlpack(buffer)
    assert array.dtype == bool
    assert numpy.array_equal(array, case.outputs[0])


def test_bfloat16_does_not_survive_the_trip_into_numpy():
    buffer, _ = result("dtype_bfloat16")
    with pytest.raises((RuntimeError, BufferError)):
        numpy.from_dlpack(buffer)


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize("name", ["add", "add_unplanned"])
def test_the_memory_outlives_everything_else(name, lent):
    case = case_of(name)
    method = load(name)
    buffer = method.execute(host_inputs(case), clone_outputs=not lent)[0]
    arrays = [numpy.from_dlpack(buffer) for _ in range(3)]
    gone = weakref.ref(buffer)
    method.close()
    del buffer, method
    collect()
    assert gone() is None
    churn = [numpy.full((2, 2), number, "f4") for number in range(1000)]
    for array in arrays:
        assert array.tobytes() == case.outputs[0].tobytes()
    assert len(churn) == 1000


def test_a_deleter_runs_on_any_thread():
    buffer, case = result()
    claims = [Claimed(buffer.__dlpack__(max_version=(1, 0)), True) for _ in range(20)]
    del buffer
    collect()
    threads = [threading.Thread(target=each.release) for each in claims[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory, _, _ = claims[0].array()
    assert memory.tobytes() == case.outputs[0].tobytes()
    claims[0].release()


@pytest.mark.linux
@pytest.mark.parametrize("consumed", [False, True])
@pytest.mark.parametrize("keywords", [{}, {"max_version": (1, 0)}, {"copy": True}], ids=str)
def test_capsules_free_what_they_hold(consumed, keywords):
    """A capsule that nobody consumes gives its memory back, and so does one that is."""
    values = numpy.arange(15000, dtype="f4").reshape(5000, 3)
    method = load("big_bound")

    def turn():
        made = method.execute([values])[0].__dlpack__(**keywords)
        if consumed:
            Claimed(made, "max_version" in keywords).release()

    for _ in range(50):
        turn()
    collect()
    before = resident()
    for number in range(1500):
        turn()
        if number % 100 == 0:
            collect()
    collect()
    assert resident() - before < 30 << 20  # of 90 MB, and twice that for copies


@VERSIONED
def test_a_result_goes_back_in_as_dlpack(versioned):
    """By its capsule, not as the TensorBuffer that it is."""
    case = case_of("swap")
    back = load("swap").execute(case.inputs)

    class Hidden:
        def __init__(self, buffer):
            self.buffer = buffer

        def __dlpack__(self, **keywords):
            return self.buffer.__dlpack__(**(keywords if versioned else {}))

    case = case_of("add_unplanned")
    method = load("add_unplanned")
    method.set_inputs([Hidden(back[1]), Hidden(back[0])])
    del back
    collect()
    check_outputs(method.execute(), case)


@pytest.mark.parametrize("said", [(), (1,), 5, "ab", (1, "x"), None])
@pytest.mark.parametrize("set_them", ["execute", "set_inputs"])
def test_a_device_that_is_no_device(said, set_them):
    class Odd(Producer):
        def __dlpack_device__(self):
            return said

    with pytest.raises(InputKindError, match=r"input 0.*__dlpack_device__ answers .*no pair"):
        getattr(load("add"), set_them)([Odd(numpy.zeros((2, 2), numpy.float32)), numpy.zeros((2, 2), "f")])

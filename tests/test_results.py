"""What comes back where there is no torch: TensorBuffer's contract, and values that are no tensors."""

from __future__ import annotations

import copy
import operator
import pickle
import sys
import weakref

import model_index
import numpy
import pytest
from support import (
    FORMAT,
    ITEMSIZE,
    add_inputs,
    address,
    case_of,
    check_outputs,
    child,
    collect,
    host_inputs,
    load,
    memory_of,
    presented,
    runnable,
    strides_of,
)

import et_cffi
from et_cffi import Device, DeviceType, ScalarType, TensorBuffer


def run(name, number=0, method="forward", **keywords):
    case = case_of(name, method, number)
    return load(name, method).execute(host_inputs(case), **keywords), case


def first(name, **keywords) -> TensorBuffer:
    return run(name, **keywords)[0][0]


DTYPES = sorted(
    name[len("dtype_") :] for name in runnable() if name.startswith("dtype_") and name[-7:] != "planned"
)


# ---- the description --------------------------------------------------------------------------------------


def test_what_it_says_of_itself():
    buffer = first("conv_channels_last")
    assert type(buffer) is TensorBuffer
    assert type(buffer.shape) is type(buffer.strides) is tuple
    assert buffer.shape == (2, 2, 2, 3)
    assert buffer.strides == (48, 4, 24, 8)
    assert buffer.dtype is ScalarType.Float
    assert buffer.ndim == 4
    assert buffer.itemsize == 4
    assert buffer.nbytes == 96
    assert buffer.device == Device(DeviceType.CPU, 0)
    assert repr(buffer) == str(buffer) == "TensorBuffer(shape=(2, 2, 2, 3), dtype=float32)"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rank0", "TensorBuffer(shape=(), dtype=float32)"),
        ("twenty", "TensorBuffer(shape=(2,), dtype=float32)"),
        ("empty", "TensorBuffer(shape=(0, 3), dtype=float32)"),
        ("dtype_bfloat16", "TensorBuffer(shape=(2, 3), dtype=bfloat16)"),
        ("dtype_quint4x2", "TensorBuffer(shape=(2, 3), dtype=quint4x2)"),
    ],
)
def test_repr(name, words):
    assert repr(first(name)) == words


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_keeps_its_shape(dtype):
    """bfloat16 comes as uint16 of the same shape, not as a flat run of bytes."""
    (buffer,), case = run(f"dtype_{dtype}")
    interface = buffer.__array_interface__
    kind = numpy.dtype(presented(dtype))
    assert interface == {
        "version": 3,
        "shape": (2, 3),
        "typestr": kind.str,
        "data": (interface["data"][0], False),
        "strides": (3 * kind.itemsize, kind.itemsize),
    }
    array = numpy.asarray(buffer)
    assert array.dtype == kind
    assert array.shape == (2, 3)
    assert array.tobytes() == case.outputs[0].tobytes() == buffer.tobytes()
    assert str(buffer.dtype) == dtype
    assert buffer.itemsize == kind.itemsize == ITEMSIZE[dtype]


def test_all_dtypes_were_tried():
    assert len(DTYPES) >= 26
    assert {"bfloat16", "float8_e5m2", "complex32", "bits16"} <= set(DTYPES) - set(FORMAT)


@pytest.mark.cpython
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_the_bits_can_be_seen_as_what_they_mean(dtype):
    import ml_dtypes

    (buffer,), case = run(f"dtype_{dtype}")
    kind = getattr(ml_dtypes, dtype)
    values, expected = numpy.asarray(buffer).view(kind), case.outputs[0].view(kind)
    assert numpy.array_equal(values.astype(numpy.float64), expected.astype(numpy.float64))
    assert abs(float(values[0, 0])) in {1.5, 3.0}


# ---- the memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize(
    "name", ["add", "add_unplanned", "conv_channels_last", "dtype_bfloat16", "mlp_dynamic"]
)
def test_asarray_copies_nothing(name, lent):
    buffer = first(name, clone_outputs=not lent)
    one, other = numpy.asarray(buffer), numpy.asarray(buffer)
    assert address(one) == address(other) == buffer.__array_interface__["data"][0]
    assert one.flags.writeable
    assert not one.flags.owndata
    one.flat[0] = 77
    assert other.flat[0] == 77
    assert numpy.asarray(buffer).flat[0] == 77
    assert numpy.array(buffer).flat[0] == 77
    assert address(numpy.array(buffer)) != address(buffer)


@pytest.mark.parametrize("name", ["mlp_dynamic", "mlp_dynamic_unplanned", "mlp_dynamic_xnnpack", "big_bound"])
def test_only_what_the_result_occupies_is_handed_over(name):
    """The memory is as large as the largest result, and the file's bound may be a thousand times that."""
    method = load(name)
    for case in model_index.cases(name, "forward"):
        for lent in (False, True):
            (buffer,) = method.execute(case.inputs, clone_outputs=not lent)
            rows, columns = case.outputs[0].shape
            assert buffer.shape == (rows, columns)
            assert buffer.nbytes == rows * columns * 4
            assert buffer.strides == (columns * 4, 4)
            assert len(buffer.tobytes()) == numpy.asarray(buffer).nbytes == buffer.nbytes


def test_a_size_that_depends_on_the_numbers():
    sizes = []
    for number in range(3):
        (buffer,), case = run("masked_select", number)
        check_outputs([buffer], case)
        assert buffer.nbytes == 4 * buffer.shape[0]
        sizes.append(buffer.shape[0])
    assert len(set(sizes)) == 3
    assert 0 in sizes


@pytest.mark.parametrize("name", ["conv_channels_last", "layouts_mixed", "channel1_channels_last", "rank16"])
def test_bytes_are_in_the_order_of_the_shape(name):
    outputs, case = run(name)
    for output, expected, info in zip(outputs, case.outputs, case.outputs_info):
        assert len(output.tobytes()) == output.nbytes
        values = numpy.frombuffer(output.tobytes(), numpy.float32).reshape(output.shape)
        numpy.testing.assert_allclose(values, expected, rtol=case.rtol, atol=case.atol)
        if info["layout"] == "channels_last":
            assert output.tobytes() != memory_of(values, info["dim_order"])


def test_bytes_are_a_copy():
    buffer = first("add")
    data = buffer.tobytes()
    assert type(data) is bytes
    numpy.asarray(buffer)[...] = 0
    assert data != buffer.tobytes()


@pytest.mark.parametrize(
    "name", ["add", "conv_channels_last", "dtype_bfloat16", "dtype_bool", "rank0", "empty"]
)
@pytest.mark.cpython
def test_the_buffer_protocol(name):
    outputs, case = run(name)
    buffer, info = outputs[0], case.outputs_info[0]
    view = memoryview(buffer)
    format = (
        {1: "B", 2: "H"}[ITEMSIZE[info["dtype"]]] if info["dtype"] not in FORMAT else FORMAT[info["dtype"]]
    )
    assert (view.format, view.shape, view.itemsize) == (format, buffer.shape, buffer.itemsize)
    assert view.strides == buffer.strides == strides_of(buffer.shape, info["dim_order"], buffer.itemsize)
    assert view.nbytes == buffer.nbytes
    assert not view.readonly
    assert view.obj is buffer
    assert view.tobytes() == buffer.tobytes()
    if view.nbytes:
        assert address(numpy.asarray(view)) == address(buffer)


@pytest.mark.cpython
def test_a_view_keeps_the_memory():
    (buffer,), case = run("add")
    view = memoryview(buffer)
    gone = weakref.ref(buffer)
    del buffer
    collect()
    assert gone() is view.obj
    assert view.tobytes() == case.outputs[0].tobytes()
    view.release()
    collect()
    assert gone() is None


@pytest.mark.cpython
def test_consumers_that_want_a_flat_run_of_bytes():
    (buffer,), case = run("add")
    assert bytes(buffer) == bytearray(buffer) == case.outputs[0].tobytes()
    channels_last = first("conv_channels_last")
    with pytest.raises(BufferError):
        hash_of_flat(channels_last)
    assert hash_of_flat(buffer) == hash_of_flat(case.outputs[0])


def hash_of_flat(buffer) -> str:
    import hashlib

    return hashlib.md5(buffer, usedforsecurity=False).hexdigest()


@pytest.mark.cpython
def test_dunder_buffer():
    """Python can call it by name from 3.12 on."""
    buffer = first("add")
    if sys.version_info >= (3, 12):
        with buffer.__buffer__(0x11C) as view:
            assert view.tobytes() == buffer.tobytes()
    else:
        assert not hasattr(buffer, "__buffer__")


def test_the_memory_lives_as_long_as_anything_made_of_it():
    (buffer,), case = run("add_unplanned")
    array = numpy.asarray(buffer)[1:]
    gone = weakref.ref(buffer)
    del buffer
    collect()
    churn = [numpy.full((2, 2), number, "f4") for number in range(500)]
    assert array.tobytes() == case.outputs[0][1:].tobytes()
    assert len(churn) == 500
    del array
    collect()
    assert gone() is None


def test_memory_is_aligned_for_any_kernel():
    for name in ("add", "add_unplanned", "dtype_uint8", "mlp_dynamic"):
        assert address(first(name)) % 64 == 0


# ---- what it is not ---------------------------------------------------------------------------------------


ARITHMETIC = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.matmul, operator.and_, operator.or_, operator.xor, operator.lshift, operator.lt, operator.le,
]  # fmt: skip


@pytest.mark.parametrize("operation", ARITHMETIC, ids=lambda operation: operation.__name__)
def test_no_arithmetic(operation):
    buffer = first("add")
    for pair in ((buffer, 1), (1, buffer), (buffer, buffer)):
        with pytest.raises(TypeError):
            operation(*pair)


@pytest.mark.parametrize(
    "call",
    [
        len, iter, list, int, float, operator.neg, operator.index, lambda b: b[0], lambda b: 1 in b, reversed,
        next, lambda b: b(), operator.invert, abs, round, complex,
    ],
)  # fmt: skip
def test_no_sequence_and_no_number(call):
    with pytest.raises((TypeError, ValueError)):
        call(first("add"))


@pytest.mark.parametrize(
    "name", ["numpy", "tolist", "item", "sum", "softmax", "reshape", "T", "data", "size", "cpu"]
)
def test_no_methods_of_an_array(name):
    with pytest.raises(AttributeError):
        getattr(first("add"), name)


def test_equality_is_identity():
    (one,), _ = run("add")
    (other,), _ = run("add")
    assert one == one
    assert one != other
    assert one.__eq__(other) is NotImplemented
    assert len({one, other, one}) == 2


@pytest.mark.parametrize("attribute", ["shape", "dtype", "strides", "other"])
def test_nothing_can_be_set(attribute):
    with pytest.raises(AttributeError):
        setattr(first("add"), attribute, 1)


@pytest.mark.parametrize(
    "make",
    [
        TensorBuffer,
        lambda: TensorBuffer(None),
        lambda: first("add").__class__(),
        lambda: copy.copy(first("add")),
        lambda: copy.deepcopy(first("add")),
        lambda: pickle.dumps(first("add")),
        lambda: type("Mine", (TensorBuffer,), {})(),
    ],
)
def test_it_is_made_by_methods_only(make):
    with pytest.raises(TypeError):
        make()


@pytest.mark.parametrize("new", ["TensorBuffer.__new__(TensorBuffer)", "object.__new__(TensorBuffer)"])
def test_a_half_made_one_is_no_crash(new):
    """In a process of its own: it has no memory to speak of."""
    done = child(
        "from et_cffi import TensorBuffer\n"
        "import numpy\n"
        "try:\n"
        f"    buffer = {new}\n"
        "except TypeError:\n"
        "    print('refused'); raise SystemExit\n"
        "for ask in (repr, memoryview, lambda b: b.shape, lambda b: b.__dlpack__(), numpy.asarray):\n"
        "    try:\n"
        "        ask(buffer)\n"
        "    except (AttributeError, TypeError, ValueError):\n"
        "        pass\n"
        "print('refused')\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "refused"


# ---- handed over once, and never written through ----------------------------------------------------------


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize(
    "name", ["add", "add_unplanned", "same_twice", "identity_first_unplanned", "constant_output"]
)
@pytest.mark.parametrize("steps", [1, 2])
def test_read_twice_the_same_objects(name, lent, steps):
    method = load(name)
    case = case_of(name)
    if steps == 1:
        outputs = method.execute(case.inputs, clone_outputs=not lent)
    else:
        method.set_inputs(case.inputs)
        outputs = method.execute(clone_outputs=not lent)
    objects = list(outputs)
    for _ in range(3):
        again = method.get_outputs(clone_outputs=not lent)
        assert [id(each) for each in again] == [id(each) for each in objects]
        # The lists are the caller's.
        outputs.clear()
        again.clear()
    check_outputs(objects, case)


@pytest.mark.parametrize(
    "name", ["add_unplanned", "mlp_dynamic_unplanned", "same_twice_unplanned", "state_unplanned"]
)
def test_an_unplanned_result_is_not_written_by_a_later_run(name):
    cases = model_index.cases(name, "forward")
    for lent in (False, True):
        method = load(name)
        outputs = [method.execute(case.inputs, clone_outputs=not lent) for case in cases]
        for each, case in zip(outputs, cases):
            check_outputs(each, case)


@pytest.mark.parametrize(
    "name", ["add", "conv", "identity_first", "constant_output", "view_of_output", "state"]
)
def test_a_cloned_result_is_not_written_by_a_later_run(name):
    method = load(name)
    cases = model_index.cases(name, "forward")
    outputs = [method.execute(case.inputs) for case in cases]
    for each, case in zip(outputs, cases):
        check_outputs(each, case)


def test_a_lent_result_is_the_methods_own_memory():
    method = load("add")
    one, other = case_of("add", number=0), case_of("add", number=1)
    (lent,) = method.execute(one.inputs, clone_outputs=False)
    check_outputs([lent], one)
    (cloned,) = method.get_outputs()
    assert address(cloned) != address(lent)
    (again,) = method.execute(other.inputs, clone_outputs=False)
    assert address(again) == address(lent)
    check_outputs([lent], other)
    check_outputs([cloned], one)


@pytest.mark.parametrize("name", ["same_twice", "same_twice_unplanned"])
def test_one_value_returned_twice(name):
    for number in range(2):
        outputs, case = run(name, number)
        check_outputs(outputs, case)


def test_one_value_returned_twice_is_handed_over_without_a_copy():
    """In the one buffer that the run wrote it to."""
    outputs, _ = run("same_twice_unplanned")
    assert address(outputs[0]) == address(outputs[1])


@pytest.mark.parametrize(
    "name",
    [
        "identity_first", "identity_first_unplanned", "identity_last", "identity_last_unplanned",
        "identity_only", "identity_only_unplanned", "swap", "swap_unplanned", "view_of_input",
        "view_of_input_unplanned",
        "writes_input", "writes_input_unplanned",
    ],
)  # fmt: skip
def test_an_output_that_is_an_input(name):
    """Giving it a buffer of its own would move the input there too."""
    method = load(name)
    inputs = [case.inputs for case in model_index.cases(name, "forward")]
    results = []
    for case, given in zip(model_index.cases(name, "forward"), inputs):
        before = [array.copy() for array in given]
        results.append((method.execute(given), case))
        for index, (array, untouched) in enumerate(zip(given, before)):
            after = case.input_after(index)
            assert array.tobytes() == (untouched if after is None else after).tobytes()
    for array in (array for given in inputs for array in given):
        array[...] = 0  # a result is no view of the caller's memory
    for outputs, case in results:
        check_outputs(outputs, case)


@pytest.mark.parametrize("name", ["constant_output", "constant_output_unplanned"])
@pytest.mark.parametrize("lent", [False, True])
def test_a_constant_cannot_be_written_through_a_result(name, lent):
    method = load(name)
    case = case_of(name)
    outputs = method.execute(case.inputs, clone_outputs=not lent)
    check_outputs(outputs, case)
    numpy.asarray(outputs[1])[...] = -1
    check_outputs(method.execute(case.inputs, clone_outputs=not lent), case)
    check_outputs(load(name).execute(case.inputs), case)


def test_a_result_outlives_its_method_and_program():
    runtime = et_cffi.Runtime.get()
    for lent in (False, True):
        loaded = runtime.load_program(bytes(bytearray(model_index.path("add").read_bytes())))
        method = loaded.load_method("forward")
        case = case_of("add")
        outputs = method.execute(case.inputs, clone_outputs=not lent)
        del loaded
        method.close()
        del method
        collect()
        assert [bytes([number]) * 3000 for number in range(200)]
        check_outputs(outputs, case)


# ---- attributes -------------------------------------------------------------------------------------------


def test_an_attribute_is_read_in_place():
    """The model's running sum, which its outputs are twice of."""
    method = load("state_named")
    assert method.metadata.num_attributes() == 1
    info = method.metadata.attribute_tensor_meta(0)
    assert (info.name, info.sizes(), info.dtype()) == ("total", (2, 2), ScalarType.Float)
    total = method.get_attribute("total")
    assert type(total) is TensorBuffer
    for case in model_index.cases("state_named", "forward"):
        check_outputs(method.execute(case.inputs), case)
        assert numpy.array_equal(numpy.asarray(total) * 2, case.outputs[0])
        assert address(method.get_attribute("total")) == address(total)


def test_an_attribute_can_be_written():
    method, case = load("state_named"), case_of("state_named")
    before = numpy.asarray(method.get_attribute("total")).copy()
    numpy.asarray(method.get_attribute("total"))[...] += 100
    (out,) = method.execute(case.inputs)
    assert numpy.array_equal(numpy.asarray(out), (before + 100 + case.inputs[0]) * 2)
    check_outputs(load("state_named").execute(case.inputs), case)


def test_an_attribute_outlives_its_method():
    method, case = load("state_named"), case_of("state_named")
    total = method.get_attribute("total")
    method.execute(case.inputs)
    method.close()
    del method
    collect()
    assert [bytes([number]) * 3000 for number in range(200)]
    assert numpy.array_equal(numpy.asarray(total) * 2, case.outputs[0])


# ---- values that are no tensors ---------------------------------------------------------------------------


def test_one_of_each_kind():
    outputs, case = run("scalar_outputs")
    check_outputs(outputs, case)
    assert [type(value) for value in outputs[1:]] == [int, float, bool, type(None)]
    assert outputs[1:] == [3, 2.5, True, None]


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("get_n", [3]),
        ("get_scale", [0.5]),
        ("get_flag", [True]),
        ("get_name", ["et_cffi"]),
        ("get_list", [2, 3, 5]),
    ],
)
def test_constant_methods(method, value):
    outputs = load("attributes", method).execute([])
    assert outputs == value
    assert [type(each) for each in outputs] == [type(each) for each in value]


def test_a_constant_tensor():
    (output,) = load("attributes", "get_tensor").execute([])
    assert output.shape == (2, 3)
    assert numpy.asarray(output).tolist() == [[-3.0, 3.25, -3.5], [3.75, -2.5, 2.75]]


@pytest.mark.parametrize("number", range(3))
def test_a_number_that_depends_on_the_shape(number):
    outputs, case = run("size_output", number)
    check_outputs(outputs, case)
    assert outputs[1] == case.inputs[0].shape[0]
    assert type(outputs[1]) is int


def test_a_number_that_depends_on_the_values():
    outputs, case = run("item_output")
    check_outputs(outputs, case)
    assert outputs[1] == pytest.approx(float(case.inputs[0].sum()))


def test_methods_without_inputs():
    method, case = load("no_inputs"), case_of("no_inputs")
    check_outputs(method.execute([]), case)
    check_outputs(method.execute(()), case)
    check_outputs(method.execute(), case)


def test_nested_outputs_come_flat():
    outputs, case = run("nested")
    check_outputs(outputs, case)
    assert len(outputs) == 2


def test_the_ways_to_call_a_method():
    case = case_of("add")
    x, y = add_inputs()
    method = load("add")
    check_outputs(method([x, y]), case)
    check_outputs(method((x, y), clone_outputs=False), case)
    check_outputs(method.execute(inputs=[x, y]), case)
    method.set_inputs([x, y])
    check_outputs(method(), case)
    with load("add") as opened:
        check_outputs(opened.execute([x, y]), case)

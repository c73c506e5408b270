"""What a caller may pass as the inputs, and what is refused before the runtime sees anything."""

from __future__ import annotations

import collections
import math

import model_index
import numpy
import pytest
from dlpack_producer import Producer
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    ITEMSIZE,
    add_inputs,
    address,
    case_of,
    check_outputs,
    host_inputs,
    laid_out,
    load,
    metadata,
    runnable,
    strides_of,
)

import et_cffi
from et_cffi.errors import (
    DtypeError,
    ExecuTorchError,
    InputCountError,
    InputKindError,
    LayoutError,
    MethodStateError,
    ShapeError,
)

BOTH = pytest.mark.parametrize("model", ["add", "add_unplanned"])


def refusal(kind, method, inputs) -> str:
    with pytest.raises(kind) as caught:
        method.execute(inputs)
    return str(caught.value)


# ---- one input, or a sequence of them ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "one",
    [
        lambda x: x,
        memoryview,
        lambda x: memoryview(x.tobytes()).cast("f", [2, 3]),
        Producer,
        lambda x: load("identity_only").execute([x])[0],
    ],
    ids=["numpy", "memoryview", "cast", "dlpack", "TensorBuffer"],
)
def test_what_holds_memory_is_one_input_and_not_its_rows(one):
    case = case_of("same_twice")
    check_outputs(load("same_twice").execute(one(case.inputs[0])), case)


def test_rows_are_not_inputs():
    """A (2, 2, 2) array is no pair of (2, 2) inputs."""
    x, y = add_inputs()
    words = refusal(InputCountError, load("add"), numpy.stack([x, y]))
    assert "takes 2 inputs, and 1 was given" in words


def test_a_previous_output_goes_straight_back():
    """x + x, twice over: four times the value, which eager mode agrees with exactly."""
    case = case_of("dtype_float32")
    method = load("dtype_float32_unplanned")
    (out,) = method.execute(case.inputs[0])
    (out,) = method.execute(out)
    assert numpy.array_equal(numpy.asarray(out), case.inputs[0] * 4)


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("dtype", ["qint8", "qint32", "bits16", "float8_e4m3fn", "uint64"])
def test_a_previous_output_keeps_its_dtype(dtype, planned):
    """Through every way of giving it: the models copy, so the values stay those of the case."""
    name = f"dtype_{dtype}" + ("" if planned else "_unplanned")
    method, case = load(name), case_of(name)
    (out,) = method.execute(host_inputs(case))
    for _ in range(3):
        (out,) = method.execute(out)
        check_outputs([out], case)
        method.set_inputs((out,))
        (out,) = method.execute()
        check_outputs([out], case)


@pytest.mark.parametrize(
    "sequence",
    [list, tuple, collections.deque, collections.UserList, lambda pair: type("Pair", (list,), {})(pair)],
    ids=["list", "tuple", "deque", "UserList", "subclass"],
)
@BOTH
def test_sequences(model, sequence):
    case = case_of(model)
    check_outputs(load(model).execute(sequence(case.inputs)), case)
    named = collections.namedtuple("named", "x y")
    check_outputs(load(model).execute(named(*case.inputs)), case)


def test_a_sequence_is_not_changed():
    inputs = list(add_inputs())
    before = list(inputs)
    load("add").execute(inputs)
    assert all(one is other for one, other in zip(inputs, before))


@pytest.mark.parametrize(
    "thing",
    [
        lambda pair: (each for each in pair), lambda pair: iter(pair), lambda pair: dict(enumerate(pair)),
        lambda pair: {1, 2}, lambda pair: map(abs, pair), lambda pair: object(), lambda pair: zip(pair, pair),
        lambda pair: type("Indexed", (), {"__len__": lambda s: 2, "__getitem__": lambda s, i: pair[i]})(),
        lambda pair: numpy, lambda pair: len, lambda pair: list,
    ],
)  # fmt: skip
def test_what_is_neither_memory_nor_a_sequence(thing):
    method = load("add")
    given = thing(add_inputs())
    words = refusal(InputKindError, method, given)
    assert type(given).__name__ in words
    assert "list with one item for each input" in words
    check_outputs(method.execute(case_of("add").inputs), case_of("add"))


def test_a_list_in_a_list_is_no_tensor():
    x, y = add_inputs()
    endless = [x]
    endless.append(endless)
    for inputs in ([[x, y], y], [x.tolist(), y], [(x,), y]):
        words = refusal(InputKindError, load("add"), inputs)
        assert words.startswith("input 0")
        assert f"a {type(inputs[0]).__name__}" in words
        assert "numpy.asarray" in words
    assert refusal(InputKindError, load("add"), endless).startswith("input 1")
    assert "and 1 was given" in refusal(InputCountError, load("add"), [[x, y]])


@pytest.mark.parametrize("count", [0, 1, 3, 100])
@BOTH
def test_the_number_of_inputs(model, count):
    words = refusal(InputCountError, load(model), [add_inputs()[0]] * count)
    assert f"takes 2 inputs, and {count} {'was' if count == 1 else 'were'} given" in words


def test_the_number_of_one_input():
    assert "takes 1 input, and 2 were given" in refusal(InputCountError, load("rank0"), [1.0, 2.0])
    assert "takes 0 inputs, and 1 was given" in refusal(InputCountError, load("no_inputs"), [1.0])
    assert "and 1 was given" in refusal(InputCountError, load("add"), None)
    # Of a sequence of somebody's own, which may never end, no more are taken than it takes to know.
    assert "takes 2 inputs, and 3 were given" in refusal(InputCountError, load("add"), range(5))
    assert "takes 2 inputs, and 1 was given" in refusal(InputCountError, load("add"), range(1))
    assert "and 1 was given" in refusal(InputCountError, load("add"), "text")
    assert "and 1 was given" in refusal(InputCountError, load("add"), b"bytes")


# ---- values that are no tensors ---------------------------------------------------------------------------


def scalar_inputs(**changed):
    x, n, scale, flag = case_of("scalar_inputs").inputs
    return [x, changed.get("n", n), changed.get("scale", scale), changed.get("flag", flag)]


@pytest.mark.parametrize(
    "changed",
    [
        {}, {"n": numpy.int64(3)}, {"n": numpy.int8(3)}, {"n": numpy.uint16(3)},
        {"scale": numpy.float64(0.5)}, {"scale": numpy.float32(0.5)}, {"scale": numpy.float16(0.5)},
        {"flag": numpy.bool_(True)},
    ],
    ids=repr,
)  # fmt: skip
def test_scalars(changed):
    check_outputs(load("scalar_inputs").execute(scalar_inputs(**changed)), case_of("scalar_inputs"))


@pytest.mark.parametrize(
    ("index", "changed", "given", "wanted"),
    [
        (1, {"n": True}, "a bool", "an int"),
        (1, {"n": numpy.bool_(True)}, "a bool", "an int"),
        (1, {"n": 3.0}, "a float", "an int"),
        (1, {"n": numpy.float32(3)}, "a float", "an int"),
        (1, {"n": "3"}, "a str", "an int"),
        (1, {"n": None}, "None", "an int"),
        (2, {"scale": True}, "a bool", "a float"),
        (2, {"scale": "0.5"}, "a str", "a float"),
        (2, {"scale": None}, "None", "a float"),
        (3, {"flag": 1}, "an int", "a bool"),
        (3, {"flag": numpy.int64(1)}, "an int", "a bool"),
        (3, {"flag": 1.0}, "a float", "a bool"),
        (3, {"flag": "True"}, "a str", "a bool"),
        (3, {"flag": None}, "None", "a bool"),
        (1, {"n": [3]}, "a list", "an int"),
        (1, {"n": 3j}, "a complex", "an int"),
        (1, {"n": numpy.array(3)}, "ndarray", "an int"),
        (2, {"scale": numpy.array(0.5)}, "ndarray", "a float"),
        (3, {"flag": object()}, "a object", "a bool"),
    ],
)
def test_one_kind_is_told_from_another(index, changed, given, wanted):
    words = refusal(InputKindError, load("scalar_inputs"), scalar_inputs(**changed))
    assert words.startswith(f"input {index}")
    assert given in words
    assert f"takes {wanted}" in words


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 1 << 200])
def test_an_int_that_does_not_fit(number):
    words = refusal(InputKindError, load("scalar_inputs"), scalar_inputs(n=number))
    assert words.startswith("input 1")
    assert str(number) in words
    assert "64 bits" in words


@pytest.mark.parametrize(
    "changed", [{"n": (1 << 63) - 1}, {"n": -(1 << 63)}, {"n": 4}, {"scale": 0.25}, {"flag": False}], ids=repr
)
def test_a_value_that_export_fixed_is_the_runtimes_to_refuse(changed):
    with pytest.raises(ExecuTorchError) as caught:
        load("scalar_inputs").execute(scalar_inputs(**changed))
    assert caught.value.code == 0x12
    assert "setting input" in str(caught.value)


def test_an_int_for_a_float():
    """1 is 1.0 to every Python user; the file says 0.5, so the runtime tells that it arrived as a float."""
    with pytest.raises(ExecuTorchError) as caught:
        load("scalar_inputs").execute(scalar_inputs(scale=1))
    assert not isinstance(caught.value, InputKindError)
    assert caught.value.code == 0x12


def test_an_int_too_large_for_a_float():
    with pytest.raises(ExecuTorchError, match="input 2"):
        load("scalar_inputs").execute(scalar_inputs(scale=10**400))


def test_none():
    check_outputs(load("none_input").execute(case_of("none_input").inputs), case_of("none_input"))
    x = case_of("none_input").inputs[0]
    for other, named in ((x, "ndarray"), (0, "an int"), (False, "a bool"), ("", "a str")):
        words = refusal(InputKindError, load("none_input"), [x, other])
        assert words.startswith("input 1")
        assert named in words
        assert "takes None" in words


@pytest.mark.parametrize(
    ("thing", "named"),
    [
        (None, "None"), (3, "an int"), (2.5, "a float"), (True, "a bool"), ("text", "a str"),
        (3j, "a complex"), ({}, "a dict"), ([], "a list"), (object(), "a object"), (len, "builtin"),
        (numpy.ndarray, "a type"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("index", [0, 1])
def test_what_is_no_tensor(thing, named, index):
    inputs = list(add_inputs())
    inputs[index] = thing
    words = refusal(InputKindError, load("add"), inputs)
    assert words.startswith(f"input {index}")
    assert named in words
    assert "takes a tensor" in words


# ---- dtype, rank, shape, layout ---------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("index", [0, 1])
def test_a_wrong_dtype_names_both(model, index):
    inputs = list(add_inputs())
    inputs[index] = inputs[index].astype(numpy.float64)
    words = refusal(DtypeError, load(model), inputs)
    assert words.startswith(f"input {index}")
    assert "dtype float64" in words
    assert "takes float32" in words
    assert "convert it" in words


@BOTH
@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (1, 2), (2, 1), (1, 1), (0, 2), (2, 0), (4, 4)])
def test_a_wrong_shape_names_both(model, shape):
    words = refusal(ShapeError, load(model), [add_inputs()[0], numpy.ones(shape, numpy.float32)])
    assert words.startswith("input 1")
    assert f"shape {shape}" in words
    assert "(2, 2) only" in words


@BOTH
@pytest.mark.parametrize("shape", [(), (4,), (1, 2, 2), (2, 2, 1), (1,) * 16])
def test_a_wrong_rank_names_both(model, shape):
    words = refusal(ShapeError, load(model), [numpy.ones(shape, numpy.float32), add_inputs()[1]])
    assert words.startswith("input 0")
    assert f"shape {shape}" in words
    assert f"rank {len(shape)}" in words
    assert "rank 2" in words
    assert "(2, 2)" in words


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp_dynamic", (9, 5)), ("mlp_dynamic_unplanned", (1000, 5)), ("mlp_dynamic_xnnpack", (9, 5)),
        ("two_dynamic", (6, 6)), ("two_dynamic", (5, 7)), ("big_bound", (5001, 3)), ("mlp_dynamic", (4, 6)),
    ],
)  # fmt: skip
def test_a_dynamic_dimension_is_refused_with_its_bound(name, shape):
    words = refusal(ShapeError, load(name), [numpy.ones(shape, numpy.float32)])
    assert words.startswith("input 0")
    assert str(shape) in words
    assert f"up to {metadata(name).input_tensor_meta(0).sizes()}" in words
    for case in model_index.cases(name, "forward"):
        check_outputs(load(name).execute(case.inputs), case)


@pytest.mark.parametrize("name", ["two_dynamic", "two_dynamic_unplanned", "big_bound"])
def test_the_bound_itself(name):
    shape = metadata(name).input_tensor_meta(0).sizes()
    x = numpy.arange(math.prod(shape), dtype=numpy.float32).reshape(shape)
    (out,) = load(name).execute([x])
    assert numpy.array_equal(numpy.asarray(out), x * 2 + 1)  # what the model computes


@pytest.mark.parametrize("size", [1 << 31, (1 << 31) + 1, 1 << 32, 1 << 40, (1 << 62) - 1])
@pytest.mark.parametrize("name", ["empty", "add", "dynamic_with_zero", "mlp_dynamic"])
def test_a_size_beyond_the_runtimes_integer(name, size):
    """An empty array can carry one without using any memory, and the runtime would end the process."""
    sources = [Producer(numpy.zeros((0, 3), "f4"), shape=shape, strides=strides)
               for shape in ((0, size), (size, 0)) for strides in (None, (1, 1))]  # fmt: skip
    if size * 4 < 1 << 62:
        sources += [numpy.empty((0, size), numpy.float32), numpy.empty((size, 0), numpy.float32)]
    for source in sources:
        words = refusal(ShapeError, load(name), [source] * metadata(name).num_inputs())
        assert words.startswith("input 0")
        assert str(size) in words
        assert "0 to 2147483647" in words


def test_an_empty_input():
    for name in ("empty", "dynamic_with_zero"):
        for case in model_index.cases(name, "forward"):
            check_outputs(load(name).execute(case.inputs), case)
    assert "(3, 0)" in refusal(ShapeError, load("empty"), [numpy.empty((3, 0), numpy.float32)])


CHANNELS_LAST = ["conv_channels_last", "conv_channels_last_unplanned", "conv_xnnpack_channels_last"]


@pytest.mark.parametrize("name", [*CHANNELS_LAST, "conv_dynamic_channels_last"])
def test_a_channels_last_method_refuses_the_default_layout(name):
    case = case_of(name)
    method = load(name)
    words = refusal(LayoutError, method, case.inputs)
    assert words.startswith("input 0")
    assert str(strides_of(case.inputs[0].shape, (0, 1, 2, 3), 1)) in words
    assert str(strides_of(case.inputs[0].shape, (0, 2, 3, 1), 1)) in words
    assert "dim order (0, 2, 3, 1)" in words
    assert "et_cffi.lay_out" in words
    check_outputs(method.execute([laid_out(case.inputs[0], (0, 2, 3, 1))]), case)


@pytest.mark.parametrize("name", ["conv", "conv_xnnpack"])
def test_a_default_method_refuses_channels_last(name):
    case = case_of(name)
    words = refusal(LayoutError, load(name), [laid_out(case.inputs[0], (0, 2, 3, 1))])
    assert words.startswith("input 0")
    assert "contiguous layout" in words
    assert "numpy.ascontiguousarray" in words
    check_outputs(load(name).execute(case.inputs), case)


@pytest.mark.parametrize("name", ["layouts_mixed", "layouts_mixed_planned"])
def test_the_input_whose_layout_is_wrong_is_named(name):
    case = case_of(name)
    x, y = case.inputs
    last = (0, 2, 3, 1)
    check_outputs(load(name).execute([x, laid_out(y, last)]), case)
    assert refusal(LayoutError, load(name), [x, y]).startswith("input 1")
    assert refusal(LayoutError, load(name), [laid_out(x, last), laid_out(y, last)]).startswith("input 0")
    assert refusal(LayoutError, load(name), [laid_out(x, last), y]).startswith("input 0")


@pytest.mark.parametrize("order", [(0, 3, 2, 1), (3, 2, 1, 0), (1, 0, 2, 3), (0, 3, 1, 2), (2, 3, 0, 1)])
@pytest.mark.parametrize("name", ["conv", "conv_channels_last"])
def test_any_other_order_of_the_dimensions(name, order):
    case = case_of(name)
    refusal(LayoutError, load(name), [laid_out(case.inputs[0], order)])


def with_strides(array, **changed):
    """The same array, whose dimensions of size one state other strides."""
    strides = list(array.strides)
    for dim, stride in changed.items():
        assert array.shape[int(dim[1:])] == 1
        strides[int(dim[1:])] = stride
    return numpy.lib.stride_tricks.as_strided(array, array.shape, strides)


@pytest.mark.parametrize("stride", [0, 4, -4, 1 << 20, 28, -(1 << 40)])
def test_a_dimension_of_size_one_is_exempt(stride):
    case = case_of("conv_channels_last_batch1")
    array = laid_out(case.inputs[0], (0, 2, 3, 1))
    check_outputs(load("conv_channels_last_batch1").execute([with_strides(array, d0=stride)]), case)
    case = case_of("size_one")
    check_outputs(load("size_one").execute([with_strides(case.inputs[0], d0=stride, d1=-stride)]), case)


CHANNEL1 = ["channel1_channels_last", "channel1_channels_last_unplanned", "channel1_channels_last_xnnpack"]


@pytest.mark.parametrize("name", CHANNEL1)
def test_one_channel_is_the_same_in_both_layouts(name):
    """Exported as (0, 2, 1, 3): the size-one dimension stands where it pleases."""
    case = case_of(name)
    assert metadata(name).input_tensor_meta(0).dim_order() == (0, 2, 1, 3)
    for order in ((0, 1, 2, 3), (0, 2, 3, 1), (1, 0, 2, 3), (0, 2, 1, 3)):
        check_outputs(load(name).execute([laid_out(case.inputs[0], order)]), case)


def test_a_batch_of_one_in_the_default_layout_is_still_refused():
    case = case_of("conv_channels_last_batch1")
    refusal(LayoutError, load("conv_channels_last_batch1"), case.inputs)


# ---- after a refusal --------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "bad", [None, "text", object(), numpy.zeros((2, 3), "f4"), numpy.zeros((2, 2)), Ellipsis], ids=type
)
@pytest.mark.parametrize("call", ["set_inputs", "execute"])
def test_nothing_runs_or_is_read_until_a_whole_set_is_given(model, bad, call):
    case, other = case_of(model, number=0), case_of(model, number=1)
    method = load(model)
    for refused in ([case.inputs[0], bad], [bad, case.inputs[1]], [case.inputs[0]], object()):
        check_outputs(method.execute(case.inputs), case)
        for _ in range(2):
            with pytest.raises(ExecuTorchError):
                getattr(method, call)(refused)
        for each in (method.execute, method.get_outputs, lambda: method.get_outputs(clone_outputs=False)):
            with pytest.raises(MethodStateError, match="set all of them first"):
                each()
    check_outputs(method.execute(other.inputs), other)
    check_outputs(method.get_outputs(), other)


def test_before_anything_is_set():
    method = load("add")
    with pytest.raises(MethodStateError, match="never set"):
        method.execute()
    with pytest.raises(MethodStateError, match="has not run"):
        method.get_outputs()
    method.set_inputs(add_inputs())
    with pytest.raises(MethodStateError, match="has not run"):
        method.get_outputs()
    check_outputs(method.execute(), case_of("add"))
    method.set_inputs(add_inputs())
    with pytest.raises(MethodStateError, match="has not run"):
        method.get_outputs()


def test_after_close():
    method = load("add")
    method.set_inputs(add_inputs())
    method.close()
    method.close()
    assert repr(method) == "<et_cffi.Method 'forward', closed>"
    for call in (method.execute, method.get_outputs, lambda: method.set_inputs(add_inputs()),
                 lambda: method.execute(add_inputs()), lambda: method.get_attribute("x")):  # fmt: skip
        with pytest.raises(MethodStateError, match="closed"):
            call()
    assert method.metadata.name() == "forward"


@pytest.mark.parametrize("name", ["add", "add_unplanned"])
def test_inputs_stay_set(name):
    case = case_of(name)
    method = load(name)
    method.set_inputs(case.inputs)
    for _ in range(3):
        check_outputs(method.execute(), case)


def test_planned_inputs_that_a_run_overwrites_have_to_be_set_again():
    """The planner gives an input's memory away once it was read."""
    spent = 0
    for name in runnable():
        case = case_of(name) if "forward" in model_index.models()[name]["methods"] else None
        if case is None or not case.inputs or name.startswith("state"):
            continue
        method = load(name)
        method.set_inputs(host_inputs(case))
        check_outputs(method.execute(), case)
        if name.startswith("writes_input"):
            continue
        try:
            outputs = method.execute()
        except MethodStateError as error:
            assert "set all of them again" in str(error)
            spent += 1
        else:
            check_outputs(outputs, case)
    assert spent > 0


# ---- lay_out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [*CHANNELS_LAST, *CHANNEL1, "conv", "rank0", "rank16", "conv_channels_last_batch1"]
)
def test_lay_out_makes_what_the_input_wants(name):
    info = metadata(name).input_tensor_meta(0)
    for case in model_index.cases(name, "forward"):
        x = case.inputs[0]
        made = et_cffi.lay_out(x, info)
        assert type(made) is numpy.ndarray
        assert made.shape == x.shape
        assert made.dtype == x.dtype
        wanted = strides_of(x.shape, info.dim_order(), x.itemsize)
        assert [s for s, size in zip(made.strides, x.shape) if size > 1] == [
            s for s, size in zip(wanted, x.shape) if size > 1
        ]
        assert numpy.array_equal(made, x)
        check_outputs(load(name).execute([made]), case)


def test_lay_out_copies_only_where_it_must():
    info = metadata("conv_channels_last").input_tensor_meta(0)
    x = case_of("conv_channels_last").inputs[0]
    right = laid_out(x, (0, 2, 3, 1))
    assert address(et_cffi.lay_out(right, info)) == address(right)
    assert address(et_cffi.lay_out(x, info)) != address(x)
    flat = metadata("add").input_tensor_meta(0)
    y = add_inputs()[0]
    assert address(et_cffi.lay_out(y, flat)) == address(y)
    made = et_cffi.lay_out(y.T, flat)
    assert made.flags.c_contiguous
    assert numpy.array_equal(made, y.T)


def test_lay_out_takes_other_sizes_of_a_dynamic_input_and_lists():
    info = metadata("conv_dynamic_channels_last").input_tensor_meta(0)
    case = case_of("conv_dynamic_channels_last")
    assert case.inputs[0].shape[0] < info.sizes()[0]
    check_outputs(load("conv_dynamic_channels_last").execute([et_cffi.lay_out(case.inputs[0], info)]), case)
    made = et_cffi.lay_out([[1.5, 2.5], [3.5, 4.5]], metadata("add").input_tensor_meta(0))
    assert made.tolist() == [[1.5, 2.5], [3.5, 4.5]]


def test_lay_out_matches_values_by_index():
    info = metadata("conv_channels_last").input_tensor_meta(0)
    for array in (numpy.ones((2, 3), "f4"), numpy.float32(1), numpy.ones((1, 2, 3, 5, 7), "f4")):
        with pytest.raises(ValueError, match=f"{array.ndim} dimensions, and the input has 4"):
            et_cffi.lay_out(array, info)


# ---- any shape, any strides -------------------------------------------------------------------------------


@st.composite
def views(draw):
    """Some view of some array, of any dtype that numpy names, mostly near what the input wants."""
    dtype = draw(st.sampled_from(["float32"] * 6 + ["float64", "int32", "uint8", "bool", ">f4", "complex64"]))
    rank = draw(st.sampled_from([2] * 5 + [0, 1, 3, 4]))
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 2, 3, 0]), min_size=rank, max_size=rank))
    array = numpy.arange(4096, dtype=numpy.float64).astype(dtype)[: 2 * math.prod(shape) + 64]
    array = numpy.resize(array, [size * 2 for size in shape])
    index = tuple(
        draw(st.sampled_from([slice(0, size), slice(None, 2 * size, 2), slice(size - 1, None, -1)]))
        for size in shape
    )
    view = array[index]
    return draw(st.sampled_from([view, view.T, numpy.ascontiguousarray(view), numpy.asfortranarray(view)]))


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(view=views())
@pytest.mark.parametrize("name", ["two_dynamic", "two_dynamic_unplanned"])
def test_any_view_runs_or_is_refused(name, view):
    """Whatever is taken is computed right, and only what may be refused is refused."""
    fits = (
        view.dtype == numpy.dtype("=f4")
        and view.ndim == 2
        and all(size <= most for size, most in zip(view.shape, (5, 6)))
        and (view.size == 0 or all(
            size == 1 or stride == wanted
            for size, stride, wanted in zip(view.shape, view.strides, strides_of(view.shape, (0, 1), 4))
        ))
    )  # fmt: skip
    method = load(name)
    if fits:
        (out,) = method.execute([view])
        assert numpy.array_equal(numpy.asarray(out), view * numpy.float32(2) + numpy.float32(1))
        return
    with pytest.raises((DtypeError, ShapeError, LayoutError), match=r"^input 0"):
        method.execute([view])


def test_item_sizes_are_those_of_the_file():
    for name in runnable():
        for index, info in enumerate(case_infos(name)):
            if info["kind"] == "tensor":
                nbytes = metadata(name).input_tensor_meta(index).nbytes()
                assert nbytes == math.prod(info["shape"]) * ITEMSIZE[info["dtype"]]


def case_infos(name):
    return model_index.models()[name]["methods"].get("forward", {"inputs": []})["inputs"]

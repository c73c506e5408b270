"""Inputs through the buffer protocol: what a format code means, and what is refused, by name."""

from __future__ import annotations

import array as arrays
import ctypes
import itertools
import struct

import numpy
import pytest
from support import FORMAT, ITEMSIZE, case_of, check_outputs, laid_out, load

from et_cffi import ScalarType
from et_cffi.dtypes import scalar_type_of_format
from et_cffi.errors import (
    DtypeError,
    ExecuTorchError,
    InputKindError,
    LayoutError,
    MemoryMissingError,
    ShapeError,
)


def dtype_case(dtype: str, planned: bool = True):
    """The method that takes one (2, 3) input of that dtype, and its case."""
    name = f"dtype_{dtype}" + ("" if planned else "_unplanned")
    return load(name), case_of(name)


def refusal(kind: type[ExecuTorchError], method, *inputs) -> str:
    """The words with which the inputs are refused."""
    with pytest.raises(kind) as caught:
        method.execute(list(inputs))
    return str(caught.value)


# ---- format codes -----------------------------------------------------------------------------------------

WIDTHS = {
    **{code: ("float", {2: "Half", 4: "Float", 8: "Double"}) for code in "efd"},
    **{code: ("signed", {1: "Char", 2: "Short", 4: "Int", 8: "Long"}) for code in "bhilqn"},
    **{code: ("unsigned", {1: "Byte", 2: "UInt16", 4: "UInt32", 8: "UInt64"}) for code in "BHILQN"},
    "?": ("bool", {1: "Bool"}),
    **{code: ("complex", {8: "ComplexFloat", 16: "ComplexDouble"}) for code in ("Zf", "Zd")},
}


@pytest.mark.parametrize("prefix", ["", "@", "=", "<"])
@pytest.mark.parametrize("code", WIDTHS)
def test_the_code_names_the_kind_and_the_item_size_the_width(code, prefix):
    for itemsize in (1, 2, 3, 4, 8, 16, 32):
        name = WIDTHS[code][1].get(itemsize)
        assert scalar_type_of_format(prefix + code, itemsize) == (None if name is None else ScalarType[name])


@pytest.mark.parametrize("prefix", [">", "!", "<<", "=@", " ", "2", "&", "T{"])
@pytest.mark.parametrize("code", WIDTHS)
def test_another_byte_order_or_a_compound_is_no_dtype(code, prefix):
    assert [scalar_type_of_format(prefix + code, itemsize) for itemsize in (1, 2, 4, 8, 16)] == [None] * 5


@pytest.mark.parametrize(
    "format", ["", "@", "c", "s", "1s", "g", "O", "P", "x", "4x", "Zg", "Ze", "ff", "f<", "<"]
)
def test_formats_that_name_no_dtype(format):
    assert [scalar_type_of_format(format, itemsize) for itemsize in (1, 2, 4, 8, 16)] == [None] * 5


@pytest.mark.parametrize("dtype", sorted(FORMAT))
def test_numpy_states_the_format_that_is_expected(dtype):
    """The table of formats that these tests compare with is numpy's own, up to the names of one width."""
    format, itemsize = memoryview(numpy.zeros(1, dtype)).format, ITEMSIZE[dtype]
    assert scalar_type_of_format(format, itemsize) == scalar_type_of_format(FORMAT[dtype], itemsize)
    assert str(scalar_type_of_format(format, itemsize)) == dtype


@pytest.mark.parametrize("code", "bBhHiIlLqQfd?")
def test_native_codes_go_in_by_their_own_width(code):
    """l and L are eight bytes on one platform, and four on another."""
    names = WIDTHS[code][1]
    dtype = str(ScalarType[names[struct.calcsize(code)]])
    method, case = dtype_case(dtype)
    for prefix in ("", "@"):
        check_outputs(
            method.execute([memoryview(case.inputs[0].tobytes()).cast(prefix + code, [2, 3])]), case
        )


@pytest.mark.parametrize("kind", [ctypes.c_float, ctypes.c_int64, ctypes.c_bool, ctypes.c_uint16])
def test_ctypes_states_little_endian(kind):
    source = (kind * 3 * 2)()
    assert memoryview(source).format[0] == "<"
    method, case = dtype_case(numpy.dtype(kind).name)
    ctypes.memmove(source, case.inputs[0].tobytes(), ctypes.sizeof(source))
    check_outputs(method.execute([source]), case)


@pytest.mark.parametrize("kind", [numpy.longlong, numpy.int_, numpy.ulonglong, numpy.intc, numpy.uintc])
def test_numpy_types_that_share_a_width(kind):
    method, case = dtype_case(numpy.dtype(kind).name)
    source = case.inputs[0].view(kind)
    assert numpy.array_equal(source, case.inputs[0])
    check_outputs(method.execute([source]), case)


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("dtype", sorted(set(FORMAT) - {"bool", "int8", "uint8"}))
def test_an_unaligned_array_is_copied(dtype, planned):
    """numpy states '=' for it, and no kernel may be pointed at it."""
    method, case = dtype_case(dtype, planned)
    values = case.inputs[0]
    room = bytearray(values.nbytes + 1)
    source = numpy.frombuffer(room, values.dtype, offset=1, count=values.size).reshape(values.shape)
    source[...] = values
    assert not source.flags.aligned
    check_outputs(method.execute([source]), case)
    method.set_inputs([source])
    source[...] = 0
    check_outputs(method.execute(), case)


@pytest.mark.parametrize("dtype", sorted(set(FORMAT) - {"bool", "int8", "uint8"}))
def test_big_endian_is_refused_by_name(dtype):
    method, case = dtype_case(dtype)
    swapped = case.inputs[0].astype(numpy.dtype(dtype).newbyteorder(">"))
    words = refusal(DtypeError, method, swapped)
    assert words.startswith("input 0")
    format = memoryview(swapped).format
    assert format[0] == ">"
    assert repr(format) in words
    assert "byte order" in words
    assert f"convert it to {dtype}" in words


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool"])
def test_one_byte_has_no_order(dtype):
    method, case = dtype_case(dtype)
    check_outputs(method.execute([case.inputs[0].astype(numpy.dtype(dtype).newbyteorder(">"))]), case)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (numpy.zeros((2, 3), object), "'O'"),
        (numpy.zeros((2, 3), "U1"), "'1w'"),
        (numpy.zeros((2, 3), "S4"), "'4s'"),
        (numpy.zeros((2, 3), "V4"), "'4x'"),
        (numpy.zeros((2, 3), numpy.longdouble), "'g'"),
        (numpy.zeros((2, 3), numpy.clongdouble), "'Zg'"),
        (numpy.zeros((2, 3), [("a", "f4"), ("b", "i4")]), "T{f:a:i:b:}"),
        (numpy.zeros((2, 3), [("only", "f4")]), "T{f:only:}"),
        (memoryview(bytes(6)).cast("c", [2, 3]), "'c'"),
        (numpy.zeros((2, 3), "M8[s]"), "dtype datetime64[s]"),
    ],
    ids=repr,
)
def test_what_the_runtime_does_not_read_is_refused_by_name(source, named):
    words = refusal(DtypeError, dtype_case("float32")[0], source)
    assert words.startswith("input 0")
    assert named in words


@pytest.mark.parametrize(
    ("wanted", "given"), [pair for pair in itertools.permutations(sorted(FORMAT), 2) if pair[1] != "bool"]
)
def test_another_dtype_is_refused_naming_both(wanted, given):
    method, case = dtype_case(wanted)
    words = refusal(DtypeError, method, numpy.arange(6).reshape(2, 3).astype(given))
    assert words.startswith("input 0")
    assert f"dtype {given}," in words
    assert f"takes {wanted};" in words
    assert "convert" in words
    check_outputs(method.execute([case.inputs[0]]), case)


def test_a_released_memoryview():
    view = memoryview(bytearray(24)).cast("f", [2, 3])
    view.release()
    assert "released" in refusal(DtypeError, dtype_case("float32")[0], view)


# ---- raw bytes, and each condition ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "complex32", "qint32", "bits16", "quint4x2"])
def test_raw_bytes_are_the_memory_of_a_dtype_that_no_code_names(dtype):
    method, case = dtype_case(dtype)
    data = case.inputs[0].tobytes()
    sources = [
        data, bytearray(data), memoryview(data), numpy.frombuffer(data, numpy.uint8),
        numpy.frombuffer(data, numpy.int8), memoryview(data).cast("c"), memoryview(data).cast("b"),
        arrays.array("b", data), (ctypes.c_char * len(data)).from_buffer_copy(data),
        (ctypes.c_uint8 * len(data)).from_buffer_copy(data),
    ]  # fmt: skip
    for source in sources:
        check_outputs(method.execute([source]), case)


@pytest.mark.parametrize("dtype", sorted(set(FORMAT) - {"uint8", "int8"}))
def test_raw_bytes_need_a_dtype_without_a_code(dtype):
    """Otherwise a byte image of the right size would be read as floats."""
    method, case = dtype_case(dtype)
    words = refusal(DtypeError, method, case.inputs[0].tobytes())
    assert "dtype uint8" in words
    assert f"takes {dtype}" in words


BFLOAT16 = case_of("dtype_bfloat16").inputs[0]
TWELVE = BFLOAT16.tobytes()


@pytest.mark.parametrize(
    ("source", "kind", "named"),
    [
        (numpy.frombuffer(TWELVE, numpy.uint8).reshape(2, 6), DtypeError, "dtype uint8"),
        (numpy.frombuffer(TWELVE, numpy.uint8).reshape(12, 1), DtypeError, "dtype uint8"),
        (numpy.frombuffer(TWELVE, numpy.uint8).reshape(1, 12), DtypeError, "dtype uint8"),
        (BFLOAT16.reshape(6), DtypeError, "dtype uint16"),
        (BFLOAT16, DtypeError, "dtype uint16"),
        (BFLOAT16.view(numpy.float16), DtypeError, "dtype float16"),
        (numpy.frombuffer(TWELVE, numpy.bool_), DtypeError, "dtype bool"),
        (numpy.arange(24, dtype=numpy.uint8)[::2], DtypeError, "dtype uint8"),
        (numpy.frombuffer(TWELVE, numpy.uint8)[::-1], DtypeError, "dtype uint8"),
        (numpy.broadcast_to(numpy.uint8(7), 12), DtypeError, "dtype uint8"),
        (TWELVE[:-1], DtypeError, "dtype uint8"),
        (TWELVE + b"\0", DtypeError, "dtype uint8"),
        (TWELVE[:6], DtypeError, "dtype uint8"),
        (TWELVE * 2, DtypeError, "dtype uint8"),
        (b"", DtypeError, "dtype uint8"),
    ],
    ids=[
        "two dimensions", "a column", "a row", "items of two bytes", "the right shape of another dtype",
        "half", "bools", "strided", "backwards", "stride 0", "one byte short", "one too many",
        "half of them", "twice", "none",
    ],
)  # fmt: skip
@pytest.mark.parametrize("planned", [True, False])
def test_raw_bytes_stay_narrow(source, kind, named, planned):
    method, case = dtype_case("bfloat16", planned)
    words = refusal(kind, method, source)
    assert words.startswith("input 0")
    assert named in words
    assert "takes bfloat16" in words
    check_outputs(method.execute([TWELVE]), case)


@pytest.mark.parametrize("dtype", ["qint8", "float8_e4m3fn"])
def test_bytes_of_one_byte_dtypes_need_one_dimension_too(dtype):
    method, case = dtype_case(dtype)
    words = refusal(DtypeError, method, case.inputs[0].view(numpy.uint8).reshape(2, 3))
    assert "dtype uint8" in words
    assert f"takes {dtype}" in words


# ---- layouts ----------------------------------------------------------------------------------------------


def strided_views():
    base = numpy.arange(96, dtype=numpy.float32).reshape(8, 12)
    record = numpy.zeros((2, 3), [("value", "f4"), ("tag", "u1")])
    record["value"] = base[:2, :3]
    return {
        "transposed": numpy.arange(6, dtype=numpy.float32).reshape(3, 2).T,
        "fortran": numpy.asfortranarray(base[:2, :3]),
        "columns": base[:2, :6:2],
        "rows": base[:4:2, :3],
        "backwards": numpy.ascontiguousarray(base[:2, :3])[:, ::-1],
        "upside down": numpy.ascontiguousarray(base[:2, :3])[::-1],
        "stride 0": numpy.broadcast_to(base[:1, :3], (2, 3)),
        "bytes between": record["value"],
    }


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("view", strided_views())
def test_a_view_is_refused_saying_to_make_it_contiguous(view, planned):
    method = dtype_case("float32", planned)[0]
    source = strided_views()[view]
    assert source.shape == (2, 3)
    words = refusal(LayoutError, method, source)
    assert words.startswith("input 0")
    assert "make it contiguous first" in words
    in_elements = tuple(stride // 4 for stride in source.strides)
    assert (str(source.strides) if view == "bytes between" else str(in_elements)) in words
    result = method.execute([numpy.ascontiguousarray(source)])[0]
    assert numpy.array_equal(numpy.asarray(result), source + source)


@pytest.mark.parametrize("planned", [True, False])
def test_a_contiguous_part_of_an_array(planned):
    method, case = dtype_case("float32", planned)
    room = numpy.zeros((5, 3), numpy.float32)
    room[2:4] = case.inputs[0]
    check_outputs(method.execute([room[2:4]]), case)


@pytest.mark.parametrize("name", ["conv_channels_last", "conv_channels_last_unplanned"])
def test_a_negative_stride_in_a_channels_last_input(name):
    case = case_of(name)
    source = laid_out(case.inputs[0], (0, 2, 3, 1))[:, :, ::-1]
    words = refusal(LayoutError, load(name), source)
    assert "dim order (0, 2, 3, 1)" in words
    assert "make it contiguous first" in words


def test_more_dimensions_than_the_runtime_describes():
    for ndim in (17, 32):
        words = refusal(ShapeError, dtype_case("float32")[0], numpy.zeros([1] * ndim, numpy.float32))
        assert words.startswith("input 0")
        assert f"{ndim} dimensions" in words
        assert "at most 16" in words


class _PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    ]


class Exported:
    """A memoryview that states any format and any suboffsets, over an array's memory, and has no owner."""

    def __init__(self, array, format: str | None, suboffsets=None) -> None:
        size = ctypes.c_ssize_t * array.ndim
        self.kept = [
            array, None if format is None else format.encode(), size(*array.shape), size(*array.strides),
            None if suboffsets is None else size(*suboffsets),
        ]  # fmt: skip
        info = _PyBuffer(
            array.ctypes.data, None, array.nbytes, array.itemsize, 0, array.ndim, self.kept[1], self.kept[2],
            self.kept[3], self.kept[4], None,
        )  # fmt: skip
        from_buffer = ctypes.pythonapi.PyMemoryView_FromBuffer
        from_buffer.restype, from_buffer.argtypes = ctypes.py_object, [ctypes.POINTER(_PyBuffer)]
        self.view = from_buffer(ctypes.byref(info))


@pytest.mark.cpython
@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("format", ["f", "@f", "=f", "<f", "d"])
def test_any_format_that_a_buffer_may_state(format, planned):
    """Without an owner, too: nobody promises that the memory stays."""
    method, case = dtype_case("float32", planned)
    exported = Exported(case.inputs[0], format)
    assert exported.view.obj is None
    check_outputs(method.execute([exported.view]), case)


@pytest.mark.cpython
@pytest.mark.parametrize("format", [">f", "!f", "=>f", "1f", "T{<f:x:}", "\u00e9"])
def test_any_format_that_it_may_not(format):
    method, case = dtype_case("float32")
    exported = Exported(case.inputs[0], format)
    words = refusal(DtypeError, method, exported.view)
    assert "float32" in words


@pytest.mark.cpython
def test_an_indirect_buffer_is_refused():
    method, case = dtype_case("float32")
    exported = Exported(case.inputs[0], "f", suboffsets=[0, -1])
    words = refusal(LayoutError, method, exported.view)
    assert words.startswith("input 0")
    assert "indirect" in words
    assert "contiguous" in words


READ_ONLY = {
    "bytes": lambda x: memoryview(x.tobytes()).cast("f", [2, 2]),
    "read-only view": lambda x: memoryview(bytearray(x.tobytes())).toreadonly().cast("f", [2, 2]),
    "numpy": lambda x: numpy.frombuffer(x.tobytes(), "f4").reshape(2, 2),
    "broadcast": lambda x: numpy.broadcast_to(x.copy(), x.shape),
}


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("source", READ_ONLY)
@pytest.mark.parametrize("name", ["writes_input", "writes_input_unplanned"])
def test_a_read_only_buffer_is_not_written(name, source, steps):
    """By a model that adds 1 to its first input. Python shares immutable objects."""
    method, case = load(name), case_of(name)
    x = READ_ONLY[source](case.inputs[0])
    assert memoryview(x).readonly
    if steps == 1:
        outputs = method.execute([x, case.inputs[1]])
    else:
        method.set_inputs([x, case.inputs[1]])
        outputs = method.execute()
    check_outputs(outputs, case)
    assert numpy.asarray(x).tobytes() == case.inputs[0].tobytes()


# ---- sources ----------------------------------------------------------------------------------------------


def test_a_numpy_scalar_is_a_tensor_of_no_dimensions():
    method, case = load("rank0"), case_of("rank0")
    check_outputs(method.execute([numpy.float32(case.inputs[0])]), case)
    assert "takes float32" in refusal(DtypeError, method, numpy.float64(1.5))


def test_a_subclass_of_ndarray():
    class Image(numpy.ndarray):
        pass

    method, case = dtype_case("float32")
    check_outputs(method.execute([case.inputs[0].view(Image)]), case)


def test_an_object_with_only_an_array_interface_is_no_memory():
    class Claims:
        __array_interface__ = numpy.zeros((2, 3), numpy.float32).__array_interface__

    words = refusal(InputKindError, dtype_case("float32")[0], Claims())
    assert "a Claims" in words
    assert "numpy.asarray" in words


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_empty_buffer_holds_nothing(dtype):
    with pytest.raises((ShapeError, MemoryMissingError, DtypeError), match="input 0"):
        dtype_case(dtype)[0].execute([numpy.zeros((0, 3), numpy.float32)])


@pytest.mark.cpython
@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
)
class TestMlDtypes:
    def test_arrays_are_taken_by_their_dtype(self, dtype, planned):
        import ml_dtypes

        method, case = dtype_case(dtype, planned)
        check_outputs(method.execute([case.inputs[0].view(getattr(ml_dtypes, dtype))]), case)
        read_only = case.inputs[0].view(getattr(ml_dtypes, dtype))
        read_only.flags.writeable = False
        check_outputs(method.execute([read_only]), case)

    def test_layout_and_shape_are_checked(self, dtype, planned):
        import ml_dtypes

        method, case = dtype_case(dtype, planned)
        array = case.inputs[0].view(getattr(ml_dtypes, dtype))
        assert "contiguous" in refusal(LayoutError, method, numpy.asfortranarray(array))
        assert "contiguous" in refusal(LayoutError, method, array[:, ::-1])
        assert "(3, 2)" in refusal(ShapeError, method, array.reshape(3, 2))
        assert "(6,)" in refusal(ShapeError, method, array.reshape(6))

    def test_another_dtype_is_refused_naming_both(self, dtype, planned):
        import ml_dtypes

        del planned
        array = numpy.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, dtype))
        words = refusal(DtypeError, dtype_case("float32")[0], array)
        assert f"dtype {dtype}" in words
        assert "takes float32" in words


@pytest.mark.cpython
@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e8m0fnu", "int4", "float4_e2m1fn"])
def test_what_the_runtime_does_not_have_of_ml_dtypes_is_refused_by_name(dtype):
    import ml_dtypes

    array = numpy.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, dtype))
    for wanted in ("float32", "bfloat16"):
        words = refusal(DtypeError, dtype_case(wanted)[0], array)
        assert words.startswith("input 0")
        assert dtype in words

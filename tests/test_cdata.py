"""cffi pointers in and out: which C type is which dtype, and that nothing is copied or let go of."""

from __future__ import annotations

import pickle

import cffi
import numpy
import pytest
from support import ITEMSIZE, address_of, case_of, check_outputs, host_inputs, load

import et_cffi
from et_cffi import ScalarType, ffi, from_cdata
from et_cffi.errors import (
    DtypeError,
    ExecuTorchError,
    InputKindError,
    LayoutError,
    MemoryMissingError,
    ShapeError,
)

X = numpy.array([[1, -2], [3, 5]], numpy.float32)
Y = numpy.array([[70, 110], [130, -170]], numpy.float32)

# The C type of the elements of each dtype, going in and coming out, in the words of C.
C_TYPES = {
    "uint8": "uint8_t", "int8": "int8_t", "uint16": "uint16_t", "int16": "int16_t", "uint32": "uint32_t",
    "int32": "int32_t", "uint64": "uint64_t", "int64": "int64_t", "float32": "float", "float64": "double",
    "bool": "bool", "complex64": "float _Complex", "complex128": "double _Complex",
    "float16": "uint16_t", "bfloat16": "uint16_t", "bits16": "uint16_t", "complex32": "uint32_t",
    "qint32": "uint32_t",
}  # fmt: skip
DTYPES = sorted(ITEMSIZE)
NAMED = [name for name in C_TYPES if name not in {"float16", "bfloat16", "bits16", "complex32", "qint32"}]


def c_type(dtype):
    return C_TYPES.get(dtype, "uint8_t")


# ---- going in ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["add", "add_unplanned"])
@pytest.mark.parametrize("declared", ["float[4]", "float[2][2]", "float(*)[2]"])
def test_an_array_of_floats(name, declared):
    whole = ffi.new("float[2][2]", X.tolist())
    memory = {"float[4]": ffi.new("float[]", X.ravel().tolist()), "float[2][2]": whole}.get(
        declared, whole + 0
    )
    result = load(name).execute([from_cdata(memory, (2, 2)), from_cdata(memory, [2, 2], "float32")])[0]
    numpy.testing.assert_array_equal(result, X + X)


def test_a_single_input_needs_no_list():
    case = case_of("digits")
    memory = ffi.new("float[]", case.inputs[0].ravel().tolist())
    check_outputs(load("digits").execute(from_cdata(memory, case.inputs[0].shape)), case)


def test_a_pointer_of_another_ffi():
    other = cffi.FFI()
    memory = other.new("float[4]", X.ravel().tolist())
    result = load("add_unplanned").execute(
        [from_cdata(other.cast("float *", memory), (2, 2), owner=memory), Y]
    )[0]
    numpy.testing.assert_array_equal(result, X + Y)


def test_strides_are_those_of_numpy():
    """In a channels-last method. Fails where strides are taken for counts of elements."""
    case = case_of("conv_channels_last_unplanned")
    array = case.inputs[0]
    laid_out = numpy.ascontiguousarray(array.transpose(0, 2, 3, 1))
    strides = laid_out.transpose(0, 3, 1, 2).strides
    memory = ffi.new("float[]", laid_out.ravel().tolist())
    method = load("conv_channels_last_unplanned")
    check_outputs(method.execute([from_cdata(memory, array.shape, strides=strides)]), case)
    with pytest.raises(LayoutError):
        method.execute([from_cdata(memory, array.shape)])


def test_gaps_are_counted():
    memory = ffi.new("float[5]", [1, 0, 2, 0, 3])
    from_cdata(memory, (3,), strides=(8,))
    with pytest.raises(MemoryMissingError, match="takes 28 bytes, and the array has 20"):
        from_cdata(memory, (4,), strides=(8,))


@pytest.mark.parametrize("dtype", NAMED)
def test_a_c_type_names_its_dtype(dtype):
    pointer = ffi.cast(f"{c_type(dtype)} *", ffi.new("char[128]"))
    assert repr(from_cdata(pointer, (2, 2))) == f"CDataTensor(shape=(2, 2), dtype={dtype})"


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        (name, kind)
        for kind, names in {
            "int": "short, int, long, long long, signed char, ssize_t, intptr_t, ptrdiff_t",
            "uint": "unsigned short, unsigned int, unsigned long, unsigned long long, unsigned char, size_t, "
            "uintptr_t",
        }.items()
        for name in names.split(", ")
    ],
)
def test_an_integer_is_told_by_its_width(declared, kind):
    given = from_cdata(ffi.cast(f"{declared} *", ffi.new("char[64]")), (1,))
    assert repr(given).endswith(f"dtype={kind}{8 * ffi.sizeof(declared)})")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("declared", ["void *", "char *", "unsigned char *", "uint8_t *"])
def test_bytes_may_hold_any_dtype(dtype, declared):
    pointer = ffi.cast(declared, ffi.new("char[128]"))
    for given in (dtype, next(t for t in ScalarType if str(t) == dtype)):
        assert repr(from_cdata(pointer, (2, 2), given)).endswith(f"dtype={dtype})")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "declared", [f"{name} *" for name in dict.fromkeys(C_TYPES.values()) if name != "uint8_t"]
)
def test_any_other_c_type_holds_its_own_and_what_c_has_no_name_for(dtype, declared):
    pointer = ffi.cast(declared, ffi.new("char[128]"))
    if declared == f"{c_type(dtype)} *":
        from_cdata(pointer, (2, 2), dtype)
        return
    with pytest.raises(DtypeError, match=f"does not point at elements of the dtype {dtype}"):
        from_cdata(pointer, (2, 2), dtype)


@pytest.mark.parametrize("name", ["dtype_float16_unplanned", "dtype_bfloat16_unplanned", "dtype_complex64"])
def test_values_of_a_dtype_go_through(name):
    case = case_of(name)
    given, info = [], load(name).metadata
    for index, values in enumerate(case.inputs):
        dtype = str(ScalarType(info.input_tensor_meta(index).dtype()))
        memory = ffi.new("char[]", values.nbytes)
        ffi.memmove(memory, numpy.ascontiguousarray(values).tobytes(), values.nbytes)
        given.append(from_cdata(ffi.cast(f"{c_type(dtype)} *", memory), values.shape, dtype, owner=memory))
    check_outputs(load(name).execute(given), case)


FLOATS = ffi.new("float[4]")
WRONG = {
    "not cdata": (lambda: from_cdata(X, (2, 2)), InputKindError, "a cffi pointer or array"),
    "a number": (lambda: from_cdata(ffi.cast("float", 1), ()), InputKindError, "a cffi pointer or array"),
    "a struct": (lambda: from_cdata(ffi.new("etcffi_memory *"), (1,)), InputKindError, "pointer or array of"),
    "a function": (lambda: from_cdata(ffi.addressof(et_cffi.lib, "etcffi_num_kernels"), (1,)),
                   InputKindError, "a cffi pointer or array"),
    "pointers": (lambda: from_cdata(ffi.new("float *[2]"), (2,)), InputKindError, "a cffi pointer or array"),
    "no dtype": (lambda: from_cdata(ffi.cast("void *", FLOATS), (2, 2)), DtypeError, "pass a dtype"),
    "chars": (lambda: from_cdata(ffi.new("char[4]"), (4,)), DtypeError, "pass a dtype"),
    "another dtype": (lambda: from_cdata(FLOATS, (4,), "int32"), DtypeError, "'float.4.' does not point at"),
    "another width": (lambda: from_cdata(FLOATS, (4,), "float64"), DtypeError, "the dtype float64"),
    "no such dtype": (lambda: from_cdata(FLOATS, (4,), "float31"), DtypeError, "there is no dtype 'float31'"),
    "a number as dtype": (lambda: from_cdata(FLOATS, (4,), 6), DtypeError, "there is no dtype 6"),
    "negative size": (lambda: from_cdata(FLOATS, (-1, 4)), ShapeError, "negative size"),
    "too short": (lambda: from_cdata(FLOATS, (5,)), MemoryMissingError, "20 bytes, and the array has 16"),
    "negative strides": (lambda: from_cdata(FLOATS, (4,), strides=(-4,)), LayoutError, "no whole numbers"),
    "odd strides": (lambda: from_cdata(FLOATS, (2,), strides=(6,)), LayoutError, "no whole numbers"),
    "two strides": (lambda: from_cdata(FLOATS, (2,), strides=(4, 4)), LayoutError, "2 strides for the shape"),
    "bare": (lambda: load("add").execute([FLOATS, Y]), InputKindError, r"input 0.*from_cdata\("),
    "bare alone": (lambda: load("digits").execute(FLOATS), InputKindError, r"from_cdata\(cdata, shape\)"),
    "NULL": (lambda: load("add").execute([from_cdata(ffi.cast("float *", 0), (2, 2)), Y]),
             MemoryMissingError, "input 0"),
    "another shape": (lambda: load("add").execute([from_cdata(FLOATS, (4,)), Y]), ShapeError, "input 0"),
    "a dtype too many": (lambda: load("add").execute([from_cdata(ffi.new("int[4]"), (2, 2)), Y]),
                         DtypeError, "input 0 has the dtype int32"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said(call, error, words):
    with pytest.raises(error, match=words) as raised:
        call()
    assert isinstance(raised.value, ExecuTorchError)


@pytest.mark.parametrize("strides", [None, (400, 4)])
def test_nothing_is_read_of_no_elements(strides):
    case = case_of("empty")
    shape = case.inputs[0].shape
    assert shape == (0, 3)
    check_outputs(load("empty").execute([from_cdata(ffi.new("float[0]"), shape, strides=strides)]), case)


def test_it_is_not_pickled():
    with pytest.raises(TypeError, match="memory of this process"):
        pickle.dumps(from_cdata(FLOATS, (4,)))


# ---- coming out --------------------------------------------------------------------------------------------


def test_a_result_is_pointed_at_and_not_copied():
    result = load("add").execute([X, Y])[0]
    pointer = result.cdata()
    assert ffi.typeof(pointer) is ffi.typeof("float *")
    assert list(pointer[0:4]) == (X + Y).ravel().tolist()
    pointer[3] = 1234.5
    assert numpy.asarray(result)[1, 1] == 1234.5
    assert address_of(pointer) == numpy.asarray(result).__array_interface__["data"][0]


def model_of(dtype):
    return f"dtype_{dtype}_unplanned"


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "bits16", "complex32", "complex64", "complex128"])
def test_the_type_of_a_result(dtype):
    case = case_of(model_of(dtype))
    for output, expected in zip(load(model_of(dtype)).execute(host_inputs(case)), case.outputs):
        pointer = output.cdata()
        assert ffi.typeof(pointer) == ffi.typeof(f"{c_type(str(output.dtype))} *")
        data = bytes(ffi.buffer(ffi.cast("char *", pointer), output.nbytes))
        assert data == numpy.ascontiguousarray(expected).tobytes()

"""An input that a delegate may read is pointed at only if its backend has said what it needs of the memory;
one that has said nothing may need anything, so its inputs are copied, with room at the end."""

from __future__ import annotations

import ctypes
import mmap
import signal

import model_index
import numpy
import pytest
from forking import in_a_child
from support import load

from et_cffi import Runtime, ScalarType, ffi, lib

X = numpy.array([[1, -2], [3, 5]], numpy.float32)
Y = numpy.array([70, 110, 130, -170], numpy.float32)
Z = numpy.array([9, -20, 31], numpy.float32)
NEW = 1000.0


def pointed_at(method, x, y, z):
    """Which of the inputs the run reads after the caller has written to all."""
    method.set_inputs([x, y, z])
    before = [numpy.array(value) for value in (x, y, z)]
    for value in (x, y, z):
        numpy.asarray(value)[...] += NEW
    added, doubled = (numpy.asarray(output) for output in method.execute())
    shift = added - (before[0] + before[1].reshape(2, 2))
    assert (shift == shift[0, 0]).all()
    z_shift = doubled - before[2] * 2
    assert (z_shift == z_shift[0]).all()
    for value in (x, y, z):
        numpy.asarray(value)[...] -= NEW
    return {0: "none", 1: "one", 2: "both"}[shift[0, 0] / NEW], bool(z_shift[0])


def aligned(values, alignment, offset=0):
    """The values at an address that is a multiple of `alignment`, and `offset` bytes."""
    memory = bytearray(values.nbytes + 2 * alignment + offset)
    address = numpy.frombuffer(memory, numpy.uint8).__array_interface__["data"][0]
    start = -address % alignment + offset
    array = numpy.frombuffer(memory, values.dtype, values.size, start).reshape(values.shape)
    array[...] = values
    return array


def as_result(values):
    """The same values in a result, which has room behind its elements."""
    return load("swap").execute([values, values])[0]


def test_inputs_of_a_backend_that_has_not_answered_are_copied(backend):
    """What the delegate never reads is pointed at all the same. Fails where unknown counts as needing
    nothing (input.cpp, may_point_at: `!slot.needs_unknown`), and where a view of an input is not followed
    (schema.cpp, backends_reached: shares_memory)."""
    assert pointed_at(backend.load(0), X.copy(), Y.copy(), Z.copy()) == ("none", True)


def test_an_answer_is_taken_by_methods_loaded_afterwards(backend):
    """Fails where set_input_needs does not reach the table (input.cpp, etcffi_set_backend_needs)."""
    before = backend.load(1)
    Runtime.get().backend_registry.set_input_needs(backend.name(1), padding=0, alignment=1)
    assert pointed_at(backend.load(1), X.copy(), Y.copy(), Z.copy()) == ("both", True)
    assert pointed_at(before, X.copy(), Y.copy(), Z.copy()) == ("none", True)


def test_padding(backend):
    """An array ends with its elements; a result has room behind them. Fails where may_point_at does not
    compare the padding (input.cpp), and where a block has no room (block.h: kRoom)."""
    needs = Runtime.get().backend_registry.set_input_needs
    needs(backend.name(2), padding=1, alignment=1)
    assert pointed_at(backend.load(2), X.copy(), Y.copy(), Z.copy()) == ("none", True)
    needs(backend.name(2), padding=64, alignment=1)
    assert pointed_at(backend.load(2), as_result(X), Y.copy(), Z.copy()) == ("one", True)
    needs(backend.name(2), padding=65, alignment=1)
    assert pointed_at(backend.load(2), as_result(X), Y.copy(), Z.copy()) == ("none", True)


def test_alignment(backend):
    """Fails where may_point_at does not compare the alignment (input.cpp)."""
    Runtime.get().backend_registry.set_input_needs(backend.name(3), padding=0, alignment=128)
    method = backend.load(3)
    good, bad = aligned(X, 128), aligned(X, 128, 64)
    assert pointed_at(method, good, aligned(Y, 128), Z.copy()) == ("both", True)
    assert pointed_at(method, bad, aligned(Y, 128), Z.copy()) == ("one", True)
    assert pointed_at(method, bad, aligned(Y, 128, 64), Z.copy()) == ("none", True)


@pytest.mark.parametrize(("padding", "alignment"), [(-1, 1), (0, 0), (0, 3), (0, -4)])
def test_an_answer_that_cannot_be(padding, alignment):
    with pytest.raises(ValueError, match="padding is 0 or more and alignment a power of two"):
        Runtime.get().backend_registry.set_input_needs("Nobody", padding=padding, alignment=alignment)


# ---- XNNPACK's answer -------------------------------------------------------------------------------------


MODELS = ["conv_xnnpack_unplanned", "mlp_dynamic_xnnpack_unplanned", "xnnpack_kinds_unplanned"]
MODELS.append("xnnpack_halves_unplanned")
METHODS = [(name, method) for name in MODELS for method in model_index.models()[name]["methods"]]


class Guarded:
    """Some bytes, then `room` bytes, then a page that nobody can read."""

    def __init__(self, data: bytes, room: int) -> None:
        page = mmap.PAGESIZE
        pages = -(-(len(data) + room) // page)
        self._area = mmap.mmap(-1, (pages + 1) * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._area))
        start = pages * page - room - len(data)
        self._area[start : start + len(data)] = data
        libc = ctypes.CDLL(None, use_errno=True)
        self.end = base + pages * page
        assert libc.mprotect(ctypes.c_void_p(self.end), ctypes.c_size_t(page), 0) == 0
        self.address = base + start


def describe(array, address, room):
    """An input of the C API: an array's values at an address, and bytes that may be read behind them."""
    values = ffi.new("etcffi_value[1]")
    values[0].tag = lib.ETCFFI_Tag_Tensor
    memory = values[0].memory
    memory.data, memory.nbytes = ffi.cast("void *", address), array.nbytes + room
    memory.scalar_type = ScalarType.Half if array.dtype == numpy.float16 else ScalarType.Float
    memory.ndim, memory.flags = array.ndim, lib.ETCFFI_PINNED
    memory.sizes[0 : array.ndim] = array.shape
    return values


def room_wanted(method, array):
    """The least room behind an input with which it is pointed at."""
    for room in range(65):
        data = bytearray(array.nbytes + room + 64)
        address = numpy.frombuffer(data, numpy.uint8).__array_interface__["data"][0]
        values = describe(array, address + -address % 64, room)
        assert lib.etcffi_method_set_inputs(method._handle, values, 1) == 0
        if values[0].pointed_at:
            return room
    raise AssertionError("never pointed at")


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_xnnpack_reads_no_further_than_it_said(name, method):
    """Each input ends, with the room that XNNPACK asked for, right before a page that cannot be read. Its
    float16 kernels load 16 bytes where a single element is left, so that 16 it is (XNN_EXTRA_BYTES in its
    header). Fails, on a CPU with such kernels, where the answer is less than 14 (input.cpp,
    needs_by_backend)."""
    for case in model_index.cases(name, method):
        (array,) = case.inputs
        room = room_wanted(load(name, method), array)

        def run(array=array, room=room, case=case):
            guarded = Guarded(array.tobytes(), room)
            loaded = load(name, method)
            values = describe(array, guarded.address, room)
            assert lib.etcffi_method_set_inputs(loaded._handle, values, 1) == 0
            assert values[0].pointed_at
            assert lib.etcffi_method_execute(loaded._handle) == 0
            return numpy.allclose(loaded.get_outputs()[0], case.outputs[0], case.rtol, case.atol)

        assert in_a_child(run) == 0


def test_the_page_behind_cannot_be_read():
    """The control of the one above."""

    def read():
        guarded = Guarded(b"12345678", 8)
        assert ctypes.string_at(guarded.end - 16, 16) == b"12345678" + bytes(8)
        ctypes.string_at(guarded.end - 8, 9)
        return True

    assert in_a_child(read) == -signal.SIGSEGV


def test_xnnpack_has_answered_16():
    """Fails where the answer is another (input.cpp, needs_by_backend)."""
    (array,) = model_index.cases("conv_xnnpack_unplanned", "forward")[0].inputs
    assert room_wanted(load("conv_xnnpack_unplanned"), array) == 16


def test_an_array_is_copied_for_xnnpack():
    """An array has no room behind its elements."""
    case, other = model_index.cases("conv_xnnpack_unplanned", "forward")
    method = load("conv_xnnpack_unplanned")
    (array,) = case.inputs
    method.set_inputs([array])
    array[...] = other.inputs[0]
    numpy.testing.assert_allclose(method.execute()[0], case.outputs[0], case.rtol, case.atol)

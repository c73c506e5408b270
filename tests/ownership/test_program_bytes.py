"""The bytes that a program is read out of are held as long as it is read: by the program and by each of its
methods. One reference while anything is loaded, none after."""

from __future__ import annotations

import gc
import itertools
import mmap
import sys
import weakref

import model_index
import numpy
import pytest
from holding import Bytes, X, Y, settle
from support import case_of

from et_cffi import Runtime
from et_cffi.errors import InvalidProgramError

NAMES = ["add_unplanned", "conv_xnnpack_unplanned", "constant_output"]


def fresh_bytes(name):
    """Bytes that nobody else holds."""
    return bytes(bytearray(model_index.path(name).read_bytes()))


def load_program(source):
    return Runtime.get().load_program(source)


def check(method, name):
    case = case_of(name)
    output = method.execute(case.inputs)[0]
    numpy.testing.assert_allclose(output, case.outputs[0], case.rtol, case.atol)


def garbage():
    return [bytearray(b"\xff" * 5000) for _ in range(200)]


@pytest.mark.parametrize("name", NAMES)
def test_a_program_from_bytes_that_nobody_else_holds(name):
    """Fails where a method does not hold the bytes (program.py: `Destructor(lib.etcffi_method_release,
    self._source)`)."""
    method = load_program(fresh_bytes(name)).load_method("forward")
    settle()
    assert garbage()
    check(method, name)
    del method
    settle()


@pytest.mark.cpython
@pytest.mark.parametrize("name", NAMES)
def test_one_reference_while_anything_is_loaded_and_none_after(name):
    """Fails where the bytes are held twice, or beyond the last of the program and its methods."""
    data = fresh_bytes(name)
    before = sys.getrefcount(data)
    program = load_program(data)
    assert sys.getrefcount(data) == before + 1
    methods = [program.load_method("forward"), program.load_method("forward")]
    metadata = program.metadata("forward")
    assert sys.getrefcount(data) == before + 1
    del program
    assert sys.getrefcount(data) == before + 1
    del methods[0]
    assert sys.getrefcount(data) == before + 1
    check(methods[0], name)
    methods[0].close()
    assert sys.getrefcount(data) == before
    assert metadata.num_inputs() == len(case_of(name).inputs)


@pytest.mark.parametrize("order", list(itertools.permutations(["program", "first", "second"])), ids="-".join)
def test_the_bytes_outlive_whatever_reads_them(order):
    """Watched through a read-only mapping, which can be referred to weakly. Fails as above."""
    name = "conv_xnnpack_unplanned"

    class Mapping(mmap.mmap):
        pass

    with model_index.path(name).open("rb") as file:
        data = Mapping(file.fileno(), 0, access=mmap.ACCESS_READ)
    gone = weakref.ref(data)
    program = load_program(data)
    alive = {"program": program, "first": program.load_method("forward")}
    alive["second"] = program.load_method("forward")
    del program, data
    for left, dropped in zip((2, 1, 0), order):
        del alive[dropped]
        settle()
        assert len(alive) == left
        assert (gone() is not None) == bool(left)
        for each in alive:
            check(alive[each] if each != "program" else alive[each].load_method("forward"), name)
    assert gone() is None


def writable_sources(data):
    memory = Bytes(data)
    yield memory, memory
    yield memoryview(memory), memory
    yield memoryview(memory).toreadonly(), memory
    array = numpy.frombuffer(memory, numpy.uint8)
    yield array, memory
    frozen = array.view()
    frozen.flags.writeable = False
    yield frozen, memory
    yield memoryview(frozen), memory
    mapping = mmap.mmap(-1, len(data))
    mapping[:] = data
    yield mapping, mapping
    yield memoryview(mapping).toreadonly(), mapping


@pytest.mark.parametrize("which", range(8))
def test_bytes_that_somebody_may_write_are_copied(which):
    """A program that changed after it was checked could be anything. Fails where a read-only view of such
    bytes is read in place (_buffer.py, may_change)."""
    source, memory = list(writable_sources(fresh_bytes("constant_output")))[which]
    program = load_program(source)
    method = program.load_method("forward")
    memory[:] = b"\xff" * len(memory)
    check(method, "constant_output")
    check(program.load_method("forward"), "constant_output")


def test_copied_bytes_are_not_held():
    """Fails where what was copied is kept all the same (program.py: `kept = None if copied`)."""
    memory = Bytes(fresh_bytes("add"))
    gone = weakref.ref(memory)
    method = load_program(memory).load_method("forward")
    del memory
    settle()
    assert gone() is None
    numpy.testing.assert_array_equal(method.execute([X, Y])[0], X + Y)


@pytest.mark.parametrize("offset", range(1, 17))
def test_bytes_at_any_address(offset):
    """Fails where bytes that are not aligned as the runtime wants them are read in place (program.cpp,
    readable_bytes)."""
    data = fresh_bytes("conv_xnnpack_unplanned")
    program = load_program(memoryview(b"\0" * offset + data)[offset:])
    check(program.load_method("forward"), "conv_xnnpack_unplanned")


@pytest.mark.cpython
def test_bytes_of_a_program_that_was_refused_are_not_held():
    """Fails where a refused load leaves its bytes behind."""
    data = fresh_bytes("add")[:-1]
    before = sys.getrefcount(data)
    for _ in range(3):
        with pytest.raises(InvalidProgramError):
            load_program(data)
    assert sys.getrefcount(data) == before


def test_a_file_that_is_gone(tmp_path):
    """A mapping outlives the file's name."""

    def load(path):
        path.write_bytes(fresh_bytes("conv_xnnpack_unplanned"))
        program = load_program(path)
        path.unlink()
        return program.load_method("forward")

    method = load(tmp_path / "model.pte")
    check(method, "conv_xnnpack_unplanned")


@pytest.mark.parametrize("name", NAMES)
def test_a_method_outlives_a_program_that_was_mapped(name):
    """Fails where a method does not hold its program, and that the file (method.h: `program_(program)`)."""
    method = load_program(model_index.path(name)).load_method("forward")
    settle()
    assert garbage()
    check(method, name)


def test_a_cycle_through_the_bytes_is_collected():
    """Fails where what holds them hides them from the collector."""

    class Mapping(mmap.mmap):
        method = None

    with model_index.path("add").open("rb") as file:
        data = Mapping(file.fileno(), 0, access=mmap.ACCESS_READ)
    data.method = load_program(data).load_method("forward")
    numpy.testing.assert_array_equal(data.method.execute([X, Y])[0], X + Y)
    gone = weakref.ref(data)
    del data
    for _ in range(4):
        gc.collect()
    assert gone() is None

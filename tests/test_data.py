"""Weights outside of the program: .ptd files and buffers."""

from __future__ import annotations

import gc
import struct
import weakref
from pathlib import Path

import model_index
import numpy
import pytest

from et_cffi import Runtime, errors

PTE = model_index.path("linear_external")
PTD = model_index.DIRECTORY / "linear_external.ptd"


def check(program):
    (case,) = model_index.cases("linear_external", "forward")
    with program.load_method("forward") as method:
        result = numpy.asarray(method.execute(case.inputs)[0])
    assert numpy.allclose(result, case.outputs[0], case.rtol, case.atol)
    return result


def load(data_path, source=PTE):
    return Runtime.get().load_program(source, data_path=data_path)


@pytest.mark.parametrize("source", [PTE, PTE.read_bytes()], ids=["path", "buffer"])
@pytest.mark.parametrize(
    "data_path",
    [PTD, str(PTD), [PTD], (str(PTD),), PTD.read_bytes(), bytearray(PTD.read_bytes()), [PTD.read_bytes()]],
    ids=["Path", "str", "list", "tuple", "bytes", "bytearray", "list of bytes"],
)
def test_every_way_of_giving_data(source, data_path):
    check(load(data_path, source))


def test_data_at_an_odd_address():
    content = PTD.read_bytes()
    backing = numpy.zeros(len(content) + 1, numpy.uint8)
    backing[1:] = numpy.frombuffer(content, numpy.uint8)
    backing.flags.writeable = False
    check(load(backing[1:]))


@pytest.mark.linux
def test_a_file_is_mapped_and_not_read():
    program = load(PTD)
    assert str(PTD) in Path("/proc/self/maps").read_text(encoding="utf-8")
    check(program)


def test_nobody_else_holds_the_buffer():
    method = load(bytes(bytearray(PTD.read_bytes()))).load_method("forward")
    gc.collect()
    (case,) = model_index.cases("linear_external", "forward")
    result = numpy.asarray(method.execute(case.inputs)[0])
    assert numpy.allclose(result, case.outputs[0], case.rtol, case.atol)


@pytest.mark.parametrize("given", [lambda content: content, lambda content: memoryview(content).toreadonly()])
def test_a_buffer_that_somebody_can_write_is_copied(given):
    content = bytearray(PTD.read_bytes())
    program = load(given(content))
    content[:] = bytes(len(content))
    check(program)


def test_a_read_only_buffer_is_held_until_the_last_method_is_gone():
    array = numpy.frombuffer(PTD.read_bytes(), numpy.uint8).copy()
    array.flags.writeable = False
    held = weakref.ref(array)
    method = load(array).load_method("forward")
    del array
    collect()
    assert held() is not None
    method.close()
    del method
    collect()
    assert held() is None


def collect():
    for _ in range(4):
        gc.collect()


def split() -> list[bytes]:
    """The file's two tensors, in a file each: the names of the other one are changed."""
    content = PTD.read_bytes()
    assert content.count(b"weight") == content.count(b"bias") == 1
    return [content.replace(b"bias", b"sias"), content.replace(b"weight", b"veight")]


def test_several_files(tmp_path):
    paths = [tmp_path / "weight.ptd", tmp_path / "bias.ptd"]
    for path, content in zip(paths, split()):
        path.write_bytes(content)
    check(load(paths))
    check(load([paths[1], split()[0]]))
    with pytest.raises(errors.DataMissingError, match=r"not all of them are in .*weight\.ptd'.*: 'bias'"):
        load(paths[0]).load_method("forward")


def test_missing_data_is_named():
    with pytest.raises(errors.DataMissingError, match="no data file was given: 'bias', 'weight'") as caught:
        load(None).load_method("forward")
    assert isinstance(caught.value, KeyError)


def test_a_name_that_two_files_have():
    pattern = r"'weight' is in both '.*linear_external\.ptd' and data buffer 1|'bias' is in both"
    with pytest.raises(errors.InvalidDataError, match=pattern):
        load([PTD, PTD.read_bytes()])


def test_a_missing_file():
    with pytest.raises(FileNotFoundError, match=r"no data file '/nowhere/x\.ptd'") as caught:
        load("/nowhere/x.ptd")
    assert caught.value.filename == "/nowhere/x.ptd"
    assert isinstance(caught.value, errors.ExecuTorchError)


@pytest.mark.parametrize("given", [3, [3], [None], object()])
def test_what_is_no_data(given):
    with pytest.raises(TypeError, match="data_path is a path"):
        load(given)


def damaged():
    content = PTD.read_bytes()
    yield "empty", b"", "only 0 bytes"
    yield "short", content[:40], "only 40 bytes"
    yield "other", PTE.read_bytes(), "lacks the identifier"
    yield "cut", content[:-1], "truncated"
    yield "magic", content[:8] + b"XXXX" + content[12:], "header cannot be read"
    root = struct.pack("<I", 1 << 30)
    yield "root", root + content[4:], "does not verify"
    begin = content.index(b"FH01")
    huge = struct.pack("<Q", (1 << 64) - 8)
    yield (
        "overflow",
        content[: begin + 24] + huge + content[begin + 32 :],
        "sizes that cannot be|cannot be read",
    )


@pytest.mark.parametrize(("name", "content", "says"), list(damaged()), ids=[name for name, _, _ in damaged()])
def test_invalid_data_names_the_file(tmp_path, name, content, says):
    path = tmp_path / f"{name}.ptd"
    path.write_bytes(content)
    with pytest.raises(errors.InvalidDataError, match=says) as caught:
        load(path)
    assert f"{name}.ptd" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_data_that_lies_outside_of_the_file():
    content, sizes = PTD.read_bytes(), [struct.pack("<Q", 4 * count) for count in (3, 15)]
    assert all(content.count(size) for size in sizes)
    for size in sizes:
        with pytest.raises(errors.InvalidDataError, match=r"buffer 0 .*: the data '\w+' lies outside"):
            load(content.replace(size, struct.pack("<Q", 1 << 20)))
        with pytest.raises(errors.InvalidDataError, match=r"the data '\w+' is shorter than its own shape"):
            load(content.replace(size, struct.pack("<Q", 4)))


def test_every_byte_changed_is_an_error_or_a_working_program():
    content, codes = PTD.read_bytes(), set()
    for index in range(len(content)):
        changed = bytearray(content)
        changed[index] ^= 0xFF
        try:
            with load(bytes(changed)).load_method("forward") as method:
                method.execute(model_index.cases("linear_external", "forward")[0].inputs)
        except errors.ExecuTorchError as error:
            codes.add(type(error).__name__)
    assert {"InvalidDataError", "DataMissingError"} <= codes

"""A program goes to another process; what is loaded of it does not."""

from __future__ import annotations

import copy
import mmap
import multiprocessing
import pickle
import shutil

import model_index
import numpy
import pytest
from support import case_of, check_outputs, load

from et_cffi import MethodPool, Runtime, Verification
from et_cffi.errors import DataMissingError, DataNotFoundError, ProgramNotFoundError
from et_cffi.portable_lib import _load_for_executorch

MODEL = model_index.path("conv_xnnpack")
EXTERNAL = model_index.path("linear_external")
PTD = EXTERNAL.with_name("linear_external.ptd")
PROTOCOLS = pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))


def load_program(source, **options):
    return Runtime.get().load_program(source, **options)


def check(program, name):
    case = case_of(name)
    check_outputs(program.load_method("forward").execute(case.inputs), case)


def run_there(pickled, inputs):
    """In another process."""
    program = pickle.loads(pickled)
    return [numpy.array(output) for output in program.load_method("forward").execute(inputs)]


def in_a_new_process(function, *arguments):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


@PROTOCOLS
def test_a_program_of_a_path_is_loaded_from_it_again(protocol, tmp_path, monkeypatch):
    """Fails where the path is kept as it was given."""
    shutil.copy(MODEL, tmp_path / "model.pte")
    monkeypatch.chdir(tmp_path)
    program = load_program("model.pte")
    monkeypatch.chdir("/")
    pickled = pickle.dumps(program, protocol)
    assert len(pickled) < 500
    check(pickle.loads(pickled), "conv_xnnpack")
    (tmp_path / "model.pte").unlink()
    with pytest.raises(ProgramNotFoundError, match=r"model\.pte"):
        pickle.loads(pickled)
    check(program, "conv_xnnpack")


SOURCES = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "array": lambda data: numpy.frombuffer(data, numpy.uint8),
}


@PROTOCOLS
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_the_bytes_of_a_program_go_along(protocol, make):
    program = load_program(make(MODEL.read_bytes()))
    pickled = pickle.dumps(program, protocol)
    assert MODEL.read_bytes() in pickled
    check(pickle.loads(pickled), "conv_xnnpack")


def test_a_file_object_was_read_and_its_bytes_go_along(tmp_path):
    path = tmp_path / "model.pte"
    shutil.copy(MODEL, path)
    with path.open("rb") as file:
        program = load_program(file)
    path.unlink()
    check(pickle.loads(pickle.dumps(program)), "conv_xnnpack")


def test_a_writable_buffer_goes_along_as_it_was_when_it_was_loaded():
    data = bytearray(MODEL.read_bytes())
    program = load_program(data)
    data[:] = bytes(len(data))
    check(pickle.loads(pickle.dumps(program)), "conv_xnnpack")


def test_bytes_go_out_of_band_without_a_copy():
    with MODEL.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    buffers = []
    pickled = pickle.dumps(load_program(data), 5, buffer_callback=buffers.append)
    assert len(pickled) < 500
    (buffer,) = buffers
    assert numpy.shares_memory(numpy.frombuffer(buffer, "u1"), numpy.frombuffer(data, "u1"))
    check(pickle.loads(pickled, buffers=[bytearray(data)]), "conv_xnnpack")


@pytest.mark.parametrize("source", [MODEL, MODEL.read_bytes()], ids=["path", "bytes"])
def test_another_process_runs_what_was_pickled(source):
    case = case_of("conv_xnnpack")
    outputs = in_a_new_process(run_there, pickle.dumps(load_program(source)), case.inputs)
    assert len(outputs) == len(case.outputs)
    for output, expected in zip(outputs, case.outputs):
        numpy.testing.assert_allclose(output, expected, case.rtol, case.atol)


DATA = {"path": PTD, "list": [PTD], "bytes": PTD.read_bytes(), "bytearray": bytearray(PTD.read_bytes())}


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
@PROTOCOLS
def test_its_data_files_go_the_same_way(data, protocol):
    program = load_program(EXTERNAL, data_path=data)
    pickled = pickle.dumps(program, protocol)
    assert (PTD.read_bytes() in pickled) == isinstance(data, (bytes, bytearray))
    check(pickle.loads(pickled), "linear_external")


def test_a_program_without_its_data_is_pickled_without_it():
    again = pickle.loads(pickle.dumps(load_program(EXTERNAL)))
    with pytest.raises(DataMissingError):
        again.load_method("forward")


def test_a_relative_data_file_is_found_from_another_directory(tmp_path, monkeypatch):
    shutil.copy(PTD, tmp_path / "weights.ptd")
    monkeypatch.chdir(tmp_path)
    program = load_program(EXTERNAL, data_path="weights.ptd")
    monkeypatch.chdir("/")
    pickled = pickle.dumps(program)
    check(pickle.loads(pickled), "linear_external")
    (tmp_path / "weights.ptd").unlink()
    with pytest.raises(DataNotFoundError, match=r"weights\.ptd"):
        pickle.loads(pickled)


@pytest.mark.parametrize("verification", Verification)
def test_it_is_verified_as_it_was(verification):
    program = load_program(MODEL, verification=verification)
    assert pickle.loads(pickle.dumps(program))._verification is verification


def test_pickled_once_more_it_is_the_same():
    pickled = pickle.dumps(load_program(MODEL.read_bytes()))
    assert pickle.dumps(pickle.loads(pickled)) == pickled


def test_a_copy_is_a_program_of_its_own():
    program = load_program(MODEL)
    for made in (copy.copy(program), copy.deepcopy(program)):
        assert made is not program
        check(made, "conv_xnnpack")


def test_a_program_that_records_is_refused():
    program = load_program(MODEL, enable_etdump=True)
    with pytest.raises(TypeError, match=r"enable_etdump=True"):
        pickle.dumps(program)


def test_what_is_loaded_of_a_program_is_refused():
    method = load("add")
    with MethodPool(load_program(MODEL), "forward", 1) as pool:
        for refused, name in ((method, "Method"), (pool, "MethodPool")):
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                with pytest.raises(TypeError, match=f"a {name} holds .*pickle its program"):
                    pickle.dumps(refused, protocol)
    with pytest.raises(TypeError, match="load it again in each process"):
        pickle.dumps(_load_for_executorch(str(MODEL)))

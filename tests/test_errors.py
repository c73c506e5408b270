"""Exceptions, the runtime's log lines, and checks that would end the process."""

from __future__ import annotations

import logging
import pickle
import re
import threading

import model_index
import numpy
import pytest
from support import BUNDLED, add_inputs, case_of, check_outputs, child, host_inputs, load, program

import et_cffi
from et_cffi import ExecuTorchError, Runtime, errors, lib
from et_cffi.errors import (
    BackendMissingError,
    InputCountError,
    InvalidProgramError,
    MethodStateError,
    OperatorMissingError,
    RuntimeCheckError,
    ThreadError,
    UnknownMethodError,
)

# ---- the hierarchy ----------------------------------------------------------------------------------------

# What a Python user expects to catch.
BUILTINS = {
    "ProgramNotFoundError": FileNotFoundError,
    "InvalidProgramError": ValueError,
    "DataNotFoundError": FileNotFoundError,
    "InvalidDataError": ValueError,
    "DataMissingError": KeyError,
    "VerificationError": RuntimeError,
    "InvalidETDumpError": ValueError,
    "LibraryError": OSError,
    "AlreadyRegisteredError": RuntimeError,
    "ArgumentError": ValueError,
    "UnknownMethodError": KeyError,
    "OperatorMissingError": NotImplementedError,
    "BackendMissingError": NotImplementedError,
    "InputCountError": ValueError,
    "InputKindError": TypeError,
    "DtypeError": ValueError,
    "ShapeError": ValueError,
    "LayoutError": ValueError,
    "DeviceError": BufferError,
    "MemoryMissingError": ValueError,
    "MemoryMovedError": BufferError,
    "MethodStateError": RuntimeError,
    "ThreadError": MethodStateError,
    "RuntimeCheckError": RuntimeError,
    "AllocationError": MemoryError,
}


def test_every_exception_is_listed_here():
    defined = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, ExecuTorchError) and each is not ExecuTorchError
    }
    assert defined == set(BUILTINS)


@pytest.mark.parametrize("name", BUILTINS)
def test_every_exception_is_the_builtin_that_is_expected_too(name):
    kind = getattr(errors, name)
    assert issubclass(kind, BUILTINS[name])
    assert issubclass(kind, ExecuTorchError)
    assert issubclass(kind, RuntimeError)
    made = kind("words", "model.pte") if BUILTINS[name] is FileNotFoundError else kind("words")
    assert str(made) == "words"
    assert (made.code, made.log) == (0, "")
    with pytest.raises(BUILTINS[name]):
        raise made


def test_the_base_is_a_runtime_error():
    """Which is what the official binding raises."""
    assert ExecuTorchError.__mro__[1] is RuntimeError
    assert et_cffi.ExecuTorchError is errors.ExecuTorchError


# ---- code, words and log ----------------------------------------------------------------------------------


def failing(name, number=0):
    """The exception of a case that fails, and the method."""
    method = load(name)
    with pytest.raises(ExecuTorchError) as caught:
        method.execute(host_inputs(case_of(name, number=number)))
    return caught.value, method


def test_an_error_of_the_runtime():
    error, _ = failing("run_fails")
    assert type(error) is ExecuTorchError
    assert error.code == 0x12
    assert "InvalidArgument (0x12)" in str(error)
    assert "Unhandled dtype UInt16 for cat.out" in str(error)
    lines = error.log.splitlines()
    assert "E op_cat.cpp" in lines[0]
    assert lines[0].endswith("Unhandled dtype UInt16 for cat.out")
    assert all(line[:2] in {"E ", "I ", "D ", "F "} for line in lines)


@pytest.mark.parametrize("name", [n for n, m in model_index.models().items() if m["expect"] == "run fails"])
def test_every_model_that_fails_says_what_it_should(name):
    model = model_index.models()[name]
    described = model["methods"]["forward"]
    for number in described["fails"] or range(described["cases"]):
        method, case = load(name), case_of(name, number=number)
        inputs = host_inputs(case) if name != "int_input" else case.inputs
        with pytest.raises(ExecuTorchError) as caught:
            method.execute(inputs)
        if name == "int_input":  # refused before the runtime could say it, and naming both kinds
            assert str(caught.value) == "input 1 is an int, and the method takes None"
            assert caught.value.code == lib.ETCFFI_BadKind
        else:
            assert re.search(model["says"], str(caught.value))
            assert re.search(model["says"], caught.value.log)
            assert caught.value.code == 0x12


@pytest.mark.parametrize("name", [n for n, m in model_index.models().items() if m["expect"] == "load fails"])
def test_every_model_that_does_not_load_says_why(name):
    model = model_index.models()[name]
    with pytest.raises(ExecuTorchError) as caught:
        Runtime.get().load_program(model_index.path(name)).load_method(next(iter(model["methods"])))
    says = {
        "identifier": "is a bundled program",
        "BackendWithCompilerDemo|device": r"on device cuda:[01], and no DeviceAllocator is registered",
    }.get(model["says"], model["says"])
    assert re.search(says, str(caught.value)) or re.search(says, caught.value.log)
    assert caught.value.code >= 0x1000
    assert not set(model["needs"]) & BUNDLED


@pytest.mark.parametrize(
    ("act", "kind", "code"),
    [
        (lambda: Runtime.get().load_program(b"nonsense" * 20), InvalidProgramError, "BadFile"),
        (lambda: load("missing_operators"), OperatorMissingError, "MissingOperator"),
        (lambda: load("missing_backend"), BackendMissingError, "MissingBackend"),
        (lambda: load("add").execute([]), InputCountError, "BadCount"),
        (lambda: load("add").execute([1, 2]), errors.InputKindError, "BadKind"),
        (lambda: load("add").execute([numpy.zeros((2, 2))] * 2), errors.DtypeError, "BadDtype"),
        (lambda: load("add").execute([numpy.zeros((2, 3), "f4")] * 2), errors.ShapeError, "BadShape"),
        (lambda: load("add").execute([add_inputs()[0].T] * 2), errors.LayoutError, "BadLayout"),
        (lambda: load("add").execute(), MethodStateError, "InputsIncomplete"),
        (lambda: load("add").get_outputs(), MethodStateError, "NotExecuted"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_codes_of_this_library(act, kind, code):
    with pytest.raises(kind) as caught:
        act()
    assert type(caught.value) is kind
    assert caught.value.code == getattr(lib, f"ETCFFI_{code}") >= 0x1000


def test_words_are_not_quoted():
    """KeyError and OSError have a __str__ of their own."""
    with pytest.raises(UnknownMethodError) as caught:
        load("add", "backward")
    assert str(caught.value).startswith("the program has no method 'backward'")
    with pytest.raises(FileNotFoundError) as caught:
        Runtime.get().load_program("/no/such.pte")
    assert str(caught.value) == "there is no file '/no/such.pte'"


def test_the_log_is_of_the_failed_call_alone():
    error, method = failing("index_out_of_range", 1)
    assert "9 >= weight" in error.log
    with pytest.raises(ExecuTorchError) as caught:
        method.execute([numpy.zeros(3, numpy.int32)])
    assert caught.value.log == ""
    case = case_of("index_out_of_range", number=2)
    check_outputs(method.execute(case.inputs), case)
    again, _ = failing("index_out_of_range", 1)
    assert again.log == error.log
    assert again.log.count("9 >= weight") == 1


def test_each_thread_has_its_own_words():
    """Failures of two methods at once do not mix."""
    wrong = []

    def fail(name, number, says, never):
        for _ in range(50):
            error, _ = failing(name, number)
            if says not in str(error) or never in str(error) or never in error.log:
                wrong.append(str(error))

    threads = [
        threading.Thread(target=fail, args=("run_fails", 0, "Unhandled dtype", "9 >= weight")),
        threading.Thread(target=fail, args=("index_out_of_range", 1, "9 >= weight", "Unhandled dtype")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_error_at_run_time_leaves_the_method_usable():
    method = load("index_out_of_range")
    for case in model_index.cases("index_out_of_range", "forward"):
        if case.fails:
            with pytest.raises(ExecuTorchError, match="9 >= weight"):
                method.execute(case.inputs)
            with pytest.raises(MethodStateError):
                method.get_outputs()
        else:
            check_outputs(method.execute(case.inputs), case)


# ---- stderr and logging -----------------------------------------------------------------------------------


def test_a_run_writes_nothing(capfd):
    for name in ("add", "conv_xnnpack", "quantized_portable", "mlp_dynamic_unplanned"):
        case = case_of(name)
        check_outputs(load(name).execute(case.inputs), case)
    assert capfd.readouterr() == ("", "")


def test_a_failure_writes_nothing_either(capfd):
    """What the runtime has to say is in the exception."""
    for name, number in (("run_fails", 0), ("index_out_of_range", 1), ("aborts", 1)):
        failing(name, number)
    for name in ("missing_operators", "missing_backend"):
        with pytest.raises(NotImplementedError):
            load(name)
    with pytest.raises(InvalidProgramError):
        Runtime.get().load_program(b"")
    assert capfd.readouterr() == ("", "")


CHILD = """
import sys
{configure}
from support import load, case_of, check_outputs, host_inputs
for name in ("add", "conv_xnnpack", "index_out_of_range"):
    case = case_of(name)
    check_outputs(load(name).execute(case.inputs), case)
try:
    load("run_fails").execute(host_inputs(case_of("run_fails")))
except RuntimeError:
    pass
"""


def test_a_process_that_configured_no_logging_is_silent():
    """From the first load on, and at exit; the application's choice is respected where it made one."""
    done = child(CHILD.format(configure=""))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = child(CHILD.format(configure="import logging; logging.basicConfig(level=logging.ERROR)"))
    assert done.returncode == 0
    assert done.stdout == ""
    assert "ERROR:et_cffi:op_cat.cpp" in done.stderr
    assert "INFO" not in done.stderr


def test_lines_reach_the_logger_at_their_levels(caplog):
    with caplog.at_level(logging.DEBUG, logger="et_cffi"):
        failing("run_fails")
        failing("aborts", 1)
        with pytest.raises(OperatorMissingError):
            load("missing_operators")
    records = [record for record in caplog.records if record.name == "et_cffi"]
    levels = {}
    for record in records:
        levels.setdefault(record.levelno, []).append(record.getMessage())
    assert any("Unhandled dtype UInt16" in message for message in levels[logging.ERROR])
    assert any("Input tensor must be nonempty" in message for message in levels[logging.CRITICAL])
    assert any("operator_registry.cpp" in message for message in levels[logging.INFO])
    # The level is in the record, not in the words.
    assert all(message[:2] not in {"E ", "I ", "F "} for record in levels.values() for message in record)


def test_a_line_is_logged_once(caplog):
    with caplog.at_level(logging.DEBUG, logger="et_cffi"):
        failing("run_fails")
        case = case_of("add")
        for _ in range(5):
            check_outputs(load("add").execute(case.inputs), case)
    assert sum("Unhandled dtype" in record.getMessage() for record in caplog.records) == 1


def test_words_with_percent_signs_are_logged_as_they_are(caplog, tmp_path):
    with caplog.at_level(logging.DEBUG, logger="et_cffi"), pytest.raises(ExecuTorchError) as caught:
        Runtime.get().load_library(tmp_path / "lib%s%d%n.so")
    assert "lib%s%d%n.so" in str(caught.value)


# ---- checks that would end the process --------------------------------------------------------------------

ABORTING = ["aborts", "aborts_unplanned", "aborts_quantized"]
SAYS = {name: model_index.models()[name]["says"] for name in ABORTING}


@pytest.mark.parametrize("name", ABORTING)
def test_a_failed_check_becomes_an_exception_with_its_words(name):
    error, _ = failing(name, 1)
    assert type(error) is RuntimeCheckError
    assert error.code == lib.ETCFFI_Aborted
    assert SAYS[name] in str(error)
    assert SAYS[name] in error.log
    assert error.log.startswith("F ")


@pytest.mark.parametrize("name", ABORTING)
def test_the_method_refuses_afterwards(name):
    good = case_of(name, number=2)
    _, method = failing(name, 1)
    for _ in range(2):
        for call in (
            lambda: method.execute(host_inputs(good)),
            method.execute,
            method.get_outputs,
            lambda: method.set_inputs(host_inputs(good)),
            lambda: method.get_attribute("weight"),
        ):
            with pytest.raises(MethodStateError) as caught:
                call()
            assert "load it again" in str(caught.value)
            assert caught.value.code == lib.ETCFFI_MethodBroken
            assert not isinstance(caught.value, ThreadError)
    method.close()


@pytest.mark.parametrize("name", ABORTING)
def test_everything_else_goes_on(name):
    good, other = case_of(name, number=2), load("conv_xnnpack")
    sibling = load(name)
    early = sibling.execute(host_inputs(case_of(name)))
    for _ in range(10):
        failing(name, 1)
    check_outputs(sibling.execute(host_inputs(good)), good)
    check_outputs(early, case_of(name))
    check_outputs(load(name).execute(host_inputs(good)), good)
    check_outputs(other.execute(case_of("conv_xnnpack").inputs), case_of("conv_xnnpack"))
    assert program(name).method_names == {"forward"}


def test_a_failed_check_on_another_thread():
    caught = []

    def run():
        try:
            load("aborts").execute(case_of("aborts", number=1).inputs)
        except RuntimeCheckError as error:
            caught.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [SAYS["aborts"] in str(error) for error in caught] == [True] * 4


def test_a_method_cannot_be_pickled():
    with pytest.raises(TypeError, match="pickle its program"):
        pickle.dumps(load("add"))


def test_an_unknown_attribute():
    with pytest.raises(ExecuTorchError) as caught:
        load("add").get_attribute("no such")
    assert "'no such'" in str(caught.value)
    assert caught.value.code != 0

"""Bundled programs."""

from __future__ import annotations

import io
import random

import model_index
import numpy
import pytest

from et_cffi import Runtime, bundled, errors, portable_lib
from et_cffi._compare import compare

PATH = model_index.DIRECTORY / "add_bundled.bpte"


@pytest.mark.parametrize(
    "source",
    [PATH, str(PATH), PATH.read_bytes(), bytearray(PATH.read_bytes())],
    ids=["Path", "str", "bytes", "bytearray"],
)
def test_loads_and_verifies(source):
    program = bundled.load(source)
    assert program.method_names == {"forward"} and program.num_cases("forward") == 1
    (report,) = program.verify()
    assert report.passed and [output.passed for output in report.outputs] == [True]
    assert str(report) == (
        "method 'forward', case 0: passed\n  output 0: passed (largest error: absolute 0, relative 0)"
    )


def test_a_file_object():
    assert bundled.load(io.BytesIO(PATH.read_bytes())).num_cases("forward") == 1


def test_a_case_is_what_was_bundled():
    case = bundled.load(PATH).case("forward", 0)
    (stored,) = model_index.cases("add_bundled", "forward")
    assert [numpy.asarray(value).tolist() for value in case.inputs] == [x.tolist() for x in stored.inputs]
    assert numpy.asarray(case.expected_outputs[0]).tolist() == stored.outputs[0].tolist()


def changed_expectation() -> bytes:
    """The same file, expecting one number less of the four."""
    content, (stored,) = PATH.read_bytes(), model_index.cases("add_bundled", "forward")
    values = stored.outputs[0].astype("<f4")
    assert content.count(values.tobytes()) == 1
    changed = values.copy()
    changed[0, 1] += 1
    return content.replace(values.tobytes(), changed.tobytes())


def test_a_failure_is_reported_per_output():
    program = bundled.load(changed_expectation())
    (report,) = program.verify()
    assert not report.passed
    (output,) = report.outputs
    assert output.mismatches == 1 and output.max_absolute_error == 1.0
    assert "FAILED: 1 of 4 elements are not close" in str(report)
    (report,) = program.verify("forward", atol=1.0)
    assert report.passed


def test_the_official_functions():
    bundle = portable_lib._load_bundled_program_from_buffer(PATH.read_bytes())
    wrong = portable_lib._load_bundled_program_from_buffer(changed_expectation())
    module = portable_lib._load_for_executorch_from_bundled_program(bundle)
    (stored,) = model_index.cases("add_bundled", "forward")
    module.load_bundled_input(bundle, "forward", 0)
    assert numpy.array_equal(numpy.asarray(module.plan_execute("forward")[0]), stored.outputs[0])
    for verify in (
        lambda b, *rest: module.verify_result_with_bundled_expected_output(b, *rest),
        lambda b, *rest: b.verify_result_with_bundled_expected_output(*rest),
    ):
        (result,) = verify(bundle, "forward", 0)
        assert numpy.array_equal(numpy.asarray(result), stored.outputs[0])
        with pytest.raises(errors.VerificationError, match=r"case 0: FAILED\n  output 0: FAILED: 1 of 4"):
            verify(wrong, "forward", 0)
        verify(wrong, "forward", 0, 0.0, 1.0)
        with pytest.raises(errors.ArgumentError, match="no test case 7 for 'forward'; it has 1"):
            verify(bundle, "forward", 7)
    with pytest.raises(errors.UnknownMethodError, match="it has some for 'forward'"):
        bundle._bundled.case("nothing", 0)
    with pytest.raises(errors.ArgumentError):
        portable_lib._load_bundled_program_from_buffer(PATH.read_bytes(), -1)


def test_what_is_no_bundled_program():
    for bad, says in (
        (b"", "no bundled program"),
        (model_index.path("add").read_bytes(), "no bundled program"),
    ):
        with pytest.raises(errors.InvalidProgramError, match=says):
            bundled.load(bad)
    with pytest.raises(errors.InvalidProgramError, match=r"truncated|damaged"):
        bundled.load(PATH.read_bytes()[:200])
    with pytest.raises(FileNotFoundError):
        bundled.load("/nowhere/x.bpte")
    with pytest.raises(TypeError):
        bundled.load(3)
    with pytest.raises(errors.InvalidProgramError, match="bundled program"):
        Runtime.get().load_program(PATH)


def test_damage_is_an_error_and_nothing_else():
    content, chance, refused = PATH.read_bytes(), random.Random(1), 0
    for _ in range(2000):
        changed = bytearray(content)
        for _ in range(3):
            changed[chance.randrange(len(content))] = chance.randrange(256)
        try:
            program = bundled.load(changed)
            for name in program.method_names:
                for index in range(min(program.num_cases(name), 3)):
                    program.case(name, index)
        except errors.ExecuTorchError:
            refused += 1
    assert refused


@pytest.mark.parametrize(
    "name", ["dtype_bfloat16", "dtype_float16", "dtype_complex64", "dtype_bool", "dtype_int64"]
)
def test_comparing_dtypes(name):
    (case, *_) = model_index.cases(name, "forward")
    method = Runtime.get().load_program(model_index.path(name)).load_method("forward")
    inputs = [x.tobytes() if name == "dtype_bfloat16" else x for x in case.inputs]
    first, second = method.execute(inputs)[0], method.execute(inputs)[0]
    assert compare(0, first, second, 0.0, 0.0).passed
    numpy.asarray(second).reshape(-1)[0] = 0 if numpy.asarray(first).reshape(-1)[0] else 1
    report = compare(0, first, second, 0.0, 0.0)
    assert not report.passed and report.mismatches == 1


def test_comparing_with_infinities():
    (case, *_) = model_index.cases("add", "forward")
    method = Runtime.get().load_program(model_index.path("add")).load_method("forward")
    actual, expected = method.execute(case.inputs)[0], method.execute(case.inputs)[0]
    numpy.asarray(expected)[0, 0] = numpy.inf
    assert not compare(0, actual, expected, 1.0, 1.0).passed
    numpy.asarray(actual)[0, 0] = numpy.inf
    assert compare(0, actual, expected, 0.0, 0.0).passed
    numpy.asarray(actual)[0, 1] = numpy.asarray(expected)[0, 1] = numpy.nan
    assert compare(0, actual, expected, 0.0, 0.0).passed


def test_comparing_values_and_kinds():
    nan, inf = float("nan"), float("inf")
    assert compare(0, nan, nan, 0, 0).passed and compare(0, inf, inf, 0, 0).passed
    assert not compare(0, -inf, inf, 1, 1).passed and not compare(0, 1, 1.0, 0, 0).passed
    assert compare(0, 1.0, 1.1, 0.1, 0).passed and not compare(0, 1.0, 1.2, 0.1, 0).passed
    assert compare(0, None, None, 0, 0).passed and not compare(0, True, False, 0, 0).passed

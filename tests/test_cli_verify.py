"""`python -m et_cffi verify`: its numbers beside an independent computation, and its reports."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree
from fractions import Fraction

import model_index
import numpy
import pytest

from et_cffi import ScalarType
from et_cffi.cli import main
from et_cffi.cli.accuracy import histogram, measure
from et_cffi.cli.expected import tensor_of

MODELS = model_index.DIRECTORY
F32 = numpy.float32


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(here, capsys):
    def call(*arguments):
        status = main(["verify", *map(str, arguments)])
        return status, *capsys.readouterr()

    return call


def of(got, want, rtol=1e-5, atol=1e-8):
    """The accuracy of an array beside another of the same dtype."""
    dtype = next(each for each in ScalarType if str(each) == got.dtype.name)
    return measure(
        "output_0", tensor_of(got, dtype, got.shape), tensor_of(want, dtype, want.shape), rtol, atol
    )


# ---- the numbers ------------------------------------------------------------------------------------------


def test_the_numbers_are_right():
    """Computed beside numpy, one element after the other and in exact fractions where that is possible."""
    rng = numpy.random.default_rng(5)
    want = rng.normal(size=(3, 4, 5)).astype(F32)
    got = (want * (1 + 1e-4 * rng.normal(size=want.shape))).astype(F32)
    got[1, 2, 3] += F32(0.5)
    found = of(got, want, rtol=1e-4, atol=1e-6)
    pairs = [
        (index, Fraction(float(got[index])), Fraction(float(want[index])))
        for index in numpy.ndindex(want.shape)
    ]
    errors = {index: abs(a - b) for index, a, b in pairs}
    out = sum(abs(a - b) > Fraction(1e-6) + Fraction(1e-4) * abs(b) for _, a, b in pairs)
    assert (found.passed, found.mismatches, found.elements) == (False, out, 60)
    assert 0 < out < 60
    assert found.max_absolute.index == (1, 2, 3) == max(errors, key=errors.get)
    assert found.max_absolute.error == pytest.approx(float(max(errors.values())), rel=1e-12)
    relative = {index: abs(a - b) / abs(b) for index, a, b in pairs}
    assert found.max_relative.index == max(relative, key=relative.get)
    assert found.max_relative.error == pytest.approx(float(max(relative.values())), rel=1e-12)
    assert found.mean_absolute_error == pytest.approx(float(sum(errors.values()) / 60), rel=1e-12)
    signal, noise = sum(b * b for _, _, b in pairs), sum((a - b) ** 2 for _, a, b in pairs)
    assert found.snr_db == pytest.approx(10 * math.log10(signal / noise), rel=1e-12)
    dot, own = sum(a * b for _, a, b in pairs), sum(a * a for _, a, _ in pairs)
    assert found.cosine == pytest.approx(float(dot) / math.sqrt(own * signal), rel=1e-12)
    assert [element.error for element in found.worst] == sorted(map(float, errors.values()), reverse=True)[
        :10
    ]


def test_nan_and_infinity_are_told_apart():
    nan, inf = numpy.nan, numpy.inf
    want = numpy.array([1, nan, inf, -inf, 2, nan, inf, 3], F32)
    got = numpy.array([1, nan, inf, inf, nan, 5, 7, 3.5], F32)
    found = of(got, want)
    assert (found.nan, found.infinite, found.not_finite_alike) == ((2, 2), (2, 3), 4)
    assert found.mismatches == 5
    assert (found.max_absolute.index, found.max_absolute.error) == ((7,), 0.5)
    assert found.mean_absolute_error == 0.25  # of the elements that are finite on both sides


def test_the_same_nans_and_infinities_pass():
    values = numpy.array([numpy.nan, numpy.inf, -numpy.inf], F32)
    found = of(values, values)
    assert (found.passed, found.not_finite_alike, found.max_absolute) == (True, 0, None)


def test_no_error():
    values = numpy.array([3, -4], F32)
    found = of(values, values)
    assert (found.passed, found.snr_db, found.cosine, found.worst) == (True, math.inf, 1.0, [])
    assert found.as_json()["snr_db"] == "inf"
    json.dumps(found.as_json(), allow_nan=False)


def test_opposite_and_zero_vectors():
    values = numpy.array([3, -4], F32)
    assert of(-values, values).cosine == -1.0
    assert of(0 * values, values).cosine == 0.0
    assert of(values, 0 * values).snr_db == -math.inf
    assert of(0 * values, 0 * values).cosine == 1.0


def test_huge_values():
    want = numpy.array([1e38, -2e38, 3e38], F32)
    found = of(-want, want)
    assert (found.snr_db, found.cosine) == (pytest.approx(20 * math.log10(0.5)), pytest.approx(-1.0))
    doubles = numpy.array([1e308, 1e-308])
    assert of(doubles, doubles).cosine == 1.0


def test_integers_are_exact():
    want = numpy.array([2**63 - 1, -(2**63), 0, 2**53])
    got = numpy.array([-(2**63), -(2**63), 0, 2**53 + 1])
    found = of(got, want)
    assert (found.mismatches, found.passed) == (2, False)
    assert (found.max_absolute.error, found.max_absolute.index) == (2.0**64, (0,))
    assert [(element.index, element.error) for element in found.worst] == [((0,), 2.0**64), ((3,), 1.0)]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float16", "float64", "complex64"])
def test_other_dtypes(dtype):
    want = numpy.array([[1, 0], [0, 1]], dtype)
    found = of(numpy.array([[1, 0], [1, 1]], dtype), want)
    assert (found.mismatches, found.max_absolute.index, found.max_absolute.error) == (1, (1, 0), 1.0)
    assert found.mean_absolute_error == 0.25


def test_bfloat16():
    bits = numpy.array([0x3F80, 0x4000, 0xC000], "u2")  # 1, 2, -2
    other = numpy.array([0x3F80, 0x4080, 0xC000], "u2")  # 1, 4, -2
    made = [tensor_of(each, ScalarType.BFloat16, (3,)) for each in (other, bits)]
    found = measure("output_0", *made, 1e-5, 1e-8)
    assert (found.max_absolute.error, found.max_absolute.index, found.mismatches) == (2.0, (1,), 1)


@pytest.mark.parametrize("low", [-30, -3, 0])
@pytest.mark.parametrize("span", [0.1, 2, 9, 40])
def test_a_histogram_counts_every_error_once(low, span):
    errors = 10.0 ** numpy.random.default_rng(3).uniform(low, low + span, 500)
    errors[::7] = 0
    bins = histogram(errors)
    assert bins[0].count == numpy.count_nonzero(errors == 0) == 72
    assert sum(each.count for each in bins) == 500
    assert 2 <= len(bins) <= 25
    for each, following in zip(bins[1:], bins[2:]):
        assert each.high == following.low
        assert each.count == sum(each.low <= error < each.high for error in errors if error)


def test_a_histogram_of_one_error_on_an_edge():
    zero, *others = histogram(numpy.array([1e-3, 0.0]))
    assert (zero.count, sum(each.count for each in others)) == (1, 1)
    assert sum(each.count for each in histogram(numpy.array([1e-3, 1e-2, 1e-1]))) == 3


# ---- a program --------------------------------------------------------------------------------------------


@pytest.fixture
def saved(here):
    """A model's input, and its output as it should be, with one element off by 0.25."""
    case = model_index.cases("conv_xnnpack", "forward")[0]
    numpy.save("x.npy", case.inputs[0])
    numpy.save("y.npy", case.outputs[0])
    off = case.outputs[0].copy()
    off[1, 0, 1, 2] += F32(0.25)
    numpy.save("off.npy", off)
    return MODELS / "conv_xnnpack.pte"


def test_it_passes(saved, run):
    status, out, err = run(saved, "--input", "x.npy", "--expect", "y.npy", "--rtol", "1e-4", "--atol", "1e-5")
    assert (status, err) == (0, "")
    assert out.startswith("method forward: passed\n  output_0, float32 (2, 2, 2, 3): passed\n")
    assert "elements out of tolerance  0 of 24" in out


def test_it_fails(saved, run):
    arguments = (saved, "--input", "x.npy", "--expect", "off.npy", "--rtol", "1e-4", "--atol", "1e-5")
    status, out, err = run(*arguments)
    assert (status, err) == (1, "")
    assert "FAILED: 1 of 24 elements are not close" in out
    assert re.search(r"largest absolute error +0\.25\d* at \(1, 0, 1, 2\): got ", out)
    known = json.loads(run(*arguments, "--json")[1])
    (output,) = known["cases"][0]["outputs"]
    assert (known["passed"], output["mismatches"]) == (False, 1)
    assert output["max_absolute"]["index"] == [1, 0, 1, 2]
    assert output["max_absolute"]["error"] == pytest.approx(0.25, abs=1e-4)
    assert run(*arguments[:-4], "--rtol", "0", "--atol", "0.3")[0] == 0


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        (numpy.zeros((2, 2, 2, 3)), "expected the dtype float64, got float32"),
        (numpy.zeros((2, 2, 2), F32), r"expected the shape \(2, 2, 2\), got \(2, 2, 2, 3\)"),
    ],
)
def test_another_dtype_or_shape_fails(expected, says, saved, run):
    numpy.save("other.npy", expected)
    status, out, _ = run(saved, "--input", "x.npy", "--expect", "other.npy")
    assert status == 1
    assert re.search(f"FAILED: {says}", out)


def test_what_run_wrote_is_expected(here, run):
    numpy.save("x.npy", numpy.ones((2, 2), F32))
    model = MODELS / "scalar_outputs.pte"
    assert main(["run", str(model), "--input", "x.npy", "--output", "was.npz"]) == 0
    status, out, err = run(model, "--input", "x.npy", "--expect", "was.npz")
    assert (status, err) == (0, "")
    assert "output_1, int: passed" in out
    with numpy.load("was.npz") as npz:
        changed = {**npz, "output_1": 4}
    numpy.savez("changed.npz", **changed)
    status, out, _ = run(model, "--input", "x.npy", "--expect", "changed.npz")
    assert status == 1
    assert "output_1, int: FAILED: expected 4, got 3" in out


def test_values_on_the_command_line(here, run):
    numpy.save("x.npy", numpy.ones((2, 2), F32))
    main(["run", str(MODELS / "scalar_outputs.pte"), "--input", "x.npy", "--output", "."])
    values = ["--expect", "output_0.npy", "--expect=3", "--expect=2.5", "--expect=true", "--expect=none"]
    assert run(MODELS / "scalar_outputs.pte", "--input", "x.npy", *values)[0] == 0


def test_raw_bytes_are_expected(saved, run):
    numpy.load("y.npy").tofile("y.bin")
    arguments = ("--input", "x.npy", "--rtol", "1e-4", "--atol", "1e-5", "--expect")
    assert run(saved, *arguments, "y.bin")[0] == 0
    numpy.load("off.npy").tofile("y.bin")
    assert run(saved, *arguments, "y.bin")[0] == 1


def test_a_dtype_that_numpy_lacks(here, run):
    case = model_index.cases("dtype_bfloat16", "forward")[0]
    numpy.save("x.npy", case.inputs[0].view("V2"))
    numpy.save("y.npy", case.outputs[0].view("V2"))
    assert run(MODELS / "dtype_bfloat16.pte", "--input", "x.npy", "--expect", "y.npy")[0] == 0
    wrong = case.outputs[0].copy()
    wrong[0, 0] ^= 0x4000
    numpy.save("y.npy", wrong.view("V2"))
    assert run(MODELS / "dtype_bfloat16.pte", "--input", "x.npy", "--expect", "y.npy")[0] == 1


def test_a_program_with_data(here, run):
    case = model_index.cases("linear_external", "forward")[0]
    numpy.save("x.npy", case.inputs[0])
    numpy.save("y.npy", case.outputs[0])
    arguments = (MODELS / "linear_external.pte", "--input", "x.npy", "--expect", "y.npy", "--rtol", "1e-4")
    assert run(*arguments, "--data", MODELS / "linear_external.ptd")[0] == 0
    status, _, err = run(*arguments)
    assert (status, err.count("\n")) == (2, 1)
    assert "weight" in err


# ---- a bundled program ------------------------------------------------------------------------------------


def test_a_bundled_program(run):
    status, out, err = run(MODELS / "add_bundled.bpte")
    assert (status, err) == (0, "")
    assert out.startswith("method forward, test case 0: passed\n  output_0, float32 (2, 2): passed\n")


def test_a_bundled_program_that_fails(run, here):
    content = bytearray((MODELS / "add_bundled.bpte").read_bytes())
    expected = numpy.asarray(model_index.cases("add_bundled", "forward")[0].outputs[0]).tobytes()
    assert content.count(expected) == 1
    at = content.index(expected)
    content[at : at + 4] = numpy.array(1e6, F32).tobytes()
    (here / "wrong.bpte").write_bytes(content)
    status, out, _ = run("wrong.bpte")
    assert status == 1
    assert re.search(r"largest absolute error .* at \(0, 0\): got .*, expected 1000000\n", out)


# ---- reports ----------------------------------------------------------------------------------------------


def test_an_html_report(saved, run, here):
    numpy.save("x.npy", numpy.load("x.npy"))
    arguments = ("--input", "x.npy", "--expect", "off.npy", "--save-report", "a & b.html")
    assert run(saved, *arguments, "--atol", "1e-4")[0] == 1
    text = (here / "a & b.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")  # nothing is loaded from elsewhere
    svg = xml.etree.ElementTree.fromstring(re.search(r"<svg.*?</svg>", text, re.DOTALL)[0])
    space = "{http://www.w3.org/2000/svg}"
    bars = [float(rect.get("width")) for rect in svg.iter(f"{space}rect")]
    counts = [int(label.text) for label in svg.iter(f"{space}text") if (label.text or "").isdigit()]
    counts = counts[-len(bars) :]  # the first bin is labelled 0
    assert sum(counts) == 24
    assert [bar > 0 for bar in bars] == [count > 0 for count in counts]
    assert max(bars) == pytest.approx(420)
    for bar, count in zip(bars, counts):
        assert bar == pytest.approx(420 * count / max(counts), abs=0.06)
    assert "1 of 24 elements are not close" in text
    assert "(1, 0, 1, 2)" in text


def test_html_is_escaped(run, here):
    name = "<b>&.bpte"
    (here / name).write_bytes((MODELS / "add_bundled.bpte").read_bytes())
    assert run(name, "--save-report", "report.html")[0] == 0
    text = (here / "report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;&amp;.bpte" in text
    assert "<b>" not in text


def test_a_markdown_report(saved, run, here):
    run(saved, "--input", "x.npy", "--expect", "off.npy", "--atol", "1e-4", "--save-report", "report.md")
    text = (here / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# FAILED: ")
    histogram_text = re.search(r"```text\n(.*?)```", text, re.DOTALL)[1].splitlines()
    rows = [re.fullmatch(r"(0|\S+ to \S+) +(\d+)( #+)?", line) for line in histogram_text[1:]]
    assert sum(int(row[2]) for row in rows) == 24
    assert all(bool(row[3]) == bool(int(row[2])) for row in rows)
    assert "| (1, 0, 1, 2) |" in text


# ---- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("MODEL --input x.npy", r"nothing to compare with"),
        ("MODEL --expect y.npy", r"takes 1 input, and no --input"),
        ("MODEL --input x.npy --expect y.npy --expect y.npy", r"1 outputs to compare, and --expect gives 2"),
        ("MODEL --input x.npy --expect 3", r"output_0 is a tensor, and 3 is a value"),
        ("MODEL --input x.npy --expect nothing.npy", r"nothing\.npy: No such file"),
        ("MODEL --input x.npy --expect short.bin", r"short\.bin holds 3 bytes, and output_0 has 96"),
        ("MODEL --input x.npy --expect y.npy --rtol -1", r"0 or more"),
        ("MODEL --input x.npy --expect y.npy --rtol nan", r"0 or more"),
        ("MODEL --input x.npy --expect y.npy --save-report report.pdf", r"give a \.html or a \.md file"),
        ("MODEL --input x.npy --expect y.npy --save-report no/report.md", r"there is no directory 'no'"),
        ("MODEL --input y.npy --expect y.npy", r"input 0"),
    ],
)
def test_bad_use_is_one_line(line, says, saved, run, here):
    (here / "short.bin").write_bytes(b"123")
    status, out, err = run(*line.replace("MODEL", str(saved)).split())
    assert (status, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert re.search(says, err)


def test_a_model_that_cannot_run(run, here):
    numpy.save("x.npy", numpy.zeros((2, 2), F32))
    status, out, err = run(MODELS / "missing_operators.pte", "--input", "x.npy", "--expect", "x.npy")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "et_cffi_test::twice.out" in err

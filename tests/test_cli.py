"""`python -m et_cffi`, and its command `run`."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import model_index
import numpy
import pytest
from support import FORMAT, ITEMSIZE, case_of, check_values, child, runnable

import et_cffi
from et_cffi.cli import main

MODELS = model_index.DIRECTORY
F32 = numpy.float32


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working directory, with the files that the tests name."""
    monkeypatch.chdir(tmp_path)
    numpy.save("x.npy", numpy.array([[1, 2], [3, 4]], F32))
    numpy.save("y.npy", numpy.array([[10, 20], [30, 40]], F32))
    return tmp_path


@pytest.fixture
def run(here, capsys):
    """Runs `run NAME ...` in this process: the exit status, stdout and stderr."""

    def call(name, *arguments):
        model = str(model_index.path(name)) if name in model_index.models() else name
        status = main(["run", model, *arguments])
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def results(run):
    """Runs a command line that works, and returns what --json says of the outputs."""

    def call(name, *arguments):
        status, out, err = run(name, *arguments, "--json")
        assert (status, err) == (0, "")
        return json.loads(out)["outputs"]

    return call


def process(*arguments, variables=None, **options):
    """The command line in a process of its own, whose stdout is buffered as it is by default."""
    environment = {**os.environ, **(variables or {})}
    environment.pop("PYTHONUNBUFFERED", None)
    return subprocess.Popen(
        [sys.executable, "-m", "et_cffi", *arguments], text=True, env=environment, **options
    )


def output_of(*arguments, **options):
    child = process(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    out, err = child.communicate(timeout=60)
    return child.returncode, out, err


# ---- right numbers ---------------------------------------------------------------------------------------


def test_it_reads_a_seven(here):
    status, out, err = output_of("run", str(MODELS / "digits.pte"), "--input", str(MODELS / "digit.npy"))
    assert (status, err) == (0, "")
    assert "output_0: float32 (1, 10)" in out
    assert "argmax 7" in out


RUNNABLE = [
    (name, method)
    for name in runnable()
    for method, described in model_index.models()[name]["methods"].items()
    if described["cases"]
]


def literal(value):
    return f"str:{value}" if isinstance(value, str) else str(value).lower()


@pytest.mark.parametrize(("name", "method"), RUNNABLE)
def test_every_model_agrees_with_eager(name, method, run):
    """Inputs are saved in the default layout, whatever layout the method reads."""
    case, arguments = case_of(name, method), []
    for index, (value, info) in enumerate(zip(case.inputs, case.inputs_info)):
        if info["kind"] == "tensor":
            opaque = info["dtype"] not in FORMAT
            numpy.save(f"{index}.npy", value.view(f"V{ITEMSIZE[info['dtype']]}") if opaque else value)
        arguments.append(f"--input={index}.npy" if info["kind"] == "tensor" else f"--input={literal(value)}")
    status, out, err = run(name, "--method", method, *arguments, "--output", "results.npz")
    assert (status, err) == (0, "")
    with numpy.load("results.npz") as npz:
        for index, (expected, info) in enumerate(zip(case.outputs, case.outputs_info)):
            key = f"output_{index}"
            if info["kind"] == "tensor":
                assert f"{key}: {info['dtype']} {expected.shape}\n" in out
                assert npz[key].dtype == expected.dtype
                check_values(npz[key], expected, case)
                assert (f"dtype:{key}" in npz) == (info["dtype"] not in FORMAT)
            elif expected is None:
                assert key not in npz
            else:
                assert npz[key].item() == expected


def test_a_fortran_ordered_file(run, results):
    numpy.save("x.npy", numpy.asfortranarray(numpy.array([[1, 2], [3, 4]], F32)))
    assert results("add", "--input", "x.npy", "--input", "y.npy")[0]["first"] == [11, 22, 33, 44]


def test_weights_from_a_data_file(run):
    case = case_of("linear_external", "forward")
    numpy.save("in.npy", case.inputs[0])
    data = ("--data", str(MODELS / "linear_external.ptd"))
    assert run("linear_external", *data, "--input", "in.npy", "--output", "out.npz")[0] == 0
    with numpy.load("out.npz") as npz:
        check_values(npz["output_0"], case.outputs[0], case)


def test_a_bundled_program_is_a_program(run, results):
    model = str(MODELS / "add_bundled.bpte")
    assert results(model, "--input", "x.npy", "--input", "y.npy")[0]["first"] == [11, 22, 33, 44]


def test_an_npz_gives_its_arrays_in_order(results):
    numpy.savez("both.npz", b=numpy.full((2, 2), 7, F32), a=numpy.zeros((2, 2), F32))
    writes = results("swap", "--input", "both.npz")
    assert [output["first"][0] for output in writes] == [0, 7]


def test_an_npz_may_hold_values(results):
    numpy.savez("all.npz", x=numpy.ones((2, 2), F32), i=3, f=0.5, b=True)
    whole = results("scalar_inputs", "--input", "all.npz")
    numpy.save("x.npy", numpy.ones((2, 2), F32))
    single = results("scalar_inputs", "--input", "x.npy", "--input=3", "--input=.5", "--input=TRUE")
    assert whole == single


def test_raw_bytes(results):
    numpy.array([5, 6, 7, 8], F32).tofile("x.bin")
    assert results("add", "--input", "x.bin", "--input", "y.npy")[0]["first"] == [15, 26, 37, 48]


def test_raw_bytes_where_sizes_of_one_leave_one_layout(results):
    case = case_of("channel1_channels_last")
    assert case.inputs_info[0]["dim_order"] == [0, 2, 1, 3]
    case.inputs[0].tofile("x.bin")
    numpy.save("x.npy", case.inputs[0])
    raw = results("channel1_channels_last", "--input", "x.bin")
    assert raw == results("channel1_channels_last", "--input", "x.npy")


def test_raw_bytes_of_a_dtype_that_numpy_lacks(results):
    bits = case_of("dtype_bfloat16").inputs[0]
    bits.tofile("bits.raw")
    numpy.save("bits.npy", bits.view("V2"))
    raw = results("dtype_bfloat16", "--input", "bits.raw")
    assert raw == results("dtype_bfloat16", "--input", "bits.npy")
    expected = (case_of("dtype_bfloat16").outputs[0].astype("u4") << 16).view(F32)
    assert raw[0]["first"] == expected.ravel().tolist()


@pytest.mark.parametrize("output", ["out.npz", "out"])
def test_files_of_outputs(output, run):
    assert run("scalar_outputs", "--input", "x.npy", "--output", output)[0] == 0
    if output == "out":
        stored = {path.stem: numpy.load(path) for path in Path(output).iterdir()}
    else:
        with numpy.load(output) as npz:
            stored = dict(npz)
    assert sorted(stored) == ["output_0", "output_1", "output_2", "output_3"]
    assert stored["output_0"].shape == (2, 2)
    assert [stored[f"output_{i}"].item() for i in (1, 2, 3)] == case_of("scalar_outputs").outputs[1:4]


def test_what_was_stored_goes_back_in(run, results):
    case_of("dtype_bfloat16").inputs[0].tofile("bits.raw")
    status, out, _ = run("dtype_bfloat16", "--input", "bits.raw", "--output", "once.npz")
    assert (status, out.splitlines()[-1]) == (0, "output_0 is bfloat16, and its bits are stored as uint16")
    once = numpy.load("once.npz")["output_0"]
    numpy.save("once.npy", once.view("V2"))
    again = results("dtype_bfloat16", "--input", "once.npz")
    assert again == results("dtype_bfloat16", "--input", "once.npy")


# ---- summaries -------------------------------------------------------------------------------------------


def test_a_summary_counts_what_is_not_finite(run, results):
    numpy.save("x.npy", numpy.array([[1, numpy.nan, -numpy.inf], [4, 3, numpy.nan]], F32))
    (output,) = results("identity_only", "--input", "x.npy")
    assert output == {
        "name": "output_0", "kind": "Tensor", "dtype": "float32", "shape": [2, 3], "nan": 2, "inf": 1,
        "min": 1.0, "max": 4.0, "mean": pytest.approx(8 / 3), "first": [1.0, "nan", "-inf", 4.0, 3.0, "nan"],
    }  # fmt: skip
    out = run("identity_only", "--input", "x.npy")[1]
    assert "min 1  max 4  mean 2.66667  nan 2  inf 1" in out


def test_a_summary_of_nothing_finite(results):
    numpy.save("x.npy", numpy.full((2, 3), numpy.inf, F32))
    (output,) = results("identity_only", "--input", "x.npy")
    assert (output["nan"], output["inf"], "min" in output) == (0, 6, False)


def test_a_summary_of_bools(run):
    expected = int(numpy.count_nonzero(case_of("dtype_bool").outputs[0]))
    numpy.save("x.npy", case_of("dtype_bool").inputs[0])
    assert f"\n  true {expected}\n" in run("dtype_bool", "--input", "x.npy")[1]


def test_a_summary_of_complex_numbers(run, results):
    case = case_of("dtype_complex64")
    numpy.save("x.npy", case.inputs[0])
    first = complex(case.outputs[0].ravel()[0])
    assert results("dtype_complex64", "--input", "x.npy")[0]["first"][0] == [first.real, first.imag]
    assert re.search(r"mean \S+[+-]\S+j\n", run("dtype_complex64", "--input", "x.npy")[1])


def test_a_summary_of_integers_is_exact(results):
    case = case_of("dtype_int64")
    numpy.save("x.npy", case.inputs[0])
    (output,) = results("dtype_int64", "--input", "x.npy")
    assert (output["min"], output["max"]) == (case.outputs[0].min(), case.outputs[0].max())
    assert type(output["min"]) is int


def test_a_summary_of_no_elements(run):
    numpy.save("x.npy", numpy.zeros((0, 3), F32))
    assert run("empty", "--input", "x.npy")[1] == "output_0: float32 (0, 3)\n  no elements\n"


def test_a_summary_of_many_values(run):
    numpy.save("x.npy", numpy.arange(3 * 5, dtype=F32).reshape(3, 5))
    out = run("multi", "--method", "scale", "--input", "x.npy")[1]
    assert out.count("... (15 values)") == 2
    assert "argmax" not in out


def test_outputs_that_are_no_tensors(run):
    out = run("scalar_outputs", "--input", "x.npy")[1]
    assert out.splitlines()[3:] == [
        "output_1: Int 3",
        "output_2: Double 2.5",
        "output_3: Bool True",
        "output_4: None",
    ]
    assert run("attributes", "--method", "get_name")[1] == "output_0: String 'et_cffi'\n"


# ---- without inputs --------------------------------------------------------------------------------------


def test_it_says_which_inputs_are_wanted(run):
    status, out, err = run("scalar_inputs")
    assert status == 2
    assert out.splitlines() == [
        "input 0: Tensor float32 (2, 2)",
        "input 1: Int, such as --input 3",
        "input 2: Double, such as --input 0.5",
        "input 3: Bool, such as --input true",
    ]
    assert err == "error: the method 'forward' takes 4 inputs, and no --input was given\n"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("mlp_dynamic", "Tensor float32 up to (8, 5), dynamic"),
        ("conv_channels_last", "Tensor float32 (2, 3, 5, 7), channels-last"),
        ("dtype_bfloat16", "Tensor bfloat16 (2, 3)"),
    ],
)
def test_it_says_what_an_input_is(name, line, run):
    assert run(name)[1] == f"input 0: {line}\n"


def test_it_says_so_to_scripts(run):
    status, out, _ = run("conv_dynamic_channels_last", "--json")
    assert status == 2
    assert json.loads(out)["inputs"] == [
        {
            "index": 0, "kind": "Tensor", "name": "", "dtype": "float32", "shape": [4, 3, 5, 7],
            "dynamic": True, "layout": "channels-last",
        }
    ]  # fmt: skip


def test_a_method_without_inputs_runs(run):
    status, out, err = run("no_inputs")
    assert (status, err) == (0, "")
    assert out.startswith("output_0: float32 (2, 2)\n")


def test_forward_is_the_default_method(run, results):
    assert results("multi", "--input", "x.npy", "--input", "y.npy") == results(
        "multi", "--method", "forward", "--input", "x.npy", "--input", "y.npy"
    )


# ---- errors ----------------------------------------------------------------------------------------------


@pytest.fixture
def bad_files(here):
    whole = Path("x.npy").read_bytes()
    numpy.savez("both.npz", x=numpy.zeros((2, 2), F32), y=numpy.zeros((2, 2), F32))
    files = {
        "empty.npy": b"",
        "cut_header.npy": whole[:40],
        "cut_data.npy": whole[:-3],
        "pickle.npy": pickle.dumps([1.0]),
        "huge.npy": b"\x93NUMPY\x01\x00v\x00"
        + b"{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999999,), }".ljust(117)
        + b"\n",
        "text.npz": b"no zip",
        "cut.npz": Path("both.npz").read_bytes()[:-30],
        "damaged.npz": Path("both.npz").read_bytes().replace(b"NUMPY", b"NUMPX"),
        "short.bin": bytes(15),
        "long.bin": bytes(17),
        "whole.bin": bytes(16),
        "text.pte": b"this is no program",
        "cut.pte": model_index.path("add").read_bytes()[:200],
    }
    for name, content in files.items():
        Path(name).write_bytes(content)
    numpy.save("objects.npy", numpy.array([{}], object), allow_pickle=True)
    numpy.savez("objects.npz", x=numpy.array([{}], object), y=numpy.zeros((2, 2), F32), allow_pickle=True)
    numpy.save("double.npy", numpy.zeros((2, 2)))
    numpy.save("swapped.npy", numpy.zeros((2, 2), ">f4"))
    numpy.save("strings.npy", numpy.array([["a", "b"], ["c", "d"]]))
    numpy.save("wide.npy", numpy.zeros((2, 3), F32))
    numpy.save("flat.npy", numpy.zeros(4, F32))
    numpy.save("bits.npy", numpy.zeros((2, 3), "u2"))
    numpy.save("halves.npy", numpy.zeros((2, 3), "V2"))
    numpy.save("many_halves.npy", numpy.zeros((3, 3), "V2"))


X = "--input x.npy"
BAD_USE = [
    ("add --input nothing.npy " + X, r"nothing\.npy: No such file or directory"),
    ("add --input nothing.bin " + X, r"nothing\.bin: No such file or directory"),
    ("add --input . " + X, r"Is a directory"),
    ("add --input empty.npy " + X, r"empty\.npy is no readable \.npy file"),
    ("add --input cut_header.npy " + X, r"cut_header\.npy is no readable \.npy file"),
    ("add --input cut_data.npy " + X, r"cut_data\.npy is no readable \.npy file"),
    ("add --input pickle.npy " + X, r"pickle\.npy is no readable \.npy file"),
    ("add --input huge.npy " + X, r"huge\.npy is no readable \.npy file"),
    ("add --input objects.npy " + X, r"objects\.npy .*allow_pickle=False"),
    ("add --input objects.npz", r"objects\.npz .*allow_pickle=False"),
    ("add --input text.npz", r"text\.npz is no readable \.npz file \(it is no zip archive\)"),
    ("add --input cut.npz", r"cut\.npz is no readable \.npz file"),
    ("add --input damaged.npz", r"damaged\.npz is no readable \.npz file"),
    ("add --input double.npy " + X, r"input 0 \(double\.npy\): .*float64, .* takes float32.*astype"),
    ("add --input bits.npy " + X, r"input 0 \(bits\.npy\): .*uint16, .* takes float32"),
    ("add --input swapped.npy " + X, r"input 0.*convert it to float32"),
    ("add --input strings.npy " + X, r"input 0 \(strings\.npy\): .* takes float32"),
    ("add --input wide.npy " + X, r"input 0.*\(2, 3\).*\(2, 2\)"),
    ("add --input flat.npy " + X, r"input 0.*\(4,\).*\(2, 2\)"),
    ("add --input short.bin " + X, r"input 0 \(short\.bin\): .* are 16, and the file holds 15"),
    ("add --input long.bin " + X, r"input 0 \(long\.bin\): .* are 16, and the file holds more than 16"),
    (f"add {X}", r"takes 2 inputs, and 1 was given: x\.npy"),
    (f"add {X} {X} {X}", r"takes 2 inputs, and 3 were given"),
    (f"add {X} --input both.npz", r"takes 2 inputs, and 3 were given: x\.npy, both\.npz\['x'\]"),
    ("no_inputs --input 3", r"takes no inputs, and 1 was given"),
    ("add --input 3 " + X, r"input 0 \(3\): the method takes a tensor .*\./3 for a file"),
    (f"scalar_inputs {X} {X} --input 0.5 --input true", r"input 1 \(x\.npy\): .*--input 3"),
    (f"scalar_inputs {X} --input hello --input 0.5 --input true", r"input 1 \(hello\): .*kind Int"),
    (f"scalar_inputs {X} --input true --input 0.5 --input true", r"input 1 .*bool.* takes an int"),
    (f"scalar_inputs {X} --input 3 --input str:x --input true", r"input 2 .*str"),
    (f"scalar_inputs {X} --input 3 --input 0.5 --input 1", r"input 3 .*int.* takes a bool"),
    ("dtype_bfloat16 --input bits.npy", r"uint16, .* takes bfloat16; .*array\.view\('V2'\)"),
    ("dtype_bfloat16 --input wide.npy", r"float32, .* takes bfloat16; .*array\.view\('V2'\)"),
    ("dtype_bfloat16 --input many_halves.npy", r"its shape is \(3, 3\), and the method takes \(2, 3\)"),
    ("dtype_float16 --input halves.npy", r"void16, .* takes float16"),
    ("mlp_dynamic --input whole.bin", r"raw bytes do not tell its shape"),
    ("conv_channels_last --input whole.bin", r"raw bytes do not tell their layout"),
    ("add --method backward", r"no method 'backward'; it has 'forward'"),
    (f"add {X} {X} --output results.npy", r"a \.npz file, or a directory"),
    (f"add {X} {X} --output x.bin/results.npz", r"there is no directory"),
    (f"add {X} {X} --output whole.bin", r"a \.npz file, or a directory"),
    ("nothing.pte", r"there is no file 'nothing\.pte'"),
    (".", r"Is a directory"),
    ("linear_external --input wide.npy", r"no data file was given: 'bias', 'weight'"),
    ("linear_external --data nothing.ptd", r"there is no data file 'nothing\.ptd'"),
    ("linear_external --data text.pte", r"'text\.pte' is no data file"),
    ("text.pte", r"no ExecuTorch program"),
    ("cut.pte", r"cut\.pte"),
    ("x.npy", r"no ExecuTorch program"),
    ("add --inputs x.npy", r"unrecognized arguments: --inputs x\.npy"),
    ("add --inp x.npy", r"unrecognized arguments: --inp x\.npy"),
]


@pytest.mark.parametrize(("line", "says"), BAD_USE)
def test_bad_use_is_one_line(line, says, bad_files, run):
    status, out, err = run(*line.split())
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert re.search(says, err)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("missing_operators --input x.npy", r"et_cffi_test::twice\.out, et_cffi_test::thrice\.out"),
        (f"missing_backend {X} {X}", r"BackendWithCompilerDemo"),
        ("index_out_of_range --input far.npy", r"1000000 >= weight\.size"),
        ("aborts --input rows.npy", r"aborted|[Cc]heck"),
    ],
)
def test_a_model_that_cannot_run_is_one_line(line, says, run):
    numpy.save("far.npy", numpy.array([0, 1, 10**6]))
    numpy.save("rows.npy", next(c.inputs[0] for c in model_index.cases("aborts", "forward") if c.fails))
    status, out, err = run(*line.split())
    assert (status, out) == (1, "")
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert re.search(says, err)


def test_an_empty_name_is_not_the_working_directory(run):
    assert run("") == (2, "", "error: the name of a model is empty\n")
    assert run("add", "--input", "") == (2, "", "error: the name of a file is empty\n")


def test_an_error_is_one_line_whatever_a_file_is_called(run):
    status, _, err = run("add", "--input", "a\nb.npy", "--input", "x.npy")
    assert (status, err) == (2, "error: a b.npy: No such file or directory\n")


# ---- the process -----------------------------------------------------------------------------------------


def test_no_command_prints_help(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("usage: python -m et_cffi")
    assert "run a method once" in out
    assert err == ""


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help(arguments, capsys):
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: python -m et_cffi")
    assert err == ""
    assert all(len(line) < 100 for line in out.splitlines())


@pytest.mark.parametrize("arguments", [["--version"], ["run", "--version"]])
def test_version(arguments, capsys):
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert re.fullmatch(
        rf"et_cffi {re.escape(et_cffi.__version__)}, ExecuTorch \d+\.\d+\.\d+, \w+ [\d.]+\n"
        r"libraries: (\w+, )*libexecutorch, .*\n",
        out,
    )


@pytest.mark.parametrize("line", ["", "bogus", "run"])
def test_bad_use_of_the_program_itself(line, here):
    status, out, err = output_of(*line.split())
    assert status == 2
    assert "Traceback" not in out + err
    assert err.count("\n") == (1 if line else 0)


def test_source_code_that_was_not_built_says_so(here):
    """A clone's own et_cffi/ comes before the installed package for who runs Python in the clone."""
    for source in Path(et_cffi.__file__).parent.rglob("*.py"):
        target = Path("et_cffi", source.relative_to(Path(et_cffi.__file__).parent))
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(source.read_bytes())
    status, _, err = output_of("run", str(MODELS / "no_inputs.pte"))
    assert status != 0
    assert err.count("\n") == 1
    assert "pip install -e ." in err


def test_a_reader_that_goes_away(here):
    reader, writer = os.pipe()
    os.close(reader)
    child = process("run", str(MODELS / "no_inputs.pte"), stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert child.communicate(timeout=60)[1] == ""
    assert child.returncode == -signal.SIGPIPE


def test_control_c(here):
    os.mkfifo("slow.bin")
    child = process(
        "run", str(MODELS / "add.pte"), "--input", "slow.bin", "--input", "x.npy",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with Path("slow.bin").open("wb"):  # returns once the other side has opened it
        time.sleep(1)  # until it waits for bytes: an interrupt in the middle of an import may be ignored
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert (out, err) == ("", "")
    assert child.returncode == -signal.SIGINT


@pytest.mark.linux
def test_output_that_cannot_be_written(here):
    with Path("/dev/full").open("w") as full:
        child = process("run", str(MODELS / "no_inputs.pte"), stdout=full, stderr=subprocess.PIPE)
        err = child.communicate(timeout=60)[1]
    assert (child.returncode, err) == (2, "error: No space left on device\n")


def test_torch_is_never_imported(here):
    Path("torch.py").write_text("import os; os.write(2, b'torch was imported'); os._exit(3)")
    status, _, err = output_of("run", str(MODELS / "no_inputs.pte"), variables={"PYTHONPATH": str(here)})
    assert (status, err) == (0, "")


def test_numpy_is_imported_for_arrays_only():
    code = (
        "import sys, et_cffi.cli\n"
        "assert et_cffi.cli.main(['run', '--help']) == 0\n"
        "assert et_cffi.cli.main(['run', sys.argv[1]]) == 2\n"
        "assert 'numpy' not in sys.modules\n"
    )
    done = child(code, str(MODELS / "add.pte"))
    assert done.returncode == 0, done.stderr

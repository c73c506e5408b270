"""`python -m et_cffi inspect`, and et_cffi.inspection."""

from __future__ import annotations

import collections
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import flatbuffer_reader
import model_index
import numpy
import pytest
from flatbuffers import number_types

import et_cffi
from et_cffi import Runtime, inspection
from et_cffi.cli import main, show

MODELS = model_index.DIRECTORY
PROGRAMS = sorted(path.name for path in MODELS.glob("*.pte"))


@pytest.fixture
def run(capsys):
    """Runs `inspect` in this process: the exit status, stdout and stderr."""

    def call(*arguments):
        status = main(["inspect", *map(str, arguments)])
        return status, *capsys.readouterr()

    return call


def inspected(name):
    return inspection.inspect(Runtime.get().load_program(MODELS / name))


# ---- the facts, against another reader of the same file ---------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_operators_and_delegates(name):
    found, read = inspected(name), flatbuffer_reader.Program((MODELS / name).read_bytes())
    assert (found.identifier, found.version) == ("ET12", read.version)
    assert [method.name for method in found.methods] == list(read.plans())
    for method, plan in zip(found.methods, read.plans().values()):
        names = read.operators(plan)
        calls = collections.Counter(names[i] for i in read.calls(plan, flatbuffer_reader.KERNEL_CALL))
        assert {each.name: each.calls for each in method.operators} == {each: calls[each] for each in names}
        calls = collections.Counter(read.calls(plan, flatbuffer_reader.DELEGATE_CALL))
        assert len(method.delegates) == len(plan.children(7))
        for index, (delegate, other) in enumerate(zip(method.delegates, plan.children(7))):
            assert (delegate.backend, delegate.calls) == (other.text(0), calls[index])
            assert delegate.options == other.length(2)
            where = other.child(1)
            if where.number(0, number_types.Int8Flags) == 1:
                assert (delegate.offset, delegate.nbytes) == read.segment(where.number(1))
            else:
                data = read.inlined_delegate(where.number(1))
                assert len(data) == delegate.nbytes > 0
                assert read.data[delegate.offset : delegate.offset + delegate.nbytes] == data
        planned = plan.numbers(8, number_types.Int64Flags)[1:]  # number 0 is nobody's
        assert [item.nbytes for item in method.planned] == planned


@pytest.mark.parametrize("name", PROGRAMS)
def test_stored_tensors(name):
    found, read = inspected(name), flatbuffer_reader.Program((MODELS / name).read_bytes())
    for method, plan in zip(found.methods, read.plans().values()):
        kinds = []
        for tensor in read.tensors(plan):
            extra = tensor.child(9)
            external = extra is not None and extra.number(2, number_types.Int8Flags) == 1
            if external:
                kinds.append("external")
            elif tensor.number(5, number_types.Uint32Flags):
                kinds.append("constant" if tensor.child(6) is None else "initial state")
        assert [tensor.kind for tensor in method.stored] == kinds


@pytest.mark.parametrize("name", PROGRAMS)
def test_named_data(name):
    found, read = inspected(name), flatbuffer_reader.Program((MODELS / name).read_bytes())
    assert [(item.key, item.offset, item.nbytes) for item in found.named_data] == [
        (item.text(0), *read.segment(item.number(1))) for item in read.root.children(7)
    ]


def test_constants_are_where_it_says():
    """The model computed from the constants by numpy gives what eager mode computed."""
    content = (MODELS / "mlp_dynamic.pte").read_bytes()
    (method,) = inspected("mlp_dynamic.pte").methods
    values = {
        tensor.shape: numpy.frombuffer(content, "f4", tensor.nbytes // 4, tensor.offset).reshape(tensor.shape)
        for tensor in method.constants
    }
    case = model_index.cases("mlp_dynamic", "forward")[0]
    hidden = numpy.maximum(case.inputs[0] @ values[(7, 5)].T + values[(7,)], 0)
    numpy.testing.assert_allclose(hidden @ values[(3, 7)].T + values[(3,)], case.outputs[0], rtol=1e-5)


def test_initial_state_is_where_it_says():
    (method,) = inspected("state_initial.pte").methods
    (state,) = [tensor for tensor in method.stored if tensor.kind == "initial state"]
    content = (MODELS / "state_initial.pte").read_bytes()
    initial = numpy.frombuffer(content, "f4", 4, state.offset).reshape(2, 2)
    assert initial.tolist() == [[-23.0, 22.75], [-23.5, 23.25]]  # values(2, 2, start=90) in export.py


def test_external_names():
    (method,) = inspected("linear_external.pte").methods
    assert method.external_keys == ("bias", "weight")
    assert {tensor.name: tensor.nbytes for tensor in method.stored} == {"weight": 60, "bias": 12}


def test_inputs_and_outputs_are_the_metadata():
    for name in PROGRAMS:
        program = Runtime.get().load_program(MODELS / name)
        for method in inspection.inspect(program).methods:
            meta = program.metadata(method.name)
            assert [value.kind for value in method.inputs] == [
                meta.input_kind(i) for i in range(meta.num_inputs())
            ]
            for index, value in enumerate(method.inputs):
                if value.kind == "Tensor":
                    info = meta.input_tensor_meta(index)
                    assert (value.shape, value.dim_order, value.nbytes, value.dynamic, value.planned) == (
                        info.sizes(), info.dim_order(), info.nbytes(), info.is_dynamic(),
                        info.is_memory_planned(),
                    )  # fmt: skip


# ---- the command ------------------------------------------------------------------------------------------


def test_what_is_missing_is_named(run):
    status, out, err = run(MODELS / "missing_operators.pte")
    assert (status, err) == (0, "")
    assert re.search(r"et_cffi_test::twice\.out +1 +MISSING", out)
    assert out.splitlines()[-1] == (
        "it cannot run here; missing: et_cffi_test::thrice.out, et_cffi_test::twice.out"
    )
    assert run(MODELS / "missing_backend.pte")[1].splitlines()[-1] == (
        "it cannot run here; missing: backend BackendWithCompilerDemo"
    )


@pytest.mark.parametrize(
    ("name", "status"), [("missing_operators.pte", 1), ("missing_backend.pte", 1), ("digits.pte", 0)]
)
def test_check_is_the_status(name, status, run):
    assert run(MODELS / name, "--check")[0] == status
    known = json.loads(run(MODELS / name, "--check", "--json")[1])
    assert known["runnable"] is (status == 0)


def test_json(run):
    status, out, err = run(MODELS / "conv_dynamic_channels_last.pte", "--json")
    assert (status, err) == (0, "")
    known = json.loads(out)
    (method,) = known["methods"]
    assert method["inputs"][0]["layout"] == "channels-last"
    assert (method["inputs"][0]["shape"], method["inputs"][0]["dynamic"]) == ([4, 3, 5, 7], True)
    assert known["nbytes"] == (MODELS / "conv_dynamic_channels_last.pte").stat().st_size
    assert known["test_cases"] is None
    assert {each["name"] for each in known["runtime"]["libraries"] if each["bundled"]} >= {"libexecutorch"}


def test_dynamic_sizes_are_bounds(run):
    assert "up to (8, 5)" in run(MODELS / "mlp_dynamic.pte")[1]


def test_scalar_inputs(run):
    out = run(MODELS / "scalar_inputs.pte")[1]
    assert re.search(r"input 1 +Int\n", out)
    assert re.search(r"input 3 +Bool\n", out)


def test_a_bundled_program(run):
    status, out, err = run(MODELS / "add_bundled.bpte")
    assert (status, err) == (0, "")
    assert re.search(r"forward +0 +float32 \(2, 2\), float32 \(2, 2\) +float32 \(2, 2\)\n", out)
    known = json.loads(run(MODELS / "add_bundled.bpte", "--json")[1])
    assert known["test_cases"][0]["inputs"] == ["float32 (2, 2)", "float32 (2, 2)"]


def test_no_difference(run):
    assert run(MODELS / "digits.pte", "--diff", MODELS / "digits.pte") == (0, "no difference\n", "")


def test_differences(run):
    status, out, _ = run(MODELS / "add.pte", "--diff", MODELS / "conv_xnnpack.pte")
    assert status == 1
    lines = out.splitlines()
    assert "- method forward: operator aten::add.out: 1 call" in lines
    assert any(line.startswith("+ method forward: delegate 0: XnnpackBackend, 1 call, ") for line in lines)
    assert any(
        re.match(r"~ method forward: input 0: .*\(2, 2\).* -> .*\(2, 3, 5, 7\)", line) for line in lines
    )
    changes = json.loads(run(MODELS / "add.pte", "--diff", MODELS / "conv_xnnpack.pte", "--json")[1])[
        "changes"
    ]
    assert len(changes) == len(lines)


def test_other_weights_are_a_difference(run, tmp_path):
    content = bytearray((MODELS / "mlp_dynamic.pte").read_bytes())
    (method,) = inspected("mlp_dynamic.pte").methods
    bias = next(tensor for tensor in method.constants if tensor.shape == (3,))
    content[bias.offset] ^= 1
    (tmp_path / "other.pte").write_bytes(content)
    status, out, _ = run(MODELS / "mlp_dynamic.pte", "--diff", tmp_path / "other.pte")
    assert status == 1
    assert re.fullmatch(r"~ method forward: constant \d: float32 \(3,\), sha256 \w+ -> .*\n", out)


def test_a_program_in_a_bundle_is_the_same_program(run):
    out = run(MODELS / "add.pte", "--diff", MODELS / "add_bundled.bpte")[1]
    assert [line[:12] for line in out.splitlines()] == ["~ file: byte", "~ file: kind", "+ test case "]


def test_data_that_a_program_needs(run, tmp_path):
    model, data = MODELS / "linear_external.pte", MODELS / "linear_external.ptd"
    status, out, _ = run(model, "--data", data, "--check")
    assert status == 0
    assert out.endswith("; the .ptd files have all that it needs, 2 names\n")
    content = data.read_bytes()
    assert content.count(b"bias") == 1
    (tmp_path / "other.ptd").write_bytes(content.replace(b"bias", b"bibs"))
    arguments = (model, "--data", tmp_path / "other.ptd")
    status, out, _ = run(*arguments, "--check")
    assert status == 1
    assert re.search(r"\nit cannot run here; .* not all of them are in '.*other\.ptd': 'bias';.*\n\Z", out)
    status, out, _ = run(*arguments, "--json")
    assert status == 0
    known = json.loads(out)
    assert not known["runnable"]
    assert "'bias'" in known["lacking_data"]
    assert json.loads(run(model, "--json")[1])["lacking_data"] is None


def test_without_a_standard_output():
    """As `inspect MODEL >&-` in a shell."""
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", sys.executable, "-m", "et_cffi", "inspect", str(MODELS / "add.pte")],
        stderr=subprocess.PIPE,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.pte"], "no file 'nothing.pte'"),
        ([MODELS / "digit.npy"], "no ExecuTorch program"),
        ([MODELS / "add.pte", "--diff", "nothing.pte"], "no file 'nothing.pte'"),
        ([MODELS / "linear_external.ptd"], "a data file"),
        ([MODELS / "linear_external.pte", "--data", "nothing.ptd"], "no data file 'nothing.ptd'"),
        ([""], "the name of a model is empty"),
        ([MODELS / "add.pte", "--diff", ""], "the name of a model is empty"),
        ([], "required: MODEL"),
    ],
)
def test_bad_use_is_one_line(arguments, says, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert says in err


def test_a_damaged_bundle_is_one_line(run, tmp_path):
    (tmp_path / "cut.bpte").write_bytes((MODELS / "add_bundled.bpte").read_bytes()[:200])
    status, out, err = run(tmp_path / "cut.bpte")
    assert (status, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", err)


def test_without_flatbuffers(tmp_path):
    """A plain program needs no extra package, and a bundled one says what it needs."""
    (tmp_path / "flatbuffers.py").write_text("raise ModuleNotFoundError('blocked', name='flatbuffers')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for name, status in (("add.pte", 0), ("add_bundled.bpte", 2)):
        done = subprocess.run(
            [sys.executable, "-m", "et_cffi", "inspect", str(MODELS / name)],
            capture_output=True, text=True, env=environment, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == status
        if status:
            assert re.fullmatch(r"error: [^\n]*pip install et_cffi\[devtools\]\n", done.stderr)


def on_a_terminal(*arguments, **variables):
    """What a command prints on a terminal of 100 columns."""
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "et_cffi", *arguments], stdin=follower, stdout=follower, stderr=follower,
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm", **variables},
    )  # fmt: skip
    os.close(follower)
    printed = b""
    while True:
        try:
            more = os.read(leader, 65536)
        except OSError:  # Linux's end of file, once the last follower is closed
            break
        if not more:
            break
        printed += more
    os.close(leader)
    assert child.wait() == 0
    return printed.decode()


def test_a_terminal_gets_a_table_by_rich():
    printed = on_a_terminal("inspect", str(MODELS / "missing_operators.pte"))
    assert "─" in printed
    assert re.search(r"et_cffi_test::twice\.out", printed)


def test_a_terminal_without_rich(tmp_path):
    (tmp_path / "rich.py").write_text("raise ModuleNotFoundError('blocked', name='rich')")
    printed = on_a_terminal("inspect", str(MODELS / "missing_operators.pte"), PYTHONPATH=str(tmp_path))
    assert re.search(r"  et_cffi_test::twice\.out +1 +MISSING\r\n", printed)
    assert "─" not in printed


def test_versions_and_libraries(capsys):
    assert main(["--version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"et_cffi {et_cffi.__version__}, ExecuTorch ")
    names = {path.stem for path in Path(et_cffi.get_library_dir()).glob("lib*.so")}
    assert set(second[len("libraries: ") :].split(", ")) == names


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.5, "2.500 s"), (0.0123, "12.30 ms"), (0.5, "500.0 ms"), (1.5e-6, "1.500 us"), (0, "0.000 us")],
)
def test_durations(seconds, text):
    assert show.duration(seconds) == text


def test_bars(monkeypatch):
    assert [show.bar(share, 4) for share in (0, 0.5, 1, 2)] == ["", "██", "████", "████"]
    assert show.bar(1 / 32, 4) == "▏"

"""Runtime.load_library: custom operators and backends, and what is refused instead of ending the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import model_index
import native_build
import pytest

import et_cffi
from et_cffi import Runtime, errors

# Children start here and not in the source tree, whose et_cffi may be one that is not built.
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    directory = tmp_path_factory.mktemp("native")
    names = ("custom_op.cpp", "options_backend.cpp", "initialiser_ends.cpp", "temporary.cpp")
    return {name: native_build.build(name, directory, sys.executable) for name in names}


def run(script: str, *arguments: object) -> str:
    """In a process of its own: what is registered stays registered."""
    command = [sys.executable, "-c", script, str(model_index.DIRECTORY.parent), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE)
    assert done.returncode == 0, done.stderr
    return done.stdout


PREAMBLE = """
import sys
sys.path.insert(0, sys.argv[1])
import logging, model_index, numpy
from et_cffi import Runtime, errors
def refused(kind, path):
    try: Runtime.get().load_library(path)
    except kind as error: print(error)
    else: raise SystemExit("not refused")
"""


def test_the_worked_example_is_what_is_tested():
    source = (native_build.NATIVE / "custom_op.cpp").read_text(encoding="utf-8")
    assert f"```cpp file=custom_op.cpp\n{source}```" in native_build.DOCUMENTED.read_text(encoding="utf-8")


def test_a_custom_operator(built):
    said = run(
        PREAMBLE
        + """
program = Runtime.get().load_program(model_index.path("missing_operators"))
try: program.load_method("forward")
except errors.OperatorMissingError as error: print(error)
Runtime.get().load_library(sys.argv[2])
added = {"et_cffi_test::twice.out", "et_cffi_test::thrice.out"}
assert added <= Runtime.get().operator_registry.operator_names
(case,) = model_index.cases("missing_operators", "forward")
result = numpy.asarray(program.load_method("forward").execute(case.inputs)[0])
assert numpy.array_equal(result, case.outputs[0]), (result, case.outputs)
refused(errors.AlreadyRegisteredError, sys.argv[2])
""",
        built["custom_op.cpp"],
    )
    assert "no kernel for et_cffi_test::twice.out, et_cffi_test::thrice.out" in said
    assert "libcustom_op.cpp.so' is loaded already" in said


def test_what_is_registered_is_refused(built, tmp_path):
    copies = [tmp_path / "one.so", tmp_path / "two.so"]
    for copy in copies:
        copy.write_bytes(built["custom_op.cpp"].read_bytes())
    said = run(
        PREAMBLE
        + """
Runtime.get().load_library(sys.argv[2])
refused(errors.AlreadyRegisteredError, sys.argv[3])
program = Runtime.get().load_program(model_index.path("missing_operators"))
(case,) = model_index.cases("missing_operators", "forward")
result = numpy.asarray(program.load_method("forward").execute(case.inputs)[0])
assert numpy.array_equal(result, case.outputs[0])
""",
        *copies,
    )
    assert "two.so' is refused" in said and "Re-registering et_cffi_test::t" in said


def test_a_bundled_library_again():
    Runtime.get()
    own = f"{et_cffi.get_library_dir()}/libexecutorch_kernels_quantized.so"
    with pytest.raises(errors.AlreadyRegisteredError, match="is loaded already"):
        Runtime.get().load_library(own)
    copy = native_build.sdk() / "lib" / "libexecutorch_kernels_quantized.so"
    with pytest.raises(errors.AlreadyRegisteredError, match="Re-registering quantized_decomposed::"):
        Runtime.get().load_library(copy)


def test_an_initialiser_that_ends_the_process(built):
    with pytest.raises(errors.LibraryError, match=r"its initialisers end the process \(signal 6\)"):
        Runtime.get().load_library(built["initialiser_ends.cpp"])


def test_what_cannot_be_loaded(tmp_path):
    with pytest.raises(errors.LibraryError, match="nowhere") as caught:
        Runtime.get().load_library("/nowhere/x.so")
    assert isinstance(caught.value, OSError)
    text = tmp_path / "text.so"
    text.write_text("text")
    with pytest.raises(errors.LibraryError, match=r"text\.so"):
        Runtime.get().load_library(text)


def test_backend_options_arrive_with_their_types(built):
    said = run(
        PREAMBLE
        + """
logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
Runtime.get().load_library(sys.argv[2])
assert Runtime.get().backend_registry.is_available("BackendWithCompilerDemo")
program = Runtime.get().load_program(model_index.path("missing_backend"))
name = "BackendWithCompilerDemo"
program.load_method("forward", backend_options={name: {"flag": True, "number": -7, "text": "t" * 100}})
program.load_method("forward", backend_options={name: {"number": True, "flag": 1}})
program.load_method("forward")
""",
        built["options_backend.cpp"],
    )
    lines = [line.partition("flag=")[2] for line in said.splitlines()]
    assert lines == ["1 number=-7 text=" + "t" * 100, "-1 number=-1 text=none", "-1 number=-1 text=none"]


def test_temporary_memory_is_counted(built):
    """The most of one instruction: it is freed after each."""
    said = run(
        PREAMBLE
        + """
Runtime.get().load_library(sys.argv[2])
(case,) = model_index.cases("missing_operators", "forward")
method = Runtime.get().load_program(model_index.path("missing_operators")).load_method("forward")
print(method.memory.temporary_peak)
for _ in range(3): method.execute(case.inputs)
print(method.memory.temporary_peak)
""",
        built["temporary.cpp"],
    )
    before, after = map(int, said.split())
    assert before == 0 and 1000 <= after < 1100


def test_backend_options_that_cannot_be():
    program = Runtime.get().load_program(model_index.path("conv_xnnpack"))

    def load(options):
        program.load_method("forward", backend_options=options).close()

    load({"XnnpackBackend": {"workspace_sharing_mode": 0}})
    with pytest.raises(errors.ExecuTorchError, match="must be between 0 and 2, inclusive, but was 99"):
        load({"XnnpackBackend": {"workspace_sharing_mode": 99}})
    with pytest.raises(errors.ArgumentError, match="options for the backend Nobody, to which"):
        load({"Nobody": {"a": 1}})
    with pytest.raises(TypeError, match="'a' of XnnpackBackend is a bool, an int or a str, and not a float"):
        load({"XnnpackBackend": {"a": 1.5}})
    with pytest.raises(ValueError, match="32 bits"):
        load({"XnnpackBackend": {"a": 1 << 31}})
    with pytest.raises(errors.ArgumentError, match="longer than the 255 bytes"):
        load({"XnnpackBackend": {"a": "x" * 256}})
    with pytest.raises(errors.ArgumentError, match="longer than the 63 bytes"):
        load({"XnnpackBackend": {"x" * 64: 1}})

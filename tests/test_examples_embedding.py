"""The examples that embed et_cffi in C, C++ and a cffi app: built and run as they are, and their numbers
compared with those of eager mode."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cffi
import model_index
import numpy
import pytest
from support import case_of

import et_cffi

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
MODEL = model_index.path("digits")


def call(*command, directory=None, status=0, **variables):
    environment = {**os.environ, "PYTHON": sys.executable, **variables}
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, cwd=directory, env=environment
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


# ---- C and C++ ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["c", "cpp"])
def program(request, tmp_path_factory):
    built = tmp_path_factory.mktemp(request.param) / "digits"
    call("sh", EXAMPLES / f"{request.param}_program" / "build.sh", built)
    return built


def check_scores(printed, case):
    *scores, last = printed.splitlines()
    (expected,) = case.outputs
    numpy.testing.assert_allclose(numpy.array(scores, float), expected.ravel(), case.rtol, case.atol)
    assert last == f"digit {expected.argmax()}"


@pytest.mark.parametrize("number", range(len(model_index.cases("digits", "forward"))))
def test_a_program_prints_what_eager_mode_computed(program, tmp_path, number):
    case = case_of("digits", number=number)
    (image,) = case.inputs
    (tmp_path / "image").write_bytes(image.tobytes())
    check_scores(call(program, MODEL, tmp_path / "image"), case)


def test_a_program_says_what_is_wrong(program, tmp_path):
    (tmp_path / "image").write_bytes(bytes(252))
    for model, words in (("nothing.pte", "nothing.pte"), (MODEL, "bytes"), (model_index.path("add"), "")):
        assert words in call(program, model, tmp_path / "image", status=1)
    assert "MODEL IMAGE" in call(program, status=2)


def lines_that_release(language):
    (source,) = (EXAMPLES / f"{language}_program").glob("digits.*")
    return [line for line in source.read_text().splitlines() if "_release(" in line]


@pytest.mark.linux
@pytest.mark.parametrize(
    ("language", "left_out"),
    [(language, line) for language in ("c", "cpp") for line in [None, *lines_that_release(language)]],
    ids=lambda value: (value or "as it is").strip()[:40],
)
def test_a_program_frees_what_it_allocates(language, left_out, tmp_path):
    """Under LeakSanitizer; without any one of the lines that release something it does not."""
    for path in (EXAMPLES / f"{language}_program").iterdir():
        text = path.read_text()
        if left_out:
            text = text.replace(left_out, re.sub(r"etcffi_\w+_release\((.*?)\);", r"(void)\1;", left_out))
        (tmp_path / path.name).write_text(text)
    compilers = {"CC": "cc -fsanitize=leak", "CXX": "c++ -fsanitize=leak"}
    call("sh", tmp_path / "build.sh", tmp_path / "digits", **compilers)
    case = case_of("digits")
    (tmp_path / "image").write_bytes(case.inputs[0].tobytes())
    command = [str(tmp_path / "digits"), str(MODEL), str(tmp_path / "image")]
    # What only a register or a stale place on the stack still points at has leaked too.
    environment = {**os.environ, "LSAN_OPTIONS": "use_registers=0:use_stacks=0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if left_out:
        assert "LeakSanitizer: detected memory leaks" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        check_scores(done.stdout, case)


DOCUMENT = ROOT / "docs" / "embedding.md"


def documented(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", documented("python"))
def test_the_document_is_right(code, monkeypatch, capsys):
    """A comment after a print is what it prints."""
    monkeypatch.chdir(ROOT)
    exec(compile(code, str(DOCUMENT), "exec"), {"__name__": "embedding"})
    out = capsys.readouterr().out.splitlines()
    for line in re.findall(r"print\(.*\)  # (.*)", code):
        assert line in out


def test_the_documented_commands_build_the_c_program(tmp_path):
    (commands,) = documented("sh")
    for name in ("examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    printed = call("sh", "-ec", commands, directory=tmp_path, PATH=path)
    check_scores(printed, case_of("digits"))


# ---- a cffi app --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cffi_app")
    for path in (EXAMPLES / "cffi_app").glob("*.*"):
        if path.suffix in {".py", ".c", ".h"}:
            shutil.copy(path, directory)
    call(sys.executable, "build_counter.py", ".", directory=directory)
    return directory


@pytest.fixture
def images(tmp_path):
    """The digit, itself upside down, and mirrored."""
    image = case_of("digits").inputs[0]
    turned = [image, image[:, :, ::-1], image[..., ::-1]]
    for number, values in enumerate(turned):
        numpy.save(tmp_path / f"{number}.npy", numpy.ascontiguousarray(values))
    return turned, [tmp_path / f"{number}.npy" for number in range(len(turned))]


def test_the_app_prints_what_eager_mode_computed(app, images):
    values, paths = images
    printed = call(sys.executable, "app.py", MODEL, *paths, directory=app).splitlines()
    best, score = re.fullmatch(r".*: (\d) with (\S+)", printed[0]).groups()
    (expected,) = case_of("digits").outputs
    assert int(best) == expected.argmax() == 7
    numpy.testing.assert_allclose(float(score), expected.max(), 1e-5)
    # And what a plain call gives for the others.
    method = et_cffi.Runtime.get().load_program(MODEL).load_method("forward")
    digits = [numpy.asarray(method.execute(each.copy())[0]).argmax() for each in values]
    assert [int(line.split(": ")[1][0]) for line in printed[:-1]] == digits
    assert printed[-1] == f"in C: {' '.join(map(str, digits))}"
    assert len(set(digits)) > 1


CHECKS = """
import gc, sys, weakref
import numpy
from _counter import ffi, lib
import et_cffi

assert ffi is not et_cffi.ffi
for name in ("etcffi_program *", "etcffi_method *", "etcffi_value", "etcffi_memory", "etcffi_tensor_info *"):
    assert ffi.typeof(name) is et_cffi.ffi.typeof(name), name
assert lib.ETCFFI_PINNED == et_cffi.lib.ETCFFI_PINNED
assert lib.ETCFFI_ScalarType_Float == et_cffi.ScalarType.Float
assert lib.etcffi_num_kernels() == et_cffi.lib.etcffi_num_kernels() > 0

# A value made here goes to a function of et_cffi's, and a handle of et_cffi's to a function of here.
facts = ffi.new("etcffi_file_facts *")
program = et_cffi.Runtime.get().load_program(sys.argv[1])
assert et_cffi.lib.etcffi_program_file_facts(program.cdata(), facts) == 0
assert ffi.string(facts.identifier) == b"ET12"
digits = ffi.new("int32_t[]", 1)
page = ffi.gc(lib.page_new(1), lib.page_free)
assert lib.read_page(program.cdata(), page, digits) == 0
try:
    lib.read_page(page, page, digits)
except TypeError:
    pass
else:
    raise AssertionError("another type of pointer is taken")

# What C code says of an error is there for Python.
wrong = et_cffi.Runtime.get().load_program(sys.argv[2])
assert lib.read_page(wrong.cdata(), page, digits) == lib.ETCFFI_BadCount
assert b"takes 2 inputs" in ffi.string(lib.etcffi_last_message())
"""


def test_the_types_are_the_same_on_both_sides(app):
    call(sys.executable, "-c", CHECKS, MODEL, model_index.path("add"), directory=app)


def test_it_is_found_by_the_process_or_by_its_run_path(app):
    """Whichever module is imported first."""
    for first in ("import et_cffi, _counter", "import _counter, et_cffi"):
        code = f"{first}; et_cffi.Runtime.get(); print(_counter.lib.etcffi_num_kernels())"
        assert int(call(sys.executable, "-c", code, directory=app)) > 100


def test_what_is_included_is_what_was_built(monkeypatch):
    """et_cffi.ffi_builder() reads the installed header as build_ffi.py read it when the module was built."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.delitem(sys.modules, "build_ffi", raising=False)
    import build_ffi

    included, built = et_cffi.ffi_builder(), build_ffi.builder()
    assert isinstance(included, cffi.FFI)
    assert included._cdefsources == built._cdefsources
    assert included._assigned_source[0] == built._assigned_source[0]
    del sys.modules["build_ffi"]

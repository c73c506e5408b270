"""The wrapper under sanitizers: the tests under AddressSanitizer and UndefinedBehaviorSanitizer, and a C++
program of many threads under ThreadSanitizer and LeakSanitizer.

    python tools/sanitize.py              # all of them
    python tools/sanitize.py tests        # the tests only; what follows goes to pytest
    python tools/sanitize.py threads      # the program only

In a copy of the tree. What is compiled here is instrumented: the wrapper, the extensions and the program. The
runtime's prebuilt libraries are not, so that what they do to their own memory is not seen, though every
allocation is. Python is not asked for its leaks, of which it has many; the program is, and tools/leaks.py
counts Python's references.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE))

import sdk  # noqa: E402

LEFT_OUT = shutil.ignore_patterns(
    ".git", "__pycache__", ".*_cache", "build", "*.egg-info", "*.so", "lib", ".nox"
)
COMMON = ["-g", "-O1", "-fno-omit-frame-pointer"]
# handle_segv: some tests read where nothing can be read, and look for the signal. alloc_dealloc_mismatch: the
# prebuilt libraries have an operator new of their own.
ASAN = "detect_leaks=0:handle_segv=0:alloc_dealloc_mismatch=0:allocator_may_return_null=1"
UBSAN = "print_stacktrace=1:halt_on_error=1"
# The files that Python reads by itself are verified at any address and offset (csrc/verify_file.cpp).
SUPPRESSED = (
    "alignment:flatbuffers/verifier.h\nalignment:flatbuffers/vector.h\nalignment:flatbuffers/base.h\n"
)
NOT_HERE = [
    # Freed memory is kept for a while, to find who reads it, so that no process is flat.
    "--ignore=tests/ownership/test_memory_is_flat.py",
    "--deselect=tests/test_dlpack.py::test_capsules_free_what_they_hold",
    # These limit the address space of their children, of which the sanitizer takes terabytes.
    "--ignore=tests/fuzz",
    "--deselect=tests/test_docs.py::test_a_page_runs[docs/fuzzing.md]",
    # Preloads a library of its own, and the sanitizer's has to be the first.
    "--ignore=tests/test_copies.py",
    # These build the package, or programs that link it without the sanitizer's library.
    "--ignore=tests/test_build.py",
    "--ignore=tests/test_examples_embedding.py",
]
MODEL = "tests/models/add_unplanned.pte"


def run(command: list[str], directory: Path, **variables: str) -> None:
    print("+", shlex.join(command), flush=True)
    done = subprocess.run(command, cwd=directory, env={**os.environ, **variables}, check=False)
    if done.returncode:
        raise SystemExit(f"exit status {done.returncode}")


def library(name: str) -> str:
    """The full name of one of the compiler's own libraries."""
    command = [*sdk.cxx(), f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def tests(found: sdk.SDK, arguments: list[str]) -> None:
    flags = shlex.join(["-fsanitize=address,undefined", *COMMON])
    with tempfile.TemporaryDirectory(prefix="sanitize-") as directory:
        copy = Path(directory, "tree")
        shutil.copytree(TREE, copy, ignore=LEFT_OUT, symlinks=True)
        built = {"CFLAGS": flags, "CXXFLAGS": flags, "LDFLAGS": flags, "ET_CFFI_SDK": str(found.root)}
        build = [sys.executable, str(copy / "setup.py"), "-q", "build_ext", "--inplace"]
        print("+", shlex.join(build), flush=True)
        subprocess.run(build, cwd=copy, env={**os.environ, **built}, check=True, stdout=subprocess.DEVNULL)
        suppressions = Path(directory, "suppressions")
        suppressions.write_text(SUPPRESSED)
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        pytest += arguments or ["tests", *NOT_HERE]
        run(
            pytest,
            copy,
            # The sanitizer comes first, and finds the C++ library's functions that it stands in for.
            LD_PRELOAD=f"{library('libasan.so')} {library('libstdc++.so')}",
            ASAN_OPTIONS=ASAN,
            UBSAN_OPTIONS=f"{UBSAN}:suppressions={suppressions}",
            PYTHONMALLOC="malloc",  # each object is an allocation of its own
            PYTHONPATH=str(copy),
            ET_CFFI_SDK=str(found.root),
        )


def threads(found: sdk.SDK) -> None:
    """The wrapper's sources are compiled into the program, whose symbols the sanitizers then have."""
    sources = [*sorted((TREE / "csrc").glob("*.cpp")), TREE / "tests/ownership/native/threads.cpp"]
    libraries = ["-lexecutorch", "-lexecutorch_etdump", "-lexecutorch_threadpool"]
    for sanitizer in ("thread", "address,undefined"):
        with tempfile.TemporaryDirectory(prefix="sanitize-") as directory:
            program = Path(directory, "threads")
            command = [*sdk.cxx(), *found.compile_flags, f"-fsanitize={sanitizer}", *COMMON, "-pthread"]
            command += [f"-isystem{TREE / 'third_party/flatbuffers/include'}", f"-I{TREE / 'include'}"]
            command += [f"-I{TREE / 'csrc'}", "-Wno-deprecated-declarations", *map(str, sources)]
            command += [f"-L{found.lib}", *libraries, f"-Wl,-rpath,{found.lib}", "-o", str(program)]
            run(command, TREE)
            kernels = found.lib / f"libexecutorch_kernels_optimized{sdk.SUFFIX}"
            run([str(program), MODEL, str(kernels)], TREE, ASAN_OPTIONS="detect_leaks=1", UBSAN_OPTIONS=UBSAN)


def main() -> None:
    which, arguments = sys.argv[1:2], sys.argv[2:]
    if which not in ([], ["tests"], ["threads"]):
        raise SystemExit(__doc__)
    found = sdk.find()
    if which != ["threads"]:
        tests(found, arguments)
    if which != ["tests"]:
        threads(found)


if __name__ == "__main__":
    main()

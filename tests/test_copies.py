"""How many bytes of an input and an output are copied, counted in a process whose copies are all counted."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from native_build import NATIVE
from support import child

NBYTES = 64 * 512 * 4  # of each input, and of the output

CODE = """
import ctypes, sys
import numpy
from support import case_of, load

name, way = sys.argv[1:]
case = case_of(name)
x, y = case.inputs
(expected,) = case.outputs
method, out = load(name), numpy.empty_like(expected)
counted = ctypes.CDLL(None).copied_bytes
counted.restype = ctypes.c_size_t


def run():
    if way == "out":
        return method.execute([x, y], out=[out])
    if way == "set":
        method.set_inputs([x, y])
        return method.execute()
    return method.execute([x, y], clone_outputs=way != "lent")


for _ in range(3):
    before = counted()
    (result,) = run()
    copied = counted() - before
assert (result is out) == (way == "out")
numpy.testing.assert_array_equal(numpy.asarray(result), expected)
print(copied)
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    library = tmp_path_factory.mktemp("copies") / "libcount_copies.so"
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    source = NATIVE / "count_copies.c"
    subprocess.run(
        [compiler, "-O2", "-fno-builtin", "-shared", "-fPIC", str(source), "-o", str(library)], check=True
    )
    return library


@pytest.mark.linux
@pytest.mark.parametrize(
    ("name", "way", "copies"),
    [
        ("large_unplanned", "execute", 0),
        ("large_unplanned", "set", 0),
        ("large_unplanned", "lent", 0),
        ("large_unplanned", "out", 0),  # the kernel writes to the caller's memory
        ("large", "execute", 3),  # both inputs into planned memory, and the output out of it
        ("large", "set", 3),
        ("large", "lent", 2),
        ("large", "out", 3),
    ],
)
def test_copied_bytes(counter, name, way, copies):
    done = child(CODE, name, way, LD_PRELOAD=str(counter))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == copies * NBYTES

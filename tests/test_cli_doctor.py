"""`python -m et_cffi doctor`."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import model_index
import numpy
import pytest

import et_cffi
from et_cffi.cli import doctor, main, show
from et_cffi.cli.measuring import processors


@pytest.fixture
def run(capsys):
    """The status, and what was found by name."""

    def call():
        status = main(["doctor", "--json"])
        out, err = capsys.readouterr()
        assert err == ""
        known = json.loads(out)
        assert known["healthy"] is (status == 0)
        return status, {finding["what"]: finding for finding in known["findings"]}

    return call


def test_everything_works(run):
    status, found = run()
    assert status == 0
    assert found["self-test digits"]["state"] == found["self-test quantized_portable"]["state"] == "ok"
    assert found["ExecuTorch"]["detail"] == (
        Path(et_cffi.get_library_dir(), "EXECUTORCH_VERSION").read_text().strip()
    )
    assert found["backend XnnpackBackend"]["state"] == "ok"
    names = {path.stem for path in Path(et_cffi.get_library_dir()).iterdir() if path.suffix == ".so"}
    assert names <= set(found)
    count = len(et_cffi.Runtime.get().operator_registry.operator_names)
    assert found["operators"]["detail"] == f"{count} with a kernel"


def test_the_self_test_is_of_the_test_models():
    for name in ("digits", "quantized_portable"):
        for suffix in ("pte", "npz"):
            own = Path(doctor._SELF_TESTS, f"{name}.{suffix}").read_bytes()
            assert own == (model_index.DIRECTORY / f"{name}.{suffix}").read_bytes()


def copy_self_tests(directory):
    for path in doctor._SELF_TESTS.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())


@pytest.mark.parametrize("damage", ["result", "program", "nothing"])
def test_a_self_test_fails(damage, run, tmp_path, monkeypatch):
    if damage != "nothing":
        copy_self_tests(tmp_path)
    if damage == "result":
        with numpy.load(tmp_path / "digits.npz") as npz:
            changed = {**npz, "output_0": npz["output_0"] * 1.01}
        numpy.savez(tmp_path / "digits.npz", **changed)
    elif damage == "program":
        (tmp_path / "digits.pte").write_bytes(b"damaged")
    monkeypatch.setattr(doctor, "_SELF_TESTS", tmp_path)
    status, found = run()
    assert status == 1
    failed = [what for what, finding in found.items() if finding["state"] == "FAILED"]
    assert failed == ["self-test" if damage == "nothing" else "self-test digits"]


def test_a_runtime_that_does_not_start(run, monkeypatch):
    def broken():
        raise OSError("cannot open shared object")

    monkeypatch.setattr(doctor, "Runtime", types.SimpleNamespace(get=broken))
    status, found = run()
    assert status == 1
    assert found["libraries"] == {
        "what": "libraries", "state": "FAILED", "detail": "cannot open shared object",
    }  # fmt: skip
    assert found["python"]["state"] == "ok"


def test_torch_in_the_process(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    torch = next(iter(doctor._torch()))
    assert (torch.state, "imported in this process" in torch.detail) == ("note", True)


def test_another_version_of_executorch(tmp_path):
    info = tmp_path / "executorch-1.4.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: executorch\nVersion: 1.4.0\n")
    done = subprocess.run(
        [sys.executable, "-m", "et_cffi", "doctor"], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"executorch +note +the package 1\.4\.0 is installed: one process cannot", done.stdout)
    assert done.stdout.endswith("\neverything works\n")


def test_a_package_that_is_missing(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "rich" else "1")
    found = {finding.what: finding for finding in doctor._packages()}
    assert found["rich"].state == "note"
    assert found["numpy"].state == "ok"


def test_too_many_threads():
    before = et_cffi.num_threads()
    et_cffi.set_num_threads(processors() + 1)
    try:
        (finding,) = doctor._threads()
        assert finding.state == "note"
    finally:
        gc.collect()
        et_cffi.set_num_threads(before)


def test_sizes():
    assert [show.size(n) for n in (1, 999, 10240, 2 << 20)] == [
        "1 byte", "999 bytes", "10,240 bytes (10.0 KiB)", "2,097,152 bytes (2.0 MiB)",
    ]  # fmt: skip

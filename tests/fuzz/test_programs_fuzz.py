"""Damaged programs, for a short while; `python tests/fuzz/programs.py` does it for long."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import programs


def test_no_case_ends_the_process():
    """In children of a process of its own: a crash is a result there, and other tests have left no threads.

    None of these cases is one that docs/fuzzing.md knows to crash, in a kernel or in XNNPACK.
    """
    command = [sys.executable, str(pathlib.Path(programs.__file__)), "--cases", "300"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_the_walker_finds_what_is_there():
    """A mutator that finds nothing to change would make every case pass."""
    by_path, targets = programs._sites("add")
    assert len(by_path) > 150
    assert len(by_path["scalar Program.execution_plan[].inputs[]"]) == 2
    assert len(targets["Tensor"]) == 3


def test_cases_differ_from_the_models():
    unchanged = sum(
        data == programs._bytes(name) for name, data, _ in (programs.make(0, case) for case in range(300))
    )
    assert unchanged < 15

"""Counts references: tests/ownership/test_leaks.py under pytest-leaks.

    python3-dbg -m venv build/leaks
    build/leaks/bin/pip install --no-binary cffi cffi numpy pytest pytest-leaks setuptools .
    build/leaks/bin/python tools/leaks.py

Needs a CPython that counts all references (Debian's python3-dbg), with et_cffi and cffi compiled for it: a
wheel for the ordinary one takes and drops references that are not counted. pytest-leaks only reports what it
found; here a leak is a failure.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent


def main() -> None:
    if not hasattr(sys, "gettotalrefcount"):
        raise SystemExit(f"{sys.executable} does not count references; run this with python3-dbg")
    found = importlib.util.find_spec("_cffi_backend")
    compiled = str(found.origin) if found else "there is none"
    if not compiled.endswith(str(sysconfig.get_config_var("EXT_SUFFIX"))):
        raise SystemExit(f"cffi was not compiled for this interpreter: {compiled}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-R", "3:4"]
    command += ["-c", str(TREE / "pyproject.toml"), "--rootdir", str(TREE)]
    command += [str(TREE / "tests/ownership/test_leaks.py"), *sys.argv[1:]]
    # Elsewhere than in the tree, whose et_cffi/ would be found before the installed one.
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(
            command, cwd=elsewhere, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    print(done.stdout)
    if done.returncode or re.search(r"\bleaked\b", done.stdout) or "passed" not in done.stdout:
        raise SystemExit(done.returncode or "references were lost")


if __name__ == "__main__":
    main()

"""Compiles the test libraries in tests/native, against the SDK that et_cffi was built against."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
NATIVE = TREE / "tests" / "native"
DOCUMENTED = TREE / "docs" / "custom-operators.md"


@functools.lru_cache(maxsize=1)
def sdk() -> Path:
    """The directory that holds include/executorch, found (or fetched) as the build finds it."""
    command = [sys.executable, str(TREE / "sdk.py")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Path(printed.strip().splitlines()[-1]).resolve()


def build(source: str, directory: Path, python: str, libraries: str = "") -> Path:
    """Compiles tests/native/SOURCE with the command of docs/custom-operators.md, and more libraries."""
    (command,) = re.findall(r"```sh\n(.*?)```", DOCUMENTED.read_text(encoding="utf-8"), re.DOTALL)
    command = command.replace("custom_op.cpp", str(NATIVE / source)).replace(
        "libcustom_op.so", f"lib{source}.so"
    )
    command = command.replace("-lexecutorch ", f"-lexecutorch {libraries} ")
    environment = {**os.environ, "SDK": str(sdk()), "PATH": f"{Path(python).parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-ec", command], cwd=directory, env=environment, check=True)
    return directory / f"lib{source}.so"

"""Compiles the test libraries in tests/native, against the SDK that et_cffi was built against."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

NATIVE = Path(__file__).resolve().parent / "native"
DOCUMENTED = Path(__file__).resolve().parent.parent / "docs" / "custom-operators.md"


def sdk() -> Path:
    """The directory that holds include/executorch: ET_CFFI_SDK, or the installed wheel."""
    named = os.environ.get("ET_CFFI_SDK")
    if not named:
        spec = importlib.util.find_spec("executorch")
        assert spec is not None and spec.submodule_search_locations, "set ET_CFFI_SDK to the unpacked wheel"
        named = spec.submodule_search_locations[0]
    root = Path(named).resolve()
    return root if (root / "include" / "executorch").is_dir() else root / "executorch"


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

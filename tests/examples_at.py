"""Where the examples' scripts are, and where their exports: those of the repository, or fresh ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
EXPORTS = Path(os.environ.get("ET_CFFI_EXAMPLES", EXAMPLES))

sys.path += [str(EXAMPLES / name) for name in ("pitch", "faces", "voice")]


def run(script, *arguments):
    """What a script prints in a process that cannot import torch."""
    start = "import runpy, sys; sys.modules['torch'] = None; sys.argv = sys.argv[1:]; "
    start += "sys.path.insert(0, sys.argv[0].rpartition('/')[0]); runpy.run_path(sys.argv[0], {}, '__main__')"
    command = [sys.executable, "-c", start, str(EXAMPLES / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout

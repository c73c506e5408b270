"""Where the examples are, and their exports: those of the repository, or fresh ones.

`python tests/examples_at.py RECORDING` writes what the commands in docs/examples.md print.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
EXPORTS = Path(os.environ.get("ET_CFFI_EXAMPLES", EXAMPLES))
PAGE = EXAMPLES.parent / "docs/examples.md"
BLOCK = re.compile(r"```console\n\$ (python examples/(\w+)/.*)\n((?s:.*?))```")

sys.path += [str(EXAMPLES / name) for name in ("pitch", "faces", "voice")]


def run(script, *arguments):
    """What a script prints in a process that cannot import torch."""
    start = "import runpy, sys; sys.modules['torch'] = None; sys.argv = sys.argv[1:]; "
    start += "sys.path.insert(0, sys.argv[0].rpartition('/')[0]); runpy.run_path(sys.argv[0], {}, '__main__')"
    command = [sys.executable, "-c", start, str(EXAMPLES / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def printed(command, recording=None):
    """What a command of the page prints, with the exports that are to be used."""
    _, script, *arguments = command.split()
    script = script[len("examples/") :]
    arguments = [recording if argument.endswith(".whl") else argument for argument in arguments]
    return run(script, *arguments, "--model", EXPORTS / script.partition("/")[0])


def words(text):
    """All but the numbers, and the spaces that align them."""
    return re.sub(r"[-+]?\d[\d.]*", "0", text).split()


def documented():
    """The page's commands, the example that each is of, and what it prints."""
    return [match.groups() for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]


def write(recording):
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(
        BLOCK.sub(lambda block: f"```console\n$ {block[1]}\n{printed(block[1], recording)}```", text),
        encoding="utf-8",
    )


if __name__ == "__main__":
    write(sys.argv[1])

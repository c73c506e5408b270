"""docs/cli.md: each command is run and prints what is there. `python tests/test_cli_docs.py` writes it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cli.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def blocks():
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def commands(block):
    return [line[2:] for line in block.splitlines() if line.startswith("$ ")]


def run(command, directory):
    """What a command prints, which must end with the status that its comment says."""
    line, _, comment = command.partition("  # exit status ")
    program, *arguments = shlex.split(line)
    assert program == "python"
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, encoding="utf-8", cwd=directory, env=environment
    )
    assert (done.returncode, done.stderr) == (int(comment or 0), ""), (command, done)
    return done.stdout


def directory_of_models(directory):
    Path(directory, "tests").symlink_to(ROOT / "tests")
    return directory


def printed(block, directory):
    return "".join(f"$ {command}\n{run(command, directory)}" for command in commands(block))


def words(text, exact):
    """What has to be the same: not the times, nor in which order they put the lines."""
    if exact:
        return text
    text = re.sub(r"[▏▎▍▌▋▊▉█]+|\([\d.]+ [KMG]iB\)|\b\d[\d,.]*(e-\d+)?( [mu]?s\b)?", "", text)
    return sorted(" ".join(line.split()) for line in text.splitlines())


@pytest.mark.parametrize("block", blocks(), ids=lambda block: commands(block)[0].split()[3])
def test_what_is_printed(block, tmp_path):
    out = printed(block, directory_of_models(tmp_path))
    if "et_cffi doctor" in block:  # which packages there are, and where, is this machine's own
        found, documented = [
            {line.split("  ")[1] for line in text.splitlines()[2:-2]} for text in (out, block)
        ]
        assert documented <= found
    else:
        exact = "et_cffi inspect" in block
        without_version = [re.sub(r", \w+ [\d.]+$", "", text, flags=re.MULTILINE) for text in (block, out)]
        documented, found = [words(text, exact) for text in without_version]
        assert found == documented


def test_every_command_is_documented():
    from et_cffi.cli import COMMANDS

    text = PAGE.read_text(encoding="utf-8")
    assert all(f"et_cffi {name} " in text or f"et_cffi {name}\n" in text for name in COMMANDS)


def write():
    with tempfile.TemporaryDirectory() as directory:
        directory_of_models(directory)
        text = BLOCK.sub(
            lambda match: f"```console\n{printed(match[1], directory)}```", PAGE.read_text(encoding="utf-8")
        )
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()

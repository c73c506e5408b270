"""`python -m et_cffi completion`: the scripts in a shell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from et_cffi.cli import COMMANDS, main, make_parser
from et_cffi.cli.completion import NAME, plain_bash


@pytest.fixture(params=["by shtab", "plain"])
def script(request, capsys):
    if request.param == "plain":
        return plain_bash(make_parser(NAME))
    assert main(["completion", "bash"]) == 0
    return capsys.readouterr().out


def completed(script, line, directory):
    """What bash offers for the last word of a line."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    code = (
        f"{script}\n"
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; COMP_LINE='{line}'; "
        "COMP_POINT=${#COMP_LINE}\n"
        "function=$(complete -p et_cffi | sed -E 's/.*-F ([^ ]+).*/\\1/')\n"
        f"COMPREPLY=(); $function et_cffi '{words[-1]}' '{words[-2]}'\n"
        "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, cwd=directory)
    assert done.stderr == ""
    return {word.strip() for word in done.stdout.splitlines()} - {""}


def test_commands(script, tmp_path):
    assert completed(script, "et_cffi ", tmp_path) >= set(COMMANDS)
    assert completed(script, "et_cffi ins", tmp_path) == {"inspect"}


def test_options(script, tmp_path):
    assert completed(script, "et_cffi bench --thr", tmp_path) == {"--threads"}
    assert completed(script, "et_cffi verify --", tmp_path) >= {"--rtol", "--save-report", "--help", "--json"}
    assert "--rtol" not in completed(script, "et_cffi inspect --", tmp_path)


def test_files(script, tmp_path):
    (tmp_path / "model.pte").touch()
    (tmp_path / "mode").mkdir()
    found = completed(script, "et_cffi run mod", tmp_path)
    assert "model.pte" in found
    assert "mode" in {word.rstrip("/") for word in found}


def test_choices(script, tmp_path):
    assert completed(script, "et_cffi completion z", tmp_path) == {"zsh"}


@pytest.mark.parametrize(("shell", "has"), [("zsh", "#compdef et_cffi"), ("tcsh", "complete et_cffi")])
def test_other_shells(shell, has, capsys):
    assert main(["completion", shell]) == 0
    assert has in capsys.readouterr().out


def test_json(capsys):
    assert main(["completion", "bash", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert known["shell"] == "bash"
    assert "et_cffi" in known["script"]


@pytest.mark.parametrize(("shell", "status"), [("bash", 0), ("zsh", 2)])
def test_without_shtab(shell, status, tmp_path):
    (tmp_path / "shtab.py").write_text("raise ModuleNotFoundError('blocked', name='shtab')")
    done = subprocess.run(
        [sys.executable, "-m", "et_cffi", "completion", shell], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == status
    if status:
        assert re.fullmatch(r"error: [^\n]* pip install et_cffi\[cli\]\n", done.stderr)
    else:
        assert done.stdout.rstrip("\n") == plain_bash(make_parser(NAME))


def test_bad_use(capsys):
    assert main(["completion", "fish"]) == 2
    assert capsys.readouterr().err.count("\n") == 1

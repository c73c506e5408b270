"""What README.md tells a newcomer to type works as it stands. (Its shell commands are run by CI.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_every_block_is_of_a_language_that_is_run():
    assert README.count("\n```") == 2 * (len(blocks("python")) + len(blocks("sh")))
    assert len(blocks("python")) > 3


@pytest.mark.parametrize("code", blocks("python"))
def test_a_python_block_runs(code, monkeypatch, capsys):
    """A comment after a print is what it prints."""
    monkeypatch.chdir(ROOT)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    out = capsys.readouterr().out.splitlines()
    for line in re.findall(r"print\(.*\)  # (.*)", code):
        assert line in out


def test_the_two_commands_come_first():
    run, test = blocks("sh")
    assert run.startswith("pip install ")
    assert "python -m et_cffi run tests/models/" in run
    assert "pytest" in test
    assert README.index(test) < README.index("## ")


def test_files_that_it_names_exist():
    for link in re.findall(r"\]\(([^)]+)\)", README):
        if not link.startswith("https://"):
            assert (ROOT / link).exists()

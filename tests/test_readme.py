"""README.md: what a newcomer types comes first, and the whole is read in ten minutes.

Its blocks are run by test_docs.py, and its two commands by `nox -s readme`.
"""

from __future__ import annotations

import re

import doc_blocks

README = doc_blocks.ROOT / "README.md"
BLOCKS = doc_blocks.read(README)


def test_the_two_commands_come_first():
    run, test = [block for block in BLOCKS if block.language == "sh"]
    assert run.text.startswith("pip install ")
    assert "python -m et_cffi run tests/models/" in run.text
    assert "pytest" in test.text
    assert {run.words, test.words} == {"install"}
    lines = README.read_text(encoding="utf-8").splitlines()
    assert test.line < next(i for i, line in enumerate(lines, 1) if line.startswith("## "))


def test_it_is_read_in_ten_minutes():
    """At 180 words a minute, which is slow, with two for the build."""
    text = re.sub(r"\]\([^)]*\)", "", README.read_text(encoding="utf-8"))
    assert len(text.split()) < 8 * 180


def test_it_lists_every_page():
    text = README.read_text(encoding="utf-8")
    for page in doc_blocks.PAGES[1:]:
        assert f"]({page.relative_to(doc_blocks.ROOT).as_posix()})" in text

"""Every block of code in README.md, CONTRIBUTING.md and docs/ is run: doc_blocks.py says how."""

from __future__ import annotations

import dataclasses
import re

import doc_blocks
import pytest
from doc_blocks import PAGES, ROOT, Block, read

ALL = [block for page in PAGES for block in read(page)]
RUN_HERE = [page for page in PAGES if any("torch" not in block.words for block in read(page))]
RUN_BESIDE_TORCH = [page for page in PAGES if any("torch" in block.words for block in read(page))]


def name(page):
    return page.relative_to(ROOT).as_posix()


def sessions():
    """Those of noxfile.py, by the names that `nox -s` takes."""
    text = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    found = set()
    for arguments, function in re.findall(r"^@nox\.session\((.*)\)\ndef (\w+)", text, re.MULTILINE):
        named = re.search(r'name="([^"]+)"', arguments)
        found.add(named[1] if named else function)
        if "python=PYTHONS" in arguments:
            versions = re.search(r"^PYTHONS = \[(.*)\]", text, re.MULTILINE)[1]
            found |= {f"{function}-{version}" for version in re.findall(r'"([\d.]+)"', versions)}
    return found


@pytest.mark.parametrize("page", RUN_HERE, ids=name)
def test_a_page_runs(page, tmp_path):
    doc_blocks.run_page(read(page), tmp_path, torch=False)


@pytest.mark.torch
@pytest.mark.parametrize("page", RUN_BESIDE_TORCH, ids=name)
def test_what_needs_torch_runs(page, tmp_path):
    assert doc_blocks.run_page(read(page), tmp_path, torch=True)


def test_every_block_says_what_it_is():
    assert len(ALL) > 30
    assert [block.place for block in ALL if not block.known] == []


def test_every_block_is_well_formed(tmp_path):
    known = sessions()
    assert {"lint", "tests-3.12", "torch", "wheel"} <= known
    for block in ALL:
        doc_blocks.check(block, tmp_path, known)


def test_blocks_that_run_elsewhere_are_where_they_are_looked_for():
    assert {block.page for block in ALL if block.words == "device"} == {"docs/device.md"}
    assert {block.page for block in ALL if block.words == "declaration"} == {"docs/api.md"}
    for page, files in doc_blocks.OWN_TESTS.items():
        assert any(block.page == page and block.language == "console" for block in ALL)
        for file in files:
            text = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert page.rpartition("/")[2] in text or "documented()" in text


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_there_is_no_code_without_a_fence(page):
    """An indented block would be seen by nobody."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"\n\n    .*|^ +```.*|^~~~.*", text, re.MULTILINE) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    """Files, and headings in them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", link):
            continue
        file, _, heading = link.partition("#")
        target = (page.parent / file) if file else page
        assert target.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings]
            assert heading in anchors, link


# ---- that a block can fail ---------------------------------------------------------------------------------


def page_of(*blocks):
    return [Block("page.md", 1, language, words, file, text) for language, words, file, text in blocks]


FAILING = {
    "python": [("python", "", "", "1 / 0\n")],
    "what is printed": [("python", "", "", "print(1)  # 2\n")],
    "a warning": [("python", "", "", "import warnings; warnings.warn('w')\n")],
    "a name of another block": [("python", "", "", "x = 1\n"), ("python", "", "", "x\n")],
    "sh": [("sh", "", "", "false\ntrue\n")],
    "console": [("console", "", "", "$ echo one\ntwo\n")],
    "output": [("sh", "", "", "echo one\n"), ("text", "output", "", "two\n")],
    "a file outside": [("text", "", "../file", "")],
    "a file of the repository": [("text", "", "README.md", "")],
}


@pytest.mark.parametrize("blocks", FAILING.values(), ids=FAILING)
def test_a_block_can_fail(blocks, tmp_path):
    with pytest.raises(AssertionError):
        doc_blocks.run_page(page_of(*blocks), tmp_path, torch=False)


def test_what_runs(tmp_path):
    blocks = page_of(
        ("text", "", "data/words.txt", "words\n"),
        ("python", "", "", "import et_cffi\nx = 2\n"),
        ("python", "continued", "", "print(x)  # 2\n"),
        ("text", "output", "", "2\n"),
        ("sh", "", "", "python -c 'print(3)' && cat data/words.txt && ls tests/models/digits.pte\n"),
        ("text", "output", "", "3\nwords\ntests/models/digits.pte\n"),
        ("console", "", "", "$ echo 4\n4\n"),
        ("python", "torch", "", "1 / 0\n"),
        ("python", "gpu", "", "1 / 0\n"),
        ("sh", "install", "", "false\n"),
    )
    assert doc_blocks.run_page(blocks, tmp_path, torch=False) == blocks[1:7]


NOT_WELL_FORMED = {
    "python": ("python", "gpu", "", "x =\n"),
    "a declaration": ("python", "declaration", "", "f(x: int -> str\n"),
    "sh": ("sh", "install", "", "if\n"),
    "nox": ("sh", "nox", "", "nox -s nothing\n"),
    "export": ("sh", "export", "", "pip install executorch==0.1\npython examples/voice/export.py\n"),
    "no script": ("sh", "export", "", "pip install executorch==1.5.1\npython examples/voice/no.py\n"),
    "another command": ("sh", "nox", "", "nox -s lint\nmake\n"),
    "json": ("json", "", "", "{'a': 1}\n"),
    "c": ("c", "", "", "#include <et_cffi.h>\nint main(void) { return etcffi_no_such(); }\n"),
    "cpp": ("cpp", "", "", "#include <et_cffi.h>\nint main() { return auto; }\n"),
}


@pytest.mark.parametrize("written", NOT_WELL_FORMED.values(), ids=NOT_WELL_FORMED)
def test_a_block_can_be_refused(written, tmp_path):
    with pytest.raises((AssertionError, SyntaxError, ValueError)):
        doc_blocks.check(*page_of(written), tmp_path, {"lint"})


@pytest.mark.parametrize(
    ("language", "words"), [("python", "later"), ("bash", ""), ("", ""), ("sh", "torch")]
)
def test_a_word_that_is_not_known(language, words):
    (block,) = page_of((language, words, "", ""))
    assert not block.known
    assert dataclasses.replace(block, language="python", words="torch").known

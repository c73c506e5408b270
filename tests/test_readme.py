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


# Rows of "What it costs": the table of docs/benchmarks.md by the line above it, two sides, and the column.
COSTS = [
    ("The sum of two 2x2 arrays, its result left", "et_cffi, arrays", "executorch.runtime, torch tensors", 0),
    (
        "torch tensors in and out, 25",
        "et_cffi, torch tensors in and out",
        "executorch.runtime, torch tensors",
        0,
    ),
    (
        "Two inputs and one output of 100 MB each, not",
        "et_cffi, arrays",
        "executorch.runtime, torch tensors",
        0,
    ),
    ("To the first result of digits.pte", "et_cffi", "executorch.runtime", 0),
    ("To the first result of digits.pte", "et_cffi", "executorch.runtime", 3),
    (
        "Portable kernels, which",
        "et_cffi, 2 methods on 2 threads",
        "executorch.runtime, 2 methods on 2 threads",
        1,
    ),
    ("`executorch` brings the parts", "et_cffi", "executorch and torch", 2),
]


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def measured(title):
    """The rows of a table of docs/benchmarks.md, without the quartiles."""
    text = (doc_blocks.ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    (after,) = re.findall(rf"^{re.escape(title)}.*\n(?:.+\n)*\n((?:\|.*\n)+)", text, re.MULTILINE)
    return {name: [cell.split(" ")[0] for cell in row] for name, *row in map(cells, after.splitlines())}


def test_its_figures_are_those_of_the_benchmarks():
    text = README.read_text(encoding="utf-8").partition("## What it costs")[2].partition("\n## ")[0]
    rows = [cells(line) for line in text.splitlines() if line.startswith("|")][2:]
    assert len(rows) == len(COSTS)
    for (label, *figures), (title, own, other, column) in zip(rows, COSTS):
        table = measured(title)
        known = [float(table[own][column]), float(table[other][column])]
        if figures[2]:
            known.append(known[0] / known[1])
        for written, value in zip(figures, known):
            digits = len(written.partition(".")[2])
            assert abs(float(written) - value) <= 0.5001 * 10**-digits, (label, written, value)
    with_numpy = measured("To the first result of digits.pte")["et_cffi with numpy"]
    assert f"With numpy, the first result takes {with_numpy[0]} ms, {with_numpy[3]} MiB." in text


def test_it_lists_every_page():
    text = README.read_text(encoding="utf-8")
    for page in doc_blocks.PAGES[1:]:
        assert f"]({page.relative_to(doc_blocks.ROOT).as_posix()})" in text

"""Reports of `verify`: HTML that needs nothing beside itself, and Markdown."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from et_cffi.cli.accuracy import Accuracy, Bin, Element
from et_cffi.cli.failure import UsageError


class CheckedCase(NamedTuple):
    """One run of a method, and its outputs beside what was expected."""

    method: str
    case: int | None
    outputs: list[Accuracy]

    @property
    def passed(self) -> bool:
        return all(output.passed for output in self.outputs)

    @property
    def title(self) -> str:
        return f"method {self.method}" + ("" if self.case is None else f", test case {self.case}")


class Report(NamedTuple):
    """What a report says: facts about the check, by name, and its cases."""

    facts: dict[str, str]
    cases: list[CheckedCase]

    @property
    def passed(self) -> bool:
        return all(case.passed for case in self.cases)


def check_report_path(path: Path) -> None:
    """Refuses what a report could not be written to, before a model runs for it.

    Raises:
        UsageError: the suffix names no format, or there is no such directory.
    """
    if path.suffix.lower() not in {".html", ".htm", ".md"}:
        raise UsageError(f"--save-report {path}: give a .html or a .md file")
    if not path.parent.is_dir():
        raise UsageError(f"--save-report {path}: there is no directory '{path.parent}'")


def save_report(report: Report, path: Path) -> None:
    """Writes the report in the format that the path's suffix names."""
    text = as_markdown(report) if path.suffix.lower() == ".md" else as_html(report)
    path.write_text(text, encoding="utf-8")


# ---- words, for the terminal too ------------------------------------------------------------------------


def number(value: Any) -> str:
    """A value of an element."""
    return f"{value:.9g}" if isinstance(value, (float, complex)) else str(value)


def verdict(accuracy: Accuracy) -> str:
    """Passed or not, and why not."""
    return "passed" if accuracy.passed else f"FAILED: {accuracy.reason}"


def facts_of(accuracy: Accuracy) -> list[tuple[str, str]]:
    """What is known of an output's errors, by name."""
    facts = []
    if accuracy.elements is not None:
        facts.append(("elements out of tolerance", f"{accuracy.mismatches} of {accuracy.elements}"))
    for name, element in (
        ("largest absolute error", accuracy.max_absolute),
        ("largest relative error", accuracy.max_relative),
    ):
        if element is not None:
            facts.append((name, f"{element.error:.6g}" + (_place(element) if element.error else "")))
    if accuracy.mean_absolute_error is not None:
        facts.append(("mean absolute error", f"{accuracy.mean_absolute_error:.6g}"))
    if accuracy.snr_db is not None:
        ratio = "infinite: no error" if accuracy.snr_db == math.inf else f"{accuracy.snr_db:.1f} dB"
        facts.append(("signal-to-noise ratio", ratio))
    if accuracy.cosine is not None:
        facts.append(("cosine similarity", f"{accuracy.cosine:.9f}"))
    for name, (got, want) in (("NaN", accuracy.nan), ("infinite", accuracy.infinite)):
        if got or want:
            facts.append((name, f"{got}, and {want} expected"))
    if accuracy.not_finite_alike:
        facts.append(("not finite on one side only", str(accuracy.not_finite_alike)))
    return facts


def _place(element: Element) -> str:
    return f" at {element.index}: got {number(element.actual)}, expected {number(element.expected)}"


def bin_label(bin: Bin) -> str:
    """A bin's range of errors."""
    return "0" if bin.high == 0 else f"{bin.low:.1e} to {bin.high:.1e}"


# ---- Markdown -------------------------------------------------------------------------------------------


def as_markdown(report: Report) -> str:
    """The report as GitHub reads it."""
    lines = [f"# {'Passed' if report.passed else 'FAILED'}: {_escape(Path(report.facts['file']).name)}", ""]
    lines += _markdown_table(["", ""], list(report.facts.items()))
    for case in report.cases:
        lines += ["", f"## {_escape(case.title)}: {'passed' if case.passed else 'FAILED'}"]
        for output in case.outputs:
            lines += ["", f"### {output.name}, {output.what}: {_escape(verdict(output))}", ""]
            facts = facts_of(output)
            if facts:
                lines += _markdown_table(["", ""], facts)
            if output.histogram:
                lines += ["", "```text", *histogram_lines(output.histogram, "#"), "```"]
            if output.worst:
                rows = [_worst_cells(element) for element in output.worst]
                lines += ["", *_markdown_table(["index", "got", "expected", "absolute error"], rows)]
    return "\n".join(lines) + "\n"


def histogram_lines(bins: Sequence[Bin], mark: str, width: int = 40) -> list[str]:
    """A histogram of text."""
    most = max(bin.count for bin in bins)
    labels = [bin_label(bin) for bin in bins]
    longest = max(map(len, labels))
    lines = ["absolute error" + " " * max(0, longest - 14) + "  elements"]
    longest = max(longest, 14)
    digits = len(str(most))
    for label, bin in zip(labels, bins):
        length = -(-bin.count * width // most)  # rounded up: a single element is to be seen
        lines.append(f"{label.ljust(longest)}  {str(bin.count).rjust(digits)} {mark * length}".rstrip())
    return lines


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(map(_escape, row)) + " |" for row in rows]


def _escape(text: str) -> str:
    for mark in "\\`*_<|[":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())


def _worst_cells(element: Element) -> list[str]:
    return [str(element.index), number(element.actual), number(element.expected), f"{element.error:.6g}"]


# ---- HTML -----------------------------------------------------------------------------------------------

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222;
       background: #fff }
h1, h2, h3 { line-height: 1.2 } h3 { margin-top: 2em }
table { border-collapse: collapse; margin: .8em 0 }
td, th { padding: .2em 1em .2em 0; text-align: left; border-bottom: 1px solid #ddd; vertical-align: top;
         overflow-wrap: anywhere }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.passed { color: #1a7f37 } .failed { color: #b42318 }
svg { max-width: 100%; height: auto }
"""


def as_html(report: Report) -> str:
    """The report as one file, with its histograms as SVG."""
    passed = "passed" if report.passed else "FAILED"
    title = f"{passed}: {Path(report.facts['file']).name}"
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_coloured(report.passed, title)}</h1>",
        _html_table(list(report.facts.items())),
    ]
    for case in report.cases:
        words = f"{case.title}: {'passed' if case.passed else 'FAILED'}"
        parts.append(f"<h2>{_coloured(case.passed, words)}</h2>")
        for output in case.outputs:
            parts.append(f"<h3>{html.escape(f'{output.name}, {output.what}')}: ")
            parts.append(f"{_coloured(output.passed, verdict(output))}</h3>")
            facts = facts_of(output)
            if facts:
                parts.append(_html_table(facts))
            if output.histogram:
                parts.append(histogram_svg(output.histogram))
            if output.worst:
                rows = [_worst_cells(element) for element in output.worst]
                parts.append(_html_table(rows, ["index", "got", "expected", "absolute error"]))
    return "\n".join([*parts, "</body></html>\n"])


def _coloured(passed: bool, text: str) -> str:
    return f'<span class="{"passed" if passed else "failed"}">{html.escape(text)}</span>'


def _html_table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    lines = ["<table>"]
    if head:
        lines.append("<tr>" + "".join(f'<th class="n">{html.escape(name)}</th>' for name in head) + "</tr>")
    number = ' class="n"' if head else ""
    for row in rows:
        lines.append("<tr>" + "".join(f"<td{number}>{html.escape(cell)}</td>" for cell in row) + "</tr>")
    return "\n".join([*lines, "</table>"])


def histogram_svg(bins: Sequence[Bin]) -> str:
    """A histogram as a drawing: a bar for each bin, horizontal, so that the labels can be read."""
    most = max(bin.count for bin in bins)
    row, left, width = 20, 170, 420
    height = row * (len(bins) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 90} {height}" '
        f'width="{left + width + 90}" role="img" font-family="sans-serif" font-size="12" fill="#222">',
        "<title>Histogram of the absolute errors</title>",
        f'<text x="{left - 8}" y="14" text-anchor="end" font-weight="bold">absolute error</text>',
        f'<text x="{left}" y="14" font-weight="bold">elements</text>',
    ]
    for index, bin in enumerate(bins):
        y = row * (index + 1)
        length = max(1.0, width * bin.count / most) if bin.count else 0
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{bin_label(bin)}</text>')
        parts.append(f'<rect x="{left}" y="{y + 3}" width="{length:.1f}" height="14" fill="#3b6fb6"/>')
        parts.append(f'<text x="{left + length + 6:.1f}" y="{y + 14}">{bin.count:,}</text>')
    return "\n".join([*parts, "</svg>"])

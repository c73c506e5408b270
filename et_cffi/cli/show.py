"""Tables, bars, sizes and progress for a person: by rich and tqdm on a terminal, if they are installed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_FILL = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def count(number: int, thing: str) -> str:
    """So many things, in words."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def size(nbytes: float) -> str:
    """A number of bytes: exact, and beside it rounded where it is long."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= max(factor, 10 << 10):
            return f"{nbytes:,.0f} bytes ({nbytes / factor:,.1f} {unit})"
    return count(round(nbytes), "byte")


def duration(seconds: float) -> str:
    """A time with three or four digits, in the unit that suits it."""
    unit, factor = next(
        ((unit, factor) for unit, factor in (("s", 1.0), ("ms", 1e3)) if seconds * factor >= 1), ("us", 1e6)
    )
    value = seconds * factor
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 10 else 3
    return f"{value:.{digits}f} {unit}"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Prints a table. A column whose name begins with ">" goes to the right; an empty one is left out."""
    used = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    columns, rows = [columns[at] for at in used], [[row[at] for at in used] for row in rows]
    if sys.stdout is not None and sys.stdout.isatty() and _rich_table(columns, rows, title):
        return
    if title:
        print(title)
    for line in plain_table(columns, rows):
        print(f"  {line}")


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table of text."""
    right = [name.startswith(">") for name in columns]
    cells = [[name.lstrip(">") for name in columns], *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    return [
        "  ".join(
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(row, widths, right)
        ).rstrip()
        for row in cells
    ]


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> bool:
    try:
        from rich import box
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table
    except ModuleNotFoundError:
        return False
    made = Table(title=escape(title) or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in columns:
        made.add_column(
            escape(name.lstrip(">")), justify="right" if name.startswith(">") else "left", overflow="fold"
        )
    for row in rows:
        made.add_row(*map(escape, row))
    Console().print(made)
    return True


def bar(share: float, width: int) -> str:
    """A horizontal bar, `share` (0 to 1) of so many characters long, in eighths of one."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    if not encoding.startswith("utf"):
        return "#" * round(eighths / 8)
    return "█" * (eighths // 8) + _FILL[eighths % 8]


def progress(items: Iterable[Any], total: int, what: str) -> Iterator[Any]:
    """The items, with a progress bar on stderr where that is a terminal and tqdm is installed."""
    bar = Progress(total, what)
    try:
        for item in items:
            yield item
            bar.step()
    finally:
        bar.close()


class Progress:
    """A progress bar on stderr: tqdm's, else a line of text that is rewritten; nothing but on a terminal."""

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what, self._done = total, what, 0
        self._tqdm: Any = None
        self._shown = sys.stderr is not None and sys.stderr.isatty()
        if self._shown:
            try:
                from tqdm import tqdm

                self._tqdm = tqdm(total=total, desc=what, leave=False, file=sys.stderr)
            except ModuleNotFoundError:
                pass

    def step(self) -> None:
        """One more is done."""
        self._done += 1
        if self._tqdm is not None:
            self._tqdm.update(1)
        elif self._shown and self._done * 100 // self._total != (self._done - 1) * 100 // self._total:
            print(f"\r{self._what}: {self._done} of {self._total}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Takes the bar away."""
        if self._tqdm is not None:
            self._tqdm.close()
        elif self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

"""A directory of results that grows file by file: each is whole or not there, whenever the process ends."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from et_cffi.cli.failure import UsageError

_MADE_BY = ".et_cffi-batch.json"
_PARTIAL = ".partial"


class Destination:
    """The directory, held against other processes that would write to it as long as this object is open.

    A file is written in the hidden directory .partial first and then renamed, which replaces or makes it at
    once. What a killed process left there is removed by the next one.

    Args:
        directory: it is made if need be.
        made_by: what the results are made by.
        discard: None, or the names of results to begin without, whatever made them.

    Raises:
        UsageError: another process is writing there, or what is there was made by something else.
    """

    def __init__(self, directory: Path, made_by: dict[str, Any], discard: list[Path] | None) -> None:
        self._directory = directory
        self._partial = directory / _PARTIAL
        self._numbers = itertools.count()
        if directory.exists() and not directory.is_dir():
            raise UsageError(f"--output {directory}: it is no directory")
        directory.mkdir(parents=True, exist_ok=True)
        # The system lets go of it when the process ends, however it does.
        self._held = os.open(directory, os.O_RDONLY)
        try:
            self._hold()
            if discard is None:
                self._check(made_by)
            # Before the note that says who made them: a process killed here leaves none under a wrong note.
            for name in discard or []:
                (directory / name).unlink(missing_ok=True)
            self._partial.mkdir(exist_ok=True)
            self._clear()
            self.write(Path(_MADE_BY), lambda file: file.write(json.dumps(made_by).encode()))
        except BaseException:
            os.close(self._held)
            raise

    def _hold(self) -> None:
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--output {self._directory}: another process is writing there") from None

    def _check(self, made_by: dict[str, Any]) -> None:
        try:
            before = json.loads((self._directory / _MADE_BY).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except ValueError:
            before = None
        if before != made_by:
            raise UsageError(
                f"--output {self._directory}: the results there are of another model or method; choose "
                "another directory, or --again to replace them"
            )

    def is_newer(self, name: Path, sources: tuple[str, ...]) -> bool:
        """Whether a file is there and no older than what it was made from."""
        try:
            made = (self._directory / name).stat().st_mtime_ns
        except FileNotFoundError:
            return False
        return all(Path(source).stat().st_mtime_ns <= made for source in sources)

    def write(self, name: Path, write: Callable[[BinaryIO], object]) -> None:
        """Makes or replaces a file with what `write` writes; any thread may."""
        partial = self._partial / str(next(self._numbers))
        target = self._directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                write(file)
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Lets others write there."""
        self._clear()
        self._partial.rmdir()
        os.close(self._held)

    def _clear(self) -> None:
        for path in self._partial.iterdir():
            path.unlink()

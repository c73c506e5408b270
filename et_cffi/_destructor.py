"""Giving a C handle back, and knowing afterwards that it was."""

from __future__ import annotations

from typing import Any, Callable


class Destructor:
    """What `ffi.gc` calls. It keeps what the handle needs until it has run.

    CPython's collector finalises the objects of a reference cycle in any order, so a finaliser of the
    caller's may come to a program or a method whose handle is no more. Whoever uses a handle asks `done`
    first.
    """

    __slots__ = ("_needed", "_release", "done")

    def __init__(self, release: Callable[[Any], None], needed: Any = None) -> None:
        self._release = release
        self._needed = needed
        self.done = False

    def __call__(self, handle: Any) -> None:
        self.done = True
        self._release(handle)
        self._needed = None

"""Destructors for ffi.gc that keep something alive until they have run."""

from __future__ import annotations

from typing import Any, Callable


def releaser(release: Any, *kept: Any) -> Callable[[Any], None]:
    """A destructor that calls `release`, and holds `kept` until it has."""

    def destroy(handle: Any, _kept: Any = kept) -> None:
        release(handle)

    return destroy

"""Which tests run where. Nothing is skipped: what cannot run is deselected, by its marker."""

from __future__ import annotations

import sys

import pytest

# Facts of the interpreter, never of what is installed: a missing package makes its tests fail.
_IMPOSSIBLE = {
    "cpython": sys.implementation.name != "cpython",
    "linux": sys.platform != "linux",
}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    kept, deselected = [], []
    for item in items:
        impossible = any(_IMPOSSIBLE.get(mark.name) for mark in item.iter_markers())
        (deselected if impossible else kept).append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
    # Importing torch changes what every method loaded afterwards returns, and cannot be undone.
    kept.sort(key=lambda item: item.get_closest_marker("torch") is not None)
    items[:] = kept

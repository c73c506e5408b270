"""The test device is loaded into processes of their own: see test_device.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import device_plugin  # noqa: E402

from et_cffi import Runtime  # noqa: E402


@pytest.fixture(scope="session")
def plugin_path(tmp_path_factory):
    """The built plug-in: built once for all processes."""
    built = os.environ.get(device_plugin.VARIABLE)
    return built or str(device_plugin.build(tmp_path_factory.mktemp("device")))


@pytest.fixture
def device(plugin_path):
    """The test device. What a test leaves behind on it fails the test."""
    device = device_plugin.load(plugin_path)
    # A backend that said what it needs; inside_unknown_backend.py is about one that did not.
    Runtime.get().backend_registry.set_input_needs("BackendWithCompilerDemo", padding=0, alignment=4)
    yield from device.watched()

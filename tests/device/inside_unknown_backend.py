"""A backend that never said what it needs of an input's memory: nothing here says so for it."""

from __future__ import annotations

import sys

import device_plugin
import numpy
import pytest
from device_cases import Producer, address, case, check, inputs, load, values

from et_cffi import Runtime
from et_cffi.errors import DeviceError, MethodStateError

sys.path.insert(0, str(device_plugin.HERE / "fakes"))

import cupy


@pytest.fixture
def device(plugin_path):
    yield from device_plugin.load(plugin_path).watched()


def test_borrowed_memory_is_refused(device):
    example = case("device_add")
    x, y = inputs(example)
    method = load("device_add")
    with pytest.raises(
        DeviceError,
        match=r"input 1\b.*borrowed memory on cuda:0.*BackendWithCompilerDemo.*set_input_needs\('BackendWith",
    ):
        method.execute([x, cupy.asarray(y)])
    assert device.leases == 0
    assert device.copies() == (0, 0)
    with pytest.raises(MethodStateError):
        method.execute()
    check(device, method.execute([x, y]), example)


def test_copies_are_fine(device):
    """They are in blocks of this library, with room at the end."""
    example = case("device_add")
    x, y = inputs(example)
    check(device, load("device_add").execute([Producer(device, x), y]), example)
    assert device.copies() == (2, 1)


def test_results_are_fine(device):
    """So are they, whoever lends them."""
    example = case("device_add")
    (result,) = load("device_add").execute(inputs(example))
    device.reset()
    (total,) = load("device_add").execute([result, cupy.from_dlpack(result)])
    assert device.copies() == (0, 0)
    assert device.seen()[:2] == [address(result)] * 2
    assert numpy.array_equal(values(device, total), example.outputs[0] * 2)


def test_planned_inputs_are_fine(device):
    """They are copied into the method's own memory."""
    example = case("device_add_planned")
    x, y = inputs(example)
    check(device, load("device_add_planned").execute([cupy.asarray(x), cupy.asarray(y)]), example)


def test_it_counts_for_methods_loaded_afterwards(device):
    """The last test of this file: what was said cannot be taken back."""
    example = case("device_add")
    x, y = (cupy.asarray(each) for each in inputs(example))
    before = load("device_add")
    Runtime.get().backend_registry.set_input_needs("BackendWithCompilerDemo", padding=0, alignment=4)
    check(device, load("device_add").execute([x, y]), example)
    assert device.copies() == (0, 0)
    with pytest.raises(DeviceError, match="load the method again"):
        before.execute([x, y])

"""What a loaded method uses of memory, and planned buffers in memory that its caller owns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from et_cffi._lib import address_of, ffi, lib
from et_cffi.device import Device, DeviceType
from et_cffi.errors import ArgumentError, MemoryMovedError, check

_OWNERS = {lib.ETCFFI_OWN: "method", lib.ETCFFI_CALLERS: "caller", lib.ETCFFI_SHARED: "program"}


class PlannedBuffer(NamedTuple):
    """A buffer of a method's planned memory.

    `owner` is "method", "caller" (`load_method(planned_memory=...)`), or "program" where the program's
    methods share it (exported with share_mutable_buffers=True): it is then there once for all of them.
    """

    nbytes: int
    device: Device
    owner: str


class MemoryUse(NamedTuple):
    """What a loaded method uses, in bytes, beside the program's file and its backends' own memory."""

    planned: list[PlannedBuffer]
    structures: int
    """The runtime's own structures: values, tensors, instructions."""
    temporary_peak: int
    """The most that the kernels of a single instruction have asked for until now; freed after each."""


def memory_of(method: Any) -> MemoryUse:
    """The memory that a method's handle stands for."""
    structures, peak = ffi.new("size_t *"), ffi.new("size_t *")
    check(lib.etcffi_method_memory(method, structures, peak))
    planned: list[PlannedBuffer] = []
    buffer = ffi.new("etcffi_planned_buffer *")
    while lib.etcffi_method_planned_buffer(method, len(planned), buffer) == 0:
        device = Device(DeviceType(buffer.device.type), buffer.device.index)
        planned.append(PlannedBuffer(int(buffer.nbytes), device, _OWNERS[buffer.owner]))
    return MemoryUse(planned, int(structures[0]), int(peak[0]))


class PlannedMemory:
    """Writable buffers of a caller, for a method's planned buffers.

    Who reads and writes them: the method, and results that it lends, until the last of them is gone.
    """

    __slots__ = ("regions", "views")

    def __init__(self, buffers: Sequence[Any]) -> None:
        self.views: list[memoryview | None] = []
        self.regions = ffi.new("etcffi_region[]", len(buffers))
        for index, buffer in enumerate(buffers):
            self.views.append(None if buffer is None else _writable(buffer, index))
        for region, view in zip(self.regions, self.views):
            if view is not None:
                region.data, region.nbytes = ffi.from_buffer(view), len(view)
        self._refuse_overlaps()

    def _refuse_overlaps(self) -> None:
        places = sorted((address_of(region.data), region.nbytes) for region in self.regions if region.data)
        for (address, nbytes), (following, _) in zip(places, places[1:]):
            if address + nbytes > following:
                raise ArgumentError(
                    "two of the buffers in planned_memory overlap; each needs memory of its own"
                )

    def check(self) -> None:
        """Raises MemoryMovedError unless every buffer is where it was when the method was loaded."""
        for region, view in zip(self.regions, self.views):
            if view is None:
                continue
            with memoryview(view.obj) as now:
                if address_of(ffi.from_buffer(now)) != address_of(region.data) or now.nbytes != region.nbytes:
                    raise MemoryMovedError(
                        "a buffer of planned_memory was moved or resized while the method was loaded "
                        "(numpy's resize(refcheck=False) does that); load the method again"
                    )


def _writable(buffer: Any, index: int) -> memoryview:
    try:
        view = memoryview(buffer)
    except TypeError:
        raise TypeError(
            f"item {index} of planned_memory is a {type(buffer).__name__}; it is a writable buffer, or None "
            "for memory of the method's own"
        ) from None
    if view.readonly or not view.c_contiguous:
        raise ArgumentError(f"item {index} of planned_memory is read-only or not contiguous")
    return view.cast("B")

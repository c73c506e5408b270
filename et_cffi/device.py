"""Where memory is."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from et_cffi._lib import lib


class DeviceType(IntEnum):
    """The kind of a device, with ExecuTorch's values."""

    CPU = lib.ETCFFI_DeviceType_CPU
    CUDA = lib.ETCFFI_DeviceType_CUDA


class Device(NamedTuple):
    """A device: its kind, and which one of that kind."""

    type: DeviceType
    index: int  # type: ignore[assignment]  # torch's name for it; tuple.index is of no use here

    def __str__(self) -> str:
        return f"{self.type.name.lower()}:{self.index}"


CPU = Device(DeviceType.CPU, 0)

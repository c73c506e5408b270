"""The one description of memory that every way in ends with."""

from __future__ import annotations

from typing import Any, Callable

from et_cffi.device import CPU, Device


class Memory:
    """Some memory: where it is, what is in it, and what its source promises.

    `address` is that of the first element, `nbytes` how much may be read from there on, `strides` count
    elements. `pinned` says that the memory stays put and may be written for as long as `owner` is held;
    `read_only` that it may not, whatever else is known of it.
    `locate` finds the memory again: address and bytes of what exports it, to be compared with `location`.
    """

    __slots__ = (
        "address",
        "device",
        "locate",
        "location",
        "nbytes",
        "owner",
        "pinned",
        "read_only",
        "release_owner",
        "scalar_type",
        "shape",
        "strides",
    )

    def __init__(
        self,
        address: int,
        nbytes: int,
        scalar_type: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        owner: Any,
        *,
        pinned: bool,
        read_only: bool = False,
        device: Device = CPU,
        locate: Callable[[], object] | None = None,
        release_owner: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self.nbytes = nbytes
        self.scalar_type = scalar_type
        self.shape = shape
        self.strides = strides
        self.owner = owner
        self.pinned = pinned
        self.read_only = read_only
        self.device = device
        self.locate = locate
        self.location = locate() if locate is not None else None
        self.release_owner = release_owner

    def moved(self) -> bool:
        """Whether the memory is no longer where it was when it was described, or not as long."""
        return self.locate is not None and self.locate() != self.location

    def release(self) -> None:
        """Lets go of the source now, not when a garbage collector comes round to it (PyPy)."""
        release, self.release_owner, self.owner, self.locate = self.release_owner, None, None, None
        if release is not None:
            release()

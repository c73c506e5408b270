"""Memory on the test device as a caching allocator has it: what was freed is given to the next who asks."""

from __future__ import annotations

import device_plugin

UNIT = 512  # CuPy's pool and torch's allocator both round up to it


class Pool:
    """Blocks by their device and size, kept for later when they are freed."""

    def __init__(self) -> None:
        self.free: dict[tuple[int, int], list[device_plugin.Foreign]] = {}
        self.all: list[device_plugin.Foreign] = []  # as a pool does, it never lets go of any

    def take(self, nbytes: int, index: int) -> device_plugin.Foreign:
        nbytes = (nbytes + UNIT - 1) // UNIT * UNIT
        kept = self.free.setdefault((index, nbytes), [])
        if not kept:
            kept.append(device_plugin.current().foreign(nbytes, index))
            self.all += kept
        return kept.pop()

    def give_back(self, block: device_plugin.Foreign) -> None:
        self.free.setdefault((block.index, block.nbytes), []).append(block)

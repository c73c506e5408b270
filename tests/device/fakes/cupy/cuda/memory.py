from __future__ import annotations

from typing import Any

import device_plugin
from pool import Pool


class BaseMemory:
    def __init__(self, ptr: int, size: int, device_id: int) -> None:
        self.ptr, self.size, self.device_id = ptr, size, device_id


class Memory(BaseMemory):
    """Memory straight from the device."""

    def __init__(self, size: int, device_id: int) -> None:
        self.block = device_plugin.current().foreign(size, device_id)
        super().__init__(self.block.address, size, device_id)


class UnownedMemory(BaseMemory):
    """Memory that somebody else owns."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = 0) -> None:
        super().__init__(ptr, size, device_id)
        self.owner = owner


class PooledMemory(BaseMemory):
    """A block of a pool, which it goes back to."""

    def __init__(self, pool: Pool, size: int, device_id: int) -> None:
        self.pool, self.block = pool, pool.take(size, device_id)
        super().__init__(self.block.address, self.block.nbytes, device_id)

    def free(self) -> None:
        if self.ptr:
            self.ptr = 0
            self.pool.give_back(self.block)

    def __del__(self) -> None:
        self.free()


class MemoryPointer:
    def __init__(self, mem: BaseMemory, offset: int) -> None:
        self.mem, self.offset = mem, offset
        self.ptr, self.device_id = mem.ptr + offset, mem.device_id


class MemoryPool:
    def __init__(self) -> None:
        self._pool = Pool()

    def malloc(self, size: int) -> MemoryPointer:
        from cupy import cuda

        return MemoryPointer(PooledMemory(self._pool, size, cuda.Device().id), 0)

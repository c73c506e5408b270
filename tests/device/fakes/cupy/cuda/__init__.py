from __future__ import annotations

from typing import Any

from cupy.cuda import memory
from cupy.cuda.memory import MemoryPointer

_current = [0]
default_memory_pool = memory.MemoryPool()
_allocators: list[Any] = [default_memory_pool.malloc]


class Device:
    def __init__(self, device: int = -1) -> None:
        self.id = _current[-1] if device < 0 else device

    def __enter__(self) -> Device:
        _current.append(self.id)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _current.pop()


class Stream:
    ptr = 0


def get_current_stream() -> Stream:
    return Stream()


def alloc(size: int) -> MemoryPointer:
    allocator = _allocators[-1]
    return MemoryPointer(memory.Memory(size, Device().id), 0) if allocator is None else allocator(size)


class using_allocator:
    def __init__(self, allocator: Any) -> None:
        self.allocator = allocator

    def __enter__(self) -> None:
        _allocators.append(self.allocator)

    def __exit__(self, *exc_info: object) -> None:
        _allocators.pop()

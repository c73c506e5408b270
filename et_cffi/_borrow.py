"""Whose memory on a device is pointed at where it is: the whole list, and why each is on it.

Holding an array does not keep its memory where it is. The array can be given another storage, and an
allocator that keeps freed memory for later hands it to somebody else while nothing looks freed. So memory on
a device is borrowed only from an allocator that is known to leave it alone for as long as its *storage* is
held, whatever becomes of the array; and what the array and the storage say of themselves is asked again
before each run, since either can be told to let go (`mem.free()`, `tensor.set_()`, `storage.resize_()`).

1. This library's own blocks: every result, whoever lends it (a TensorBuffer, a torch tensor or a CuPy array
   made of one). They are neither freed nor moved while they are referred to. csrc/block.cpp knows them by
   their address, so nothing about them stands here.
2. CuPy's memory pool, its default allocator. A block of it is a `PooledMemory`: read-only to Python but for
   `free()`, and back in the pool when the last reference goes. Memory from elsewhere (`UnownedMemory`, an
   allocator that the caller set) is of other classes.
3. torch's own caching allocator for CUDA. A storage of it can be resized, one that wraps somebody else's
   memory (DLPack, another process) cannot; and the allocator can be replaced as a whole, which it tells.

Everything else is copied into a block of this library: JAX, RMM, an allocator of the caller's own.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, NamedTuple


class Anchor(NamedTuple):
    """What keeps memory on a device where it is.

    Attributes:
        storage: what is to be held.
        readable: the bytes from the array's first element to the storage's end.
        locate: says where the memory is now, and how much of it, to be compared with the answer before.
    """

    storage: Any
    readable: int
    locate: Callable[[], object]


def anchor_of(array: Any) -> Anchor | None:
    """The anchor of an array on a device, or None where it is of no allocator on the list. (torch's tensors
    have their own way in, which asks `anchor_in_torch`.)"""
    cupy, memory = sys.modules.get("cupy"), sys.modules.get("cupy.cuda.memory")
    # The classes themselves are asked: any object can carry a name. Neither is imported to find out.
    if cupy is None or memory is None or cupy.ndarray not in type(array).__mro__:
        return None
    block = array.data.mem
    if type(block) is not memory.PooledMemory or not block.ptr:
        return None

    def locate() -> object:
        # `free()` leaves the array's own pointer as it was, and the block's at 0.
        return array.data.ptr, array.data.mem is block, block.ptr, block.size

    return Anchor(block, block.size - (array.data.ptr - block.ptr), locate)


def anchor_in_torch(torch: Any, storage: Any, readable: int, locate: Callable[[], object]) -> Anchor | None:
    """The anchor of a torch tensor on a CUDA device, or None where its storage is of another allocator."""
    if not storage.resizable() or torch.cuda.memory.get_allocator_backend() != "native":
        return None
    return Anchor(storage, readable, locate)

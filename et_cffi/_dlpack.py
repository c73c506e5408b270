"""Inputs through DLPack: CuPy, JAX and whatever else has `__dlpack__`; and everything on a device."""

from __future__ import annotations

from typing import Any

from et_cffi._borrow import Anchor, anchor_of
from et_cffi._destructor import Destructor
from et_cffi._lib import address_of, capsule, ffi, lib
from et_cffi._memory import Memory
from et_cffi.device import CPU, Device, DeviceType
from et_cffi.errors import DeviceError, DtypeError, InputKindError, failure

# DLPack's DLDeviceType: CPU, and pinned and managed CUDA memory, which the host reads like its own.
_HOST = {1, 3, 13}
_CUDA = 2
_MAX_VERSION = (lib.ETCFFI_DLPACK_MAJOR, lib.ETCFFI_DLPACK_MINOR)

# The array API standard's name for CUDA's legacy default stream. The producer makes it wait for whatever
# still writes to the memory; and what is issued to the device afterwards, by a DeviceAllocator or a backend,
# waits for it in turn, on every stream but those that were made not to.
_DEFAULT_STREAM = 1


def describe_dlpack(source: Any) -> Memory | None:
    """The memory of a DLPack producer, or None for an object that is none.

    Raises:
        ExecuTorchError: as `claim_dlpack`.
    """
    if getattr(type(source), "__dlpack__", None) is None:
        return None
    return claim_dlpack(source, None)


def claim_dlpack(source: Any, anchor: Anchor | None) -> Memory:
    """The memory of a DLPack producer.

    The capsule is claimed, so its deleter is called exactly once: when the description is released.

    Args:
        source: the producer.
        anchor: what keeps its memory on a device in place, where the caller knows.

    Raises:
        DeviceError: it is on a device that the runtime cannot name, and `__dlpack__` is then not called; or
            its capsule is on another device than it said.
        DtypeError, ShapeError: it has a dtype or a shape that the runtime cannot describe.
        InputKindError: what it hands over is no DLPack capsule, or one that was consumed.
    """
    said = _device_of(source)
    made = _produce(source, {"stream": _DEFAULT_STREAM} if said and said.type is DeviceType.CUDA else {})
    try:
        address, versioned = capsule.claim(made)
    except (TypeError, ValueError) as error:
        raise InputKindError(f"its __dlpack__ handed over nothing that can be claimed: {error}") from error
    # From here on the memory is ours to give back. Who reads it: the runtime, until the input is replaced.
    if versioned:
        destructor = Destructor(lib.etcffi_dlpack_release_versioned)
        managed = ffi.gc(ffi.cast("DLManagedTensorVersioned *", address), destructor)
    else:
        destructor = Destructor(lib.etcffi_dlpack_release)
        managed = ffi.gc(ffi.cast("DLManagedTensor *", address), destructor)
    try:
        memory, device = _described(managed, versioned, said)
        if device == CPU:
            # Claiming the capsule is the producer's promise to leave the memory where it is.
            pinned, readable, anchor = True, memory.nbytes, None
        else:
            # On a device it is not enough: the allocator has to be on the list.
            anchor = anchor or anchor_of(source)
            pinned = anchor is not None
            readable = max(memory.nbytes, anchor.readable) if anchor else memory.nbytes
        return Memory(
            address_of(memory.data),
            readable,
            memory.scalar_type,
            tuple(memory.sizes[0 : memory.ndim]),
            tuple(memory.strides[0 : memory.ndim]),
            managed,
            pinned=pinned,
            read_only=versioned and bool(managed.flags & lib.ETCFFI_DLPACK_READ_ONLY),
            device=device,
            # It holds the anchor, and so the storage. `done`: the capsule was given back before its time,
            # where a collector finalises it together with the method.
            locate=lambda: (destructor.done, anchor and anchor.locate()),
            release_owner=lambda: ffi.release(managed),
        )
    except BaseException:
        ffi.release(managed)
        raise


def _device_of(source: Any) -> Device | None:
    """Where a producer says that its memory is, or None where it does not say."""
    device_of = getattr(source, "__dlpack_device__", None)
    if device_of is None:
        return None
    said = device_of()
    try:
        kind, index = map(int, said)
    except (TypeError, ValueError) as error:
        raise InputKindError(
            f"its __dlpack_device__ answers {said!r}, which is no pair of a device type and a device id"
        ) from error
    if kind in _HOST:
        return CPU
    if kind == _CUDA:
        return Device(DeviceType.CUDA, int(index))
    raise DeviceError(
        f"it is on DLPack device type {kind}, which the runtime cannot name; copy it to the host first"
    )


def _produce(source: Any, stream: dict[str, int]) -> Any:
    try:
        return source.__dlpack__(**stream, max_version=_MAX_VERSION)
    except TypeError:
        # A producer from before DLPack 1.0 takes no such keyword.
        return source.__dlpack__(**stream)


def _described(managed: Any, versioned: bool, said: Device | None) -> tuple[Any, Device]:
    """What a capsule states, as an etcffi_memory, and the device."""
    if versioned and managed.version.major != lib.ETCFFI_DLPACK_MAJOR:
        raise DtypeError(
            f"its capsule is of DLPack version {managed.version.major}, and version 1 is understood"
        )
    memory = ffi.new("etcffi_memory *")
    status = lib.etcffi_memory_from_dlpack(ffi.addressof(managed.dl_tensor), memory)
    if status:
        raise failure(status)
    device = Device(DeviceType(memory.device.type), memory.device.index)
    if said is not None and said != device:
        raise DeviceError(f"its __dlpack_device__ says {said}, and its capsule {device}")
    return memory, device

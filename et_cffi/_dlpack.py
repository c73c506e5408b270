"""Inputs through DLPack: CuPy, JAX and whatever else has `__dlpack__`."""

from __future__ import annotations

from typing import Any

from et_cffi._lib import address_of, capsule, ffi, lib
from et_cffi._memory import Memory
from et_cffi.device import Device, DeviceType
from et_cffi.errors import DeviceError, DtypeError, InputKindError, failure

# DLPack's DLDeviceType: CPU, and pinned and managed CUDA memory, which the host reads like its own.
_HOST = {1, 3, 13}
_CUDA = 2
_MAX_VERSION = (lib.ETCFFI_DLPACK_MAJOR, lib.ETCFFI_DLPACK_MINOR)


def describe_dlpack(source: Any) -> Memory | None:
    """The memory of a DLPack producer, or None for an object that is none.

    The capsule is claimed, so its deleter is called exactly once: when the description is released.

    Raises:
        DeviceError: it is on a device that the runtime cannot name; `__dlpack__` is then not called.
        DtypeError, ShapeError: it has a dtype or a shape that the runtime cannot describe.
        InputKindError: what it hands over is no DLPack capsule, or one that was consumed.
    """
    produce = getattr(type(source), "__dlpack__", None)
    if produce is None:
        return None
    device_of = getattr(source, "__dlpack_device__", None)
    if device_of is not None:
        kind = int(device_of()[0])
        if kind not in _HOST and kind != _CUDA:
            raise DeviceError(
                f"it is on DLPack device type {kind}, which the runtime cannot name; copy it to the host "
                "first"
            )
    made = _produce(source)
    try:
        address, versioned = capsule.claim(made)
    except (TypeError, ValueError) as error:
        raise InputKindError(f"its __dlpack__ handed over nothing that can be claimed: {error}") from error
    # From here on the memory is ours to give back. Who reads it: the runtime, until the input is replaced.
    if versioned:
        managed = ffi.gc(ffi.cast("DLManagedTensorVersioned *", address), lib.etcffi_dlpack_release_versioned)
        if managed.version.major != lib.ETCFFI_DLPACK_MAJOR:
            major = managed.version.major
            ffi.release(managed)
            raise DtypeError(f"its capsule is of DLPack version {major}, and version 1 is understood")
        read_only = bool(managed.flags & lib.ETCFFI_DLPACK_READ_ONLY)
    else:
        managed = ffi.gc(ffi.cast("DLManagedTensor *", address), lib.etcffi_dlpack_release)
        read_only = False
    memory = ffi.new("etcffi_memory *")
    status = lib.etcffi_memory_from_dlpack(ffi.addressof(managed.dl_tensor), memory)
    if status:
        ffi.release(managed)
        raise failure(status)
    return Memory(
        address_of(memory.data),
        memory.nbytes,
        memory.scalar_type,
        tuple(memory.sizes[0 : memory.ndim]),
        tuple(memory.strides[0 : memory.ndim]),
        managed,
        # Claiming the capsule is the producer's promise to leave the memory where it is.
        pinned=not read_only,
        device=Device(DeviceType(memory.device.type), memory.device.index),
        release_owner=lambda: ffi.release(managed),
    )


def _produce(source: Any) -> Any:
    try:
        return source.__dlpack__(max_version=_MAX_VERSION)
    except TypeError:
        # A producer from before DLPack 1.0 takes no such keyword.
        return source.__dlpack__()

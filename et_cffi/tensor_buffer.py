"""What a method returns where there is no torch: memory, lent out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from et_cffi._lib import address_of, capsule, cpython, ffi, lib
from et_cffi._memory import Memory
from et_cffi.cdata import pointer_to
from et_cffi.device import CPU, Device, DeviceType
from et_cffi.dtypes import DTYPES, ScalarType
from et_cffi.errors import DeviceError, check

# DLPack's (device type, device id) of the host.
_DL_HOST = (1, 0)
# The streams that need nothing done: the array API standard's names for the legacy default stream, which runs
# after everything that was issued before, and for no ordering at all.
_ORDERED_STREAMS = (None, 1, -1)


class _CffiLender:
    """Who reads the tensor's memory: whoever holds this object or a view of it. It owns one reference."""

    __slots__ = ("_tensor",)
    _tensor: Any

    @classmethod
    def _adopt(cls, tensor: Any) -> Any:
        made = cls.__new__(cls)
        # The size tells PyPy's collector what it would free: it sees the handle only.
        made._tensor = ffi.gc(tensor, lib.etcffi_tensor_release, lib.etcffi_tensor_readable(tensor))
        return made


class _CPythonLender(cpython.Lender if cpython else object):  # type: ignore[misc]
    """The same, with CPython's own buffer protocol."""

    __slots__ = ()

    @property
    def _tensor(self) -> Any:
        return ffi.cast("etcffi_tensor *", self._address)


class TensorBuffer(_CPythonLender if cpython else _CffiLender):  # type: ignore[misc]
    """A tensor's memory, with a shape, a dtype and strides. It holds numbers and does no arithmetic.

    `numpy.asarray(buffer)` reads the same memory without a copy, and so does every consumer of DLPack
    (`torch.from_dlpack(buffer)`). The memory lives as long as the buffer or anything made of it. Memory on a
    device is read where it is by consumers of DLPack (`cupy.from_dlpack(buffer)`), and on the host after it
    was copied there (`buffer.to_host()`).
    """

    # _keeps: the caller's planned memory, where this may be lent out of it.
    __slots__ = ("__weakref__", "_keeps")

    def __init__(self) -> None:
        raise TypeError("a TensorBuffer is what a method returns; it is not made from Python")

    @property
    def _memory(self) -> Any:
        return lib.etcffi_tensor_memory(self._tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        memory = self._memory
        return tuple(memory.sizes[0 : memory.ndim])

    @property
    def strides(self) -> tuple[int, ...]:
        """The bytes from one element to the next, in each dimension."""
        memory, itemsize = self._memory, self.itemsize
        return tuple(stride * itemsize for stride in memory.strides[0 : memory.ndim])

    @property
    def dtype(self) -> ScalarType:
        """The type of the elements."""
        return ScalarType(self._memory.scalar_type)

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return int(self._memory.ndim)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(self._memory.nbytes)

    @property
    def device(self) -> Device:
        """Where the memory is."""
        device = self._memory.device
        return Device(DeviceType(device.type), device.index)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """numpy's description of the memory. A dtype that it has no name for (bfloat16, say) is presented
        as the unsigned integer of the same width, in its own shape.

        Raises:
            DeviceError: the host cannot read the memory.
        """
        self._require_host("read as an array")
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": DTYPES[self.dtype].typestr,
            "data": (address_of(self._memory.data), False),
            "strides": self.strides,
        }

    def tobytes(self) -> bytes:
        """The elements' bytes, in the order of the shape (the last dimension fastest).

        Raises:
            DeviceError: the host cannot read the memory.
        """
        self._require_host("read as bytes")
        import numpy

        return bytes(numpy.asarray(self).tobytes())

    def cdata(self) -> Any:
        """A cffi pointer to the first element, for C code: `float *`, `int64_t *`, ... A dtype that C has no
        type for (float16, bfloat16) is pointed at as the unsigned integer of its width.

        The same memory, not a copy. The pointer holds it, whatever becomes of this buffer and the method.
        What cffi makes of the pointer (`pointer + 1`, a cast, a copy in a struct) holds nothing.

        Raises:
            DeviceError: the host cannot read the memory.
        """
        self._require_host("pointed at from C")
        return pointer_to(self._memory.data, self.dtype, self)

    def to_host(self) -> TensorBuffer:
        """The same tensor in the host's memory: a copy of memory on a device, made by the device's allocator;
        this buffer itself where it is on the host already.

        Raises:
            ExecuTorchError: the device's allocator failed.
        """
        if self.device == CPU:
            return self
        made = ffi.new("etcffi_tensor **")
        check(lib.etcffi_tensor_to_host(self._tensor, made))
        return adopt(made[0])

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's (device type, device id): (1, 0) is the host."""
        device = self.device
        return (1 if device.type is DeviceType.CPU else 2, device.index)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule over the same memory, as the Python array API standard describes it.

        Args:
            stream: the consumer's stream, as a number, where the memory is on a CUDA device: None or 1 for
                the legacy default stream, 2 for the default stream of the thread, -1 for no ordering. Work
                on the legacy default stream comes after the run by itself; for another stream this waits
                until the memory is written. On the host None.
            max_version: the highest DLPack version the consumer understands; from (1, 0) on it gets a
                versioned capsule.
            dl_device: None, or where the memory is, or (1, 0) for the host.
            copy: True for a capsule over a copy, False for none. None copies where dl_device says so.

        Raises:
            DeviceError: another device is asked for, or the host with copy=False; or a stream that is none.
            DtypeError: DLPack has no name for the dtype.
            ExecuTorchError: a copy was needed and the device's allocator failed.
        """
        here = self.__dlpack_device__()
        wanted = here if dl_device is None else tuple(dl_device)
        if wanted not in (here, _DL_HOST):
            raise DeviceError(f"the memory is on {self.device}, and DLPack device {dl_device} was asked for")
        if wanted != here and copy is False:
            raise DeviceError(
                f"the memory is on {self.device}, and to bring it to the host takes a copy, which copy=False "
                "rules out"
            )
        _check_stream(stream, here)
        versioned = max_version is not None and tuple(max_version) >= (1, 0)
        if lib.etcffi_tensor_is_borrowed(self._tensor):
            # The caller's own memory (load_method's planned_memory), which a capsule could outlive.
            if copy is False:
                raise DeviceError(
                    "the memory is a buffer of planned_memory, which DLPack cannot keep alive; read the "
                    "buffer itself, or take a copy"
                )
            copy = True
        if copy or wanted != here:
            made = ffi.new("etcffi_tensor **")
            copy_tensor = lib.etcffi_tensor_clone if wanted == here else lib.etcffi_tensor_to_host
            check(copy_tensor(self._tensor, made))
            copied = ffi.gc(made[0], lib.etcffi_tensor_release)
            try:
                return _capsule_of(copied, versioned, lib.ETCFFI_DLPACK_IS_COPIED)
            finally:
                ffi.release(copied)  # the capsule has a reference of its own
        if stream not in _ORDERED_STREAMS:
            check(lib.etcffi_tensor_synchronize(self._tensor))
        return _capsule_of(self._tensor, versioned, 0)

    def _require_host(self, what: str) -> None:
        if self._memory.device.type != lib.ETCFFI_DeviceType_CPU:
            raise DeviceError(
                f"the memory is on {self.device}, which the host cannot read: it cannot be {what} without "
                "being copied to the host first (to_host()); pass it on through DLPack to keep it where it is"
            )

    def __reduce__(self) -> Any:
        raise TypeError(
            "a TensorBuffer holds native memory and cannot be copied or pickled; numpy.array copies it"
        )

    def __repr__(self) -> str:
        device = "" if self._memory.device.type == lib.ETCFFI_DeviceType_CPU else f", device={self.device}"
        return f"TensorBuffer(shape={self.shape}, dtype={self.dtype}{device})"


def copy_of(
    content: bytes, dtype: ScalarType, sizes: Sequence[int], dim_order: Iterable[int]
) -> TensorBuffer:
    """A tensor with a copy of `content`, which is packed with `dim_order` from the outermost dimension in.

    Raises:
        ShapeError, MemoryMissingError: the sizes cannot be, or need more bytes than there are.
    """
    memory, made = ffi.new("etcffi_memory *"), ffi.new("etcffi_tensor **")
    kept = ffi.from_buffer(content)
    memory.data, memory.nbytes = kept, len(content)
    memory.scalar_type, memory.ndim = dtype, len(sizes)
    memory.sizes[0 : len(sizes)] = sizes
    step = 1
    for dim in reversed(list(dim_order)):
        memory.strides[dim] = step
        step *= sizes[dim]
    check(lib.etcffi_tensor_new(memory, made))
    return adopt(made[0])


def adopt(tensor: Any) -> TensorBuffer:
    """The buffer that takes over a reference to a tensor."""
    buffer: TensorBuffer = TensorBuffer._adopt(address_of(tensor) if cpython else tensor)
    return buffer


def _check_stream(stream: Any, device: tuple[int, int]) -> None:
    if device == _DL_HOST:
        if stream is not None:
            raise DeviceError("memory on the host has no stream; pass stream=None")
    elif stream is not None and (not isinstance(stream, int) or stream < -1 or stream == 0):
        raise DeviceError(
            f"{stream!r} names no CUDA stream: 1 is the legacy default stream, 2 that of the thread, -1 asks "
            "for no ordering, and any other stream is its handle as a number"
        )


def _capsule_of(tensor: Any, versioned: bool, flags: int) -> Any:
    """A capsule that refers to the C tensor and not to a Python object: its deleter needs no interpreter."""
    if versioned:
        managed = ffi.new("DLManagedTensorVersioned **")
        check(lib.etcffi_tensor_to_dlpack_versioned(tensor, flags, managed))
    else:
        managed = ffi.new("DLManagedTensor **")
        check(lib.etcffi_tensor_to_dlpack(tensor, managed))
    return _wrap(managed[0], versioned)


def _wrap(managed: Any, versioned: bool) -> Any:
    try:
        return capsule.wrap(address_of(managed), versioned)
    except BaseException:
        managed.deleter(managed)
        raise


def describe_result(source: Any) -> Memory | None:
    """The memory of a result that goes straight back in, or None for anything else."""
    if type(source) is not TensorBuffer:
        return None
    memory = source._memory
    return Memory(
        address_of(memory.data),
        lib.etcffi_tensor_readable(source._tensor),
        memory.scalar_type,
        tuple(memory.sizes[0 : memory.ndim]),
        tuple(memory.strides[0 : memory.ndim]),
        source,
        # Its block is neither resized nor freed while the buffer is held.
        pinned=True,
        device=source.device,
    )

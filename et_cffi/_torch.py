"""torch tensors, in and out, through torch's Python API: nothing of torch is linked, nor ever imported."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from et_cffi._borrow import anchor_in_torch
from et_cffi._dlpack import claim_dlpack
from et_cffi._memory import Memory
from et_cffi.device import CPU
from et_cffi.dtypes import BY_NAME, DTYPES
from et_cffi.errors import DeviceError, DtypeError, InputKindError, MemoryMissingError, ShapeError

if TYPE_CHECKING:
    from et_cffi.tensor_buffer import TensorBuffer


def loaded_torch() -> Any | None:
    """torch, where the process has it. It is not imported to find out: that would load libtorch."""
    torch = sys.modules.get("torch")
    return torch if getattr(torch, "Tensor", None) is not None else None


def describe_torch(source: Any) -> Memory | None:
    """The memory of a torch tensor, or None for anything else.

    Raises:
        InputKindError: memory that does not hold the values that the tensor shows (a pending negation or
            conjugation), or that is none (sparse, quantized, nested, meta and fake tensors).
        DtypeError, DeviceError: a dtype or a device that the runtime cannot name.
        ShapeError, MemoryMissingError: what the tensor says of itself does not agree.
    """
    torch = loaded_torch()
    # The class itself is asked, not a name or an attribute, which any object can carry.
    if torch is None or torch.Tensor not in type(source).__mro__:
        return None
    # A subclass's own version of these says nothing: they are looked up on the class, and __torch_function__
    # is not asked.
    with torch._C.DisableTorchFunctionSubclass():
        return _describe(torch, source)


def _describe(torch: Any, source: Any) -> Memory:
    tensor = torch.Tensor
    _refuse_what_holds_no_values(torch, source)
    name = str(tensor.dtype.__get__(source)).rpartition(".")[2]
    scalar_type = BY_NAME.get(name)
    if scalar_type is None:
        raise DtypeError(f"its dtype {name} is none that the runtime knows; convert it first")
    device = tensor.device.__get__(source)
    if device.type not in {"cpu", "cuda"}:
        raise DeviceError(
            f"it is on device {device}, which the runtime cannot name; only CPU and CUDA tensors can be "
            "passed to a method"
        )
    itemsize = tensor.element_size(source)
    shape, strides = tuple(tensor.size(source)), tuple(tensor.stride(source))
    if len(shape) != len(strides) or itemsize != DTYPES[scalar_type].itemsize:
        raise ShapeError("its shape, strides and dtype disagree, so its layout cannot be read")
    storage = tensor.untyped_storage(source)
    address, nbytes = _extent(tensor, source, storage, shape, strides, itemsize)
    if device.type == "cuda":
        anchor = anchor_in_torch(torch, storage, nbytes, lambda: _place(torch, source))
        # Memory on a device is taken through DLPack, which is what orders the streams. torch hands over a
        # tensor of the current device only, and none that requires a gradient.
        with torch.cuda.device(device):
            return claim_dlpack(tensor.as_subclass(tensor.detach(source), tensor), anchor)
    return Memory(
        address,
        nbytes,
        scalar_type,
        shape,
        strides,
        # Holding the tensor is not enough: its storage can be replaced while the object stays alive. The
        # storage is held too (the tensor by `locate`), and both are asked again before each run.
        storage,
        # A storage that is not torch's own (torch.from_numpy) may be freed under it by whoever owns the
        # memory, so it proves nothing: such a tensor is copied.
        pinned=storage.resizable(),
        locate=lambda: _place(torch, source),
    )


def _place(torch: Any, source: Any) -> tuple[int, int]:
    """Where a tensor's first element is now, and how long its storage."""
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.data_ptr(source), torch.Tensor.untyped_storage(source).nbytes()


def _refuse_what_holds_no_values(torch: Any, source: Any) -> None:
    tensor = torch.Tensor
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    if fake is not None and isinstance(source, fake.FakeTensor):
        raise InputKindError("it is a fake tensor, which has no values")
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is not None and functorch.is_functorch_wrapped_tensor(source):
        raise InputKindError("it is wrapped by a torch.func transform, which has no memory of its own")
    layout = tensor.layout.__get__(source)
    if layout is not torch.strided:
        raise InputKindError(f"it has the layout {layout}; make it dense first (.to_dense())")
    if tensor.is_quantized.__get__(source):
        raise InputKindError("it is a quantized tensor; pass its .int_repr()")
    if tensor.is_nested.__get__(source):
        raise InputKindError("it is a nested tensor; pad it first")
    if tensor.device.__get__(source).type == "meta":
        raise InputKindError(
            "it is on device meta, where tensors have no values; only CPU and CUDA tensors can be passed to "
            "a method"
        )
    # torch applies the sign when something reads the tensor, so the memory holds other values.
    if tensor.is_neg(source):
        raise InputKindError("it is a negated view, whose sign is pending; call .resolve_neg() first")
    if tensor.is_conj(source):
        raise InputKindError("it is a conjugated view, whose sign is pending; call .resolve_conj() first")


def _extent(
    tensor: Any, source: Any, storage: Any, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[int, int]:
    """The first element's address, and the bytes from there to the end of the storage."""
    address = tensor.data_ptr(source)
    if 0 in shape:
        return address, 0
    offset = tensor.storage_offset(source) * itemsize
    room = storage.nbytes() - offset
    last = sum((size - 1) * stride for size, stride in zip(shape, strides)) * itemsize
    if address == 0 or storage.data_ptr() == 0:
        raise MemoryMissingError("it has elements but no memory")
    if address != storage.data_ptr() + offset or last + itemsize > room:
        raise MemoryMissingError(
            f"its storage of {storage.nbytes()} bytes does not hold what its shape {shape} and strides "
            f"{strides} describe"
        )
    return address, room


def to_torch(torch: Any, buffer: TensorBuffer) -> Any:
    """A torch tensor over the same memory, which it keeps alive; the buffer itself where torch cannot name
    its dtype, or was built without the device that it is on."""
    if not DTYPES[buffer.dtype].in_dlpack:
        return buffer
    if buffer.device == CPU:
        return torch.utils.dlpack.from_dlpack(buffer.__dlpack__())
    # Given the buffer and no capsule, torch asks for the memory with its current stream.
    return torch.utils.dlpack.from_dlpack(buffer) if torch.cuda.is_available() else buffer

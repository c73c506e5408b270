"""The device models and what comes back from them, read without the host's touching the device."""

from __future__ import annotations

from typing import Any

import device_plugin
import model_index
import numpy

from et_cffi import Method, Program, Runtime, ScalarType, _capsule, ffi, lib

Values = numpy.ndarray[Any, Any]

# The device models that run, by name.
RUNNING = [
    name
    for name in model_index.models()
    if name.startswith("device_") and name not in {"device_weight", "device_add_copied_unplanned"}
]


def program(name: str) -> Program:
    return Runtime.get().load_program(model_index.path(name))


def load(name: str, method: str = "forward") -> Method:
    return program(name).load_method(method)


def case(name: str, method: str = "forward", number: int = 0) -> model_index.Case:
    return model_index.cases(name, method)[number]


def cases() -> list[model_index.Case]:
    """Every case of every method of the device models that run."""
    return [
        each
        for name in RUNNING
        for method in model_index.models()[name]["methods"]
        for each in model_index.cases(name, method)
    ]


def laid_out(values: Values, info: dict[str, Any]) -> Values:
    """The same values in the layout that an input wants."""
    order = info["dim_order"]
    packed = numpy.ascontiguousarray(values.transpose(order))
    return packed.transpose([order.index(dim) for dim in range(len(order))])


def inputs(case: model_index.Case) -> list[Values]:
    return [laid_out(values, info) for values, info in zip(case.inputs, case.inputs_info)]


class Claimed:
    """What a DLPack producer hands over: claimed, and given back by `release` or with this object."""

    def __init__(self, producer: Any, **asked: Any) -> None:
        address, self.versioned = _capsule.claim(producer.__dlpack__(**asked))
        kind, release = (
            ("DLManagedTensorVersioned *", lib.etcffi_dlpack_release_versioned)
            if self.versioned
            else ("DLManagedTensor *", lib.etcffi_dlpack_release)
        )
        self.managed = ffi.gc(ffi.cast(kind, address), release)
        tensor = self.managed.dl_tensor
        self.address = int(ffi.cast("uintptr_t", tensor.data))
        self.device = (tensor.device.device_type, tensor.device.device_id)
        self.shape = tuple(tensor.shape[0 : tensor.ndim])
        self.strides = tuple(tensor.strides[0 : tensor.ndim])
        self.dtype = (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
        self.flags = self.managed.flags if self.versioned else 0

    def release(self) -> None:
        ffi.release(self.managed)


def address(result: Any) -> int:
    claimed = Claimed(result)
    claimed.release()
    return claimed.address


def values(device: device_plugin.Device, result: Any) -> Values:
    """The elements of a TensorBuffer, wherever they are, uncounted."""
    if result.device.type == 0:
        return numpy.array(numpy.asarray(result))
    claimed = Claimed(result)
    data = device.read(claimed.address, result.nbytes, claimed.device[1]) if result.nbytes else b""
    claimed.release()
    return numpy.ndarray(result.shape, str(result.dtype), data, strides=result.strides).copy()


def check(device: device_plugin.Device, outputs: list[Any], case: model_index.Case) -> None:
    """The outputs are eager mode's, and each is where the file says."""
    assert len(outputs) == len(case.outputs)
    for output, expected, info in zip(outputs, case.outputs, case.outputs_info):
        where = "cpu:0" if info["device"] == "cpu" else info["device"]
        assert str(output.device) == where
        assert str(output.dtype) == info["dtype"] == str(ScalarType(output.dtype))
        found = values(device, output)
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()


class Producer:
    """A DLPack producer on the device that is on no list. The device counts its capsules.

    Attributes:
        asked: the keywords of each call of `__dlpack__`.
    """

    def __init__(
        self,
        device: device_plugin.Device,
        array: Values,
        index: int = 0,
        *,
        said: tuple[int, int] | None = None,
        stated: tuple[int, int] | None = None,
        flags: int = 0,
    ) -> None:
        order = sorted(range(array.ndim), key=lambda dim: -array.strides[dim])
        self.plugin, self.array, self.flags = device, array, flags
        self.memory = device.foreign(array.nbytes or 1, index)
        device.write(self.memory.address, array.transpose(order).tobytes(), index)
        self.stated = stated or (device_plugin.CUDA, index)
        self.said = said or self.stated
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.said

    def __dlpack__(self, **asked: Any) -> Any:
        self.asked.append(asked)
        return self.plugin.lend(
            self.memory.address,
            self.array,
            device=self.stated,
            versioned=asked.get("max_version") is not None,
            flags=self.flags,
        )


class OldProducer(Producer):
    """From before DLPack 1.0: `__dlpack__` takes nothing but a stream."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return super().__dlpack__(stream=stream)


class HostProducer:
    """A DLPack producer of host memory, by the name that `kind` is for it."""

    def __init__(self, device: device_plugin.Device, array: Values, kind: int) -> None:
        self.plugin, self.array, self.kind = device, array, kind
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.kind, 0)

    def __dlpack__(self, **asked: Any) -> Any:
        self.asked.append(asked)
        at = self.array.__array_interface__["data"][0]
        return self.plugin.lend(at, self.array, device=(self.kind, 0), versioned=True)

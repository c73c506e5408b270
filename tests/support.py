"""What the tests share: loading the committed models, laying values out, comparing with eager outputs."""

from __future__ import annotations

import functools
import gc
import os
import pathlib
import subprocess
import sys
from typing import Any

import model_index
import numpy

import et_cffi
from et_cffi import Method, MethodMeta, Program, Runtime, ScalarType, TensorBuffer, ffi

# What the package brings: models that need more than this cannot run here.
BUNDLED = {
    "XnnpackBackend",
    "quantized_decomposed::quantize_per_tensor.out",
    "quantized_decomposed::dequantize_per_tensor.out",
    "quantized_decomposed::embedding_byte.out",
}

# Bytes of one element of each dtype, written down here and not asked of the package.
ITEMSIZE = {
    **dict.fromkeys(["uint8", "int8", "bool", "qint8", "quint8", "quint4x2", "quint2x4"], 1),
    **dict.fromkeys(["bits1x8", "bits2x4", "bits4x2", "bits8"], 1),
    **dict.fromkeys(["float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"], 1),
    **dict.fromkeys(["int16", "uint16", "float16", "bfloat16", "bits16"], 2),
    **dict.fromkeys(["int32", "uint32", "float32", "complex32", "qint32"], 4),
    **dict.fromkeys(["int64", "uint64", "float64", "complex64"], 8),
    "complex128": 16,
}
# The dtypes that a buffer's format code can name, with the code.
FORMAT = {
    "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "uint32": "I", "int32": "i", "uint64": "Q",
    "int64": "q", "float16": "e", "float32": "f", "float64": "d", "bool": "?", "complex64": "Zf",
    "complex128": "Zd",
}  # fmt: skip


def presented(dtype: str) -> numpy.dtype[Any]:
    """The numpy dtype that a result is read as: the unsigned integer of its width where numpy has no name."""
    return numpy.dtype(dtype if dtype in FORMAT else f"u{ITEMSIZE[dtype]}")


# What one method of such a program does shows in another: each test has a program of its own.
_WITH_SHARED_STATE = {"state_shared"}


@functools.cache
def program(name: str) -> Program:
    return Runtime.get().load_program(model_index.path(name))


def load(name: str, method: str = "forward") -> Method:
    if name in _WITH_SHARED_STATE:
        return Runtime.get().load_program(model_index.path(name)).load_method(method)
    return program(name).load_method(method)


def metadata(name: str, method: str = "forward") -> MethodMeta:
    return program(name).metadata(method)


def case_of(name: str, method: str = "forward", number: int = 0) -> model_index.Case:
    return model_index.cases(name, method)[number]


def runnable() -> list[str]:
    """The models whose every case runs with what the package brings."""
    return [
        name
        for name, model in model_index.models().items()
        if model["expect"] == "runs" and set(model["needs"]) <= BUNDLED and not model["data"]
    ]


def strides_of(shape: Any, dim_order: Any, itemsize: int) -> tuple[int, ...]:
    """The strides, in bytes, of a tensor that is packed with `dim_order` from the outermost dimension in."""
    strides, step = [0] * len(shape), itemsize
    for dim in reversed(list(dim_order)):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def laid_out(array: numpy.ndarray[Any, Any], dim_order: Any) -> numpy.ndarray[Any, Any]:
    """A fresh array of the same values, packed with `dim_order` from the outermost dimension in."""
    order = list(dim_order)
    packed = numpy.empty([array.shape[dim] for dim in order], array.dtype)
    result = packed.transpose([order.index(dim) for dim in range(len(order))])
    result[...] = array
    return result


def memory_of(array: numpy.ndarray[Any, Any], dim_order: Any) -> bytes:
    """The same values as the bytes that stand in memory, packed with `dim_order`."""
    return array.transpose(list(dim_order)).tobytes()


def host_inputs(case: model_index.Case) -> list[Any]:
    """A case's inputs in the layout that the method wants. A dtype that no format code names is passed as
    raw bytes."""
    return [
        value
        if info["kind"] != "tensor"
        else laid_out(value, info["dim_order"])
        if info["dtype"] in FORMAT
        else memory_of(value, info["dim_order"])
        for value, info in zip(case.inputs, case.inputs_info)
    ]


def address(array: Any) -> int:
    return int(numpy.asarray(array).__array_interface__["data"][0])


def check_values(array: numpy.ndarray[Any, Any], expected: numpy.ndarray[Any, Any], case: Any) -> None:
    """The values agree with eager mode's: bit by bit, unless the model has a tolerance."""
    assert array.shape == expected.shape
    if case.rtol or case.atol:
        numpy.testing.assert_allclose(array, expected, rtol=case.rtol, atol=case.atol)
    else:
        assert array.tobytes() == expected.tobytes(), f"{array!r} is not {expected!r}"


def check_tensor(result: Any, expected: numpy.ndarray[Any, Any], info: dict[str, Any], case: Any) -> None:
    """A result's type, dtype, shape, strides and values are eager mode's, and nothing is copied to see it."""
    assert type(result) is TensorBuffer
    assert str(result.dtype) == info["dtype"]
    assert result.dtype is ScalarType[result.dtype.name]
    assert result.shape == expected.shape
    assert result.ndim == expected.ndim
    itemsize = ITEMSIZE[info["dtype"]]
    assert result.itemsize == itemsize
    assert result.nbytes == expected.size * itemsize
    assert result.strides == strides_of(expected.shape, info["dim_order"], itemsize)
    array = numpy.asarray(result)
    assert array.dtype == presented(info["dtype"])
    assert array.strides == result.strides
    check_values(array, expected, case)


def check_outputs(outputs: list[Any], case: model_index.Case) -> None:
    assert len(outputs) == len(case.outputs_info) == len(case.outputs)
    for output, expected, info in zip(outputs, case.outputs, case.outputs_info):
        if info["kind"] == "tensor":
            check_tensor(output, expected, info, case)
        else:
            assert output == expected
            assert type(output) is type(expected)


def collect() -> None:
    """Everything that nothing refers to is gone afterwards, on PyPy too."""
    for _ in range(3):
        gc.collect()


def add_inputs() -> tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any]]:
    """Inputs for the model `add`, whose eight values all differ."""
    x, y = case_of("add").inputs
    return x, y


def child(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a process of its own, which finds the helpers here too."""
    here = pathlib.Path(__file__).resolve().parent
    package = pathlib.Path(et_cffi.__file__).resolve().parent.parent
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join([str(here), str(package)])}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )


def resident() -> int:
    """The process's resident memory, in bytes."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def address_of(cdata: Any) -> int:
    return int(ffi.cast("uintptr_t", cdata))

"""What `--expect` names: arrays and values that a method's outputs are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from et_cffi import ScalarType, TensorBuffer
from et_cffi.cli.failure import UsageError
from et_cffi.cli.inputs import Given, parse
from et_cffi.cli.outputs import Output
from et_cffi.dtypes import BY_NAME, DTYPES
from et_cffi.tensor_buffer import copy_of

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]


def read_expected(texts: Sequence[str], outputs: list[Output]) -> list[Any]:
    """What the texts after each `--expect` stand for: one for each output, None where that is None.

    The arrays of a .npz that `--output` wrote go by their names, all else by the order.

    Raises:
        UsageError: there are more or fewer than outputs, or one cannot be compared with its output.
        OSError: a file cannot be read.
    """
    given = [item for text in texts for item in parse(text)]
    named = {item.origin.rpartition("['")[2].rstrip("']"): item for item in given}
    wanted = [output for output in outputs if output.value is not None]
    if {output.name for output in wanted} == set(named):
        given = [named[output.name] for output in wanted]
    elif len(given) == len(outputs):
        wanted = outputs
    if len(given) != len(wanted):
        raise UsageError(
            f"the method has {len(wanted)} outputs to compare, and --expect gives {len(given)}: "
            + (", ".join(item.origin for item in given) or "an empty .npz")
        )
    by_name = {output.name: _as_expected(item, output) for item, output in zip(given, wanted)}
    return [by_name.get(output.name) for output in outputs]


def _as_expected(given: Given, output: Output) -> Any:
    import numpy

    if not isinstance(output.value, TensorBuffer):
        if isinstance(given.value, numpy.ndarray):
            return given.value.item() if given.value.ndim == 0 else given.value.tolist()
        if isinstance(given.value, Path):
            raise UsageError(f"{output.name} is a {output.kind} and cannot be compared with {given.origin}")
        return given.value
    dtype = output.value.dtype
    if isinstance(given.value, Path):
        data = given.value.read_bytes()
        if len(data) != output.value.nbytes:
            raise UsageError(
                f"{given.origin} holds {len(data)} bytes, and {output.name} has {output.value.nbytes}"
            )
        return tensor_of(numpy.frombuffer(data, f"V{DTYPES[dtype].itemsize}"), dtype, output.value.shape)
    if not isinstance(given.value, numpy.ndarray):
        raise UsageError(f"{output.name} is a tensor, and {given.origin} is a value; give a .npy file")
    array = given.value
    if given.dtype:
        named = BY_NAME.get(given.dtype)
    elif array.dtype.kind == "V" and array.dtype.itemsize == DTYPES[dtype].itemsize:
        named = dtype  # the bits of a dtype that numpy lacks
    else:
        named = BY_NAME.get(array.dtype.name)
    if named is None:
        raise UsageError(f"{given.origin} has the dtype {given.dtype or array.dtype}, which no output has")
    return tensor_of(array, named, array.shape)


def tensor_of(array: Array, dtype: ScalarType, shape: tuple[int, ...]) -> TensorBuffer:
    """A tensor with a copy of an array's elements, which may be the bits of a dtype that numpy lacks."""
    return copy_of(array.tobytes(), dtype, shape, range(len(shape)))

"""Inputs made from what a method says it takes, for measuring it."""

from __future__ import annotations

from typing import Any

from et_cffi import MethodMeta, ScalarType, TensorInfo, lay_out
from et_cffi.cli.describe import LITERALS
from et_cffi.cli.failure import UsageError
from et_cffi.cli.inputs import read_inputs
from et_cffi.dtypes import DTYPES


def given_or_made(texts: list[str], meta: MethodMeta) -> list[Any]:
    """The inputs of `--input`, or where there is none made ones."""
    return read_inputs(texts, meta) if texts else make_inputs(meta)


def make_inputs(meta: MethodMeta) -> list[Any]:
    """The same values each time: normally distributed ones; zeros and ones for integers (they may be
    indices) and bools; zero bits for dtypes that numpy lacks. A dynamic input is as large as it may be.

    Raises:
        UsageError: an input is a number or a string: a method may take only the one it was exported with.
    """
    import numpy

    rng = numpy.random.default_rng(0)
    inputs: list[Any] = []
    for index in range(meta.num_inputs()):
        kind = meta.input_kind(index)
        if kind == "Tensor":
            inputs.append(_tensor(meta.input_tensor_meta(index), rng))
        elif kind == "None":
            inputs.append(None)
        else:
            raise UsageError(
                f"input {index} is of kind {kind}, which cannot be made up; give every input, as in --input "
                + LITERALS.get(kind, "x.npy")
            )
    return inputs


def _tensor(info: TensorInfo, rng: Any) -> Any:
    import numpy

    dtype = ScalarType(info.dtype())
    if not DTYPES[dtype].format:
        # Bytes tell no shape: a dynamic input of these cannot be given so.
        if info.is_dynamic():
            raise UsageError(f"an input of {dtype} and of dynamic shape can be given from Python only")
        return bytes(info.nbytes())
    kind = numpy.dtype(str(dtype)).kind
    if kind in "fc":
        array = rng.standard_normal(info.sizes()).astype(str(dtype))
    else:
        array = rng.integers(0, 2, info.sizes()).astype(str(dtype))
    return lay_out(array, info)

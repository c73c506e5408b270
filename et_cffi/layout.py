"""Laying an array out in memory the way a method was exported to read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from et_cffi.metadata import TensorInfo

if TYPE_CHECKING:
    import numpy


def lay_out(array: Any, info: TensorInfo) -> numpy.ndarray[Any, Any]:
    """The same values in the memory layout that an input expects.

    Args:
        array: whatever numpy.asarray takes, with the input's rank; its values are matched by index, so a
            default-layout (N, C, H, W) array is right for a channels-last input too.
        info: the input's `TensorInfo`, as in `method.metadata.input_tensor_meta(0)`.

    Returns:
        An array of the same shape, dtype and values whose strides follow `info.dim_order()`: `array`
        itself where they already do, else a copy.

    Raises:
        ValueError: the array has another rank.
    """
    import numpy

    given = numpy.asarray(array)
    dim_order = info.dim_order()
    if given.ndim != len(dim_order):
        raise ValueError(f"the array has {given.ndim} dimensions, and the input has {len(dim_order)}")
    packed = numpy.ascontiguousarray(given.transpose(dim_order)).reshape([given.shape[d] for d in dim_order])
    return packed.transpose(numpy.argsort(dim_order)) if dim_order else packed

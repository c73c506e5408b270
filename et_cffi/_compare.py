"""Comparing an output with what was expected of it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from et_cffi._torch import loaded_torch
from et_cffi.dtypes import BY_NAME, ScalarType
from et_cffi.tensor_buffer import TensorBuffer


class OutputReport(NamedTuple):
    """How an output compares with what was expected of it.

    `reason` is empty where it passed. For tensors of the right dtype and shape, `mismatches` counts the
    elements that are not close, and the errors are the largest there are; None for anything else.
    """

    output: int
    passed: bool
    reason: str
    mismatches: int | None = None
    max_absolute_error: float | None = None
    max_relative_error: float | None = None

    def __str__(self) -> str:
        text = f"output {self.output}: " + ("passed" if self.passed else f"FAILED: {self.reason}")
        if self.max_absolute_error is not None:
            errors = f"absolute {self.max_absolute_error:g}, relative {self.max_relative_error:g}"
            text += f" (largest error: {errors})"
        return text


def compare(index: int, actual: Any, expected: Any, rtol: float, atol: float) -> OutputReport:
    """Compares one output: a tensor, or a number, bool or None."""
    if isinstance(expected, TensorBuffer):
        torch = loaded_torch()
        if not isinstance(actual, TensorBuffer) and not (torch and isinstance(actual, torch.Tensor)):
            return OutputReport(index, False, f"expected a tensor, got {actual!r}")
        return _compare_tensors(index, actual, expected, rtol, atol)
    if type(actual) is not type(expected):
        return OutputReport(index, False, f"expected {expected!r}, got {actual!r}")
    close = actual == expected
    if isinstance(expected, float) and not close:
        close = (math.isnan(actual) and math.isnan(expected)) or (
            math.isfinite(actual) and abs(actual - expected) <= atol + rtol * abs(expected)
        )
    return OutputReport(index, close, "" if close else f"expected {expected!r}, got {actual!r}")


def _compare_tensors(
    index: int, actual: Any, expected: TensorBuffer, rtol: float, atol: float
) -> OutputReport:
    import numpy

    dtype = (
        actual.dtype if isinstance(actual, TensorBuffer) else BY_NAME.get(str(actual.dtype)[len("torch.") :])
    )
    if dtype != expected.dtype:
        return OutputReport(index, False, f"expected the dtype {expected.dtype}, got {actual.dtype}")
    if tuple(actual.shape) != expected.shape:
        return OutputReport(index, False, f"expected the shape {expected.shape}, got {tuple(actual.shape)}")
    got, want = values_of(actual, expected.dtype), values_of(expected, expected.dtype)
    if got.dtype.kind not in "fc":
        wrong = int(numpy.count_nonzero(got != want))
        reason = f"{wrong} of {got.size} elements differ" if wrong else ""
        return OutputReport(index, not wrong, reason, wrong)
    with numpy.errstate(all="ignore"):
        error = numpy.abs(got - want)
        same = (got == want) | (numpy.isnan(got) & numpy.isnan(want))
        close = same | (numpy.isfinite(error) & (error <= atol + rtol * numpy.abs(want)))
        error = numpy.where(same, 0.0, error)
        relative = numpy.where(same, 0.0, error / numpy.abs(want))
    wrong = int(numpy.count_nonzero(~close))
    reason = f"{wrong} of {got.size} elements are not close" if wrong else ""
    largest = [float(values.max()) if values.size else 0.0 for values in (error, relative)]
    return OutputReport(index, not wrong, reason, wrong, *largest)


def values_of(tensor: Any, dtype: ScalarType) -> Any:
    """Numbers to compare: floating point as double, the types that numpy lacks by their bits."""
    import numpy

    if not isinstance(tensor, TensorBuffer):
        tensor = _readable_by_numpy(tensor, dtype)
    values = numpy.asarray(tensor)
    if values.dtype.kind == "u" and dtype is ScalarType.BFloat16:
        values = (values.astype("u4") << 16).view("f4")
    elif values.dtype.kind == "u" and dtype is ScalarType.ComplexHalf:
        halves = numpy.ascontiguousarray(values).view("f2")
        values = halves.astype("f4").view("c8").reshape(values.shape)
    if values.dtype.kind == "f":
        return values.astype("f8")
    return values.astype("c16") if values.dtype.kind == "c" else values


def _readable_by_numpy(tensor: Any, dtype: ScalarType) -> Any:
    """A torch tensor of a dtype that numpy lacks, as one that it has."""
    torch: Any = loaded_torch()
    if dtype is ScalarType.BFloat16:
        return tensor.double()
    if dtype is ScalarType.ComplexHalf:
        return tensor.to(torch.complex64)
    return tensor.view(torch.uint8) if str(dtype).startswith("float8") else tensor

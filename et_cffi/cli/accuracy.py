"""How far an output is from what was expected: where, by how much, and how the errors are distributed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from et_cffi import TensorBuffer
from et_cffi._compare import compare, values_of
from et_cffi.cli.outputs import plain
from et_cffi.dtypes import DTYPES, ScalarType

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

WORST = 10  # how many elements a report lists
_MOST_BINS = 24


@dataclass(frozen=True)
class Element:
    """An element, and how far it is off."""

    index: tuple[int, ...]
    actual: Any
    expected: Any
    error: float


@dataclass(frozen=True)
class Bin:
    """How many absolute errors are at least `low` and less than `high`; the first bin counts those of 0."""

    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Accuracy:
    """An output beside what was expected. Errors are those of elements that are finite on both sides.

    Everything from `elements` on is None, or empty, for what is no tensor, and where dtype or shape differ;
    the errors are for dtypes whose numbers numpy lacks (float8).
    """

    name: str
    passed: bool
    reason: str
    what: str
    elements: int | None = None
    mismatches: int | None = None
    max_absolute: Element | None = None
    max_relative: Element | None = None
    """Where the expected value is not 0."""
    mean_absolute_error: float | None = None
    snr_db: float | None = None
    """Signal-to-noise ratio; infinite where there is no error."""
    cosine: float | None = None
    nan: tuple[int, int] = (0, 0)
    """How many there are, and how many are expected."""
    infinite: tuple[int, int] = (0, 0)
    not_finite_alike: int = 0
    """How many elements are NaN or infinite on one side only, or infinities of two signs."""
    histogram: list[Bin] = field(default_factory=list)
    worst: list[Element] = field(default_factory=list)
    """The largest absolute errors, those that are 0 left out."""

    def as_json(self) -> dict[str, Any]:
        """Plain values; infinities and NaNs as text, since JSON has none."""
        known: dict[str, Any] = _jsonable(asdict(self))
        return known


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return plain(value)


def measure(name: str, actual: Any, expected: Any, rtol: float, atol: float) -> Accuracy:
    """Compares one output. It passes as in `et_cffi.bundled`: |actual - expected| <= atol + rtol * |expected|
    for floating point, equality for everything else."""
    verdict = compare(0, actual, expected, rtol, atol)
    if not isinstance(actual, TensorBuffer):
        return Accuracy(name, verdict.passed, verdict.reason, type(actual).__name__)
    what = f"{actual.dtype} {tuple(actual.shape)}"
    if verdict.mismatches is None:
        return Accuracy(name, verdict.passed, verdict.reason, what)
    counted: dict[str, Any] = {"elements": math.prod(actual.shape), "mismatches": verdict.mismatches}
    if counted["elements"] and _has_numbers(actual.dtype):
        got, want = values_of(actual, actual.dtype), values_of(expected, actual.dtype)
        counted.update(_errors(got, want))
    return Accuracy(name, verdict.passed, verdict.reason, what, **counted)


def _has_numbers(dtype: ScalarType) -> bool:
    return bool(DTYPES[dtype].format) or dtype in {ScalarType.BFloat16, ScalarType.ComplexHalf}


def _errors(got: Array, want: Array) -> dict[str, Any]:
    import numpy

    known: dict[str, Any] = {}
    finite = numpy.isfinite(got) & numpy.isfinite(want)
    if got.dtype.kind in "fc":
        known["nan"] = (int(numpy.isnan(got).sum()), int(numpy.isnan(want).sum()))
        known["infinite"] = (int(numpy.isinf(got).sum()), int(numpy.isinf(want).sum()))
        alike = finite | (got == want) | (numpy.isnan(got) & numpy.isnan(want))
        known["not_finite_alike"] = int(numpy.count_nonzero(~alike))
    if not finite.any():
        return known
    with numpy.errstate(all="ignore"):  # an error of two huge numbers is infinite, and said to be
        error = _absolute_error(got, want)
        magnitude = _absolute_error(want, numpy.zeros_like(want))
        relative = numpy.where(finite & (want != 0), error / magnitude, 0)
    error = numpy.where(finite, error, 0)
    known["max_absolute"] = _element(error, got, want, int(error.argmax()))
    known["max_relative"] = _element(relative, got, want, int(relative.argmax()))
    known["mean_absolute_error"] = float(error[finite].mean(dtype="f8"))
    known["snr_db"], known["cosine"] = _similarity(got[finite], want[finite], error[finite])
    known["histogram"] = histogram(error[finite])
    order = numpy.argsort(-error, axis=None, kind="stable")[:WORST]
    known["worst"] = [_element(error, got, want, int(at)) for at in order if error.ravel()[at] > 0]
    return known


def _absolute_error(got: Array, want: Array) -> Array:
    import numpy

    if got.dtype.kind in "fc":
        return numpy.asarray(numpy.abs(got - want))
    if got.dtype.kind == "b":
        return numpy.asarray((got != want).astype("f8"))
    # A difference of 64-bit integers may not fit them; as unsigned ones it wraps to what it is.
    larger, smaller = numpy.maximum(got, want), numpy.minimum(got, want)
    return numpy.asarray((larger.astype("u8") - smaller.astype("u8")).astype("f8"))


def _element(error: Array, got: Array, want: Array, at: int) -> Element:
    import numpy

    index = tuple(int(i) for i in numpy.unravel_index(at, got.shape))
    return Element(index, got[index].item(), want[index].item(), float(error[index]))


def _similarity(got: Array, want: Array, error: Array) -> tuple[float, float]:
    """The signal-to-noise ratio in decibels and the cosine of the angle between the two."""
    import numpy

    wide = "c16" if got.dtype.kind == "c" else "f8"
    # Scaled, so that the squares of huge and of tiny numbers are numbers.
    scale = max(float(numpy.abs(got.astype(wide)).max()), float(numpy.abs(want.astype(wide)).max())) or 1.0
    a, b, noise = got.astype(wide) / scale, want.astype(wide) / scale, error / scale
    norms = float(numpy.linalg.norm(a)) * float(numpy.linalg.norm(b))
    cosine = float(numpy.vdot(b, a).real) / norms if norms else float(not a.any() and not b.any())
    signal, lost = float(numpy.linalg.norm(b)), float(numpy.linalg.norm(noise))
    if not lost:
        return math.inf, min(cosine, 1.0)
    return (20 * math.log10(signal / lost) if signal else -math.inf), max(-1.0, min(cosine, 1.0))


def histogram(error: Array) -> list[Bin]:
    """How many errors there are of which size: exact zeros, then steps of equal ratio."""
    import numpy

    zeros = int(numpy.count_nonzero(error == 0))
    found = error[(error > 0) & numpy.isfinite(error)]
    bins = [Bin(0.0, 0.0, zeros)]
    if not found.size:
        return bins
    low, high = math.log10(float(found.min())), math.log10(float(found.max()))
    step = next(each for each in (0.25, 0.5, 1, 2, 5, 10, 30) if (high - low) / each < _MOST_BINS - 1)
    first, last = math.floor(low / step), math.floor(high / step) + 1
    edges = 10.0 ** (numpy.arange(first, last + 1) * step)
    # The ends are rounded: an error on one must not fall out.
    edges[0], edges[-1] = min(edges[0], float(found.min())), max(edges[-1], float(found.max()))
    counts, _ = numpy.histogram(found, edges)
    return bins + [
        Bin(float(low), float(high), int(count)) for low, high, count in zip(edges, edges[1:], counts)
    ]

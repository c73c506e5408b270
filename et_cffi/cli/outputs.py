"""What a method returned: a summary of each output, and files of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from et_cffi import MethodMeta, ScalarType, TensorBuffer
from et_cffi.cli.failure import UsageError
from et_cffi.cli.inputs import DTYPE_KEY
from et_cffi.dtypes import DTYPES

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

FIRST = 10  # how many values a summary shows


class Output(NamedTuple):
    """One output, or one item of an output that is a list of tensors."""

    name: str
    kind: str
    value: Any


def name_outputs(results: list[Any], meta: MethodMeta) -> list[Output]:
    """The outputs by name: output_0, output_1, ...; output_1_0 for an item of a list of tensors."""
    return [
        named
        for index, value in enumerate(results)
        for named in _named(f"output_{index}", meta.output_kind(index), value)
    ]


def _named(name: str, kind: str, value: Any) -> Iterator[Output]:
    if kind in {"ListTensor", "ListOptionalTensor"}:
        for index, item in enumerate(value):
            yield from _named(f"{name}_{index}", "None" if item is None else "Tensor", item)
    else:
        yield Output(name, kind, value)


# ---- summaries ------------------------------------------------------------------------------------------


def summarize(output: Output) -> dict[str, Any]:
    """What a person, or a script through JSON, wants to know of an output at a glance."""
    if not isinstance(output.value, TensorBuffer):
        return {"name": output.name, "kind": output.kind, "value": plain(output.value)}
    import numpy

    dtype = output.value.dtype
    summary: dict[str, Any] = {
        "name": output.name,
        "kind": output.kind,
        "dtype": str(dtype),
        "shape": list(output.value.shape),
    }
    array = numpy.asarray(output.value)
    if dtype is ScalarType.BFloat16:
        array = numpy.asarray(array.astype(numpy.uint32) << 16).view(numpy.float32)
    elif not DTYPES[dtype].format:
        summary["bits"] = [int(value) for value in array.ravel()[:FIRST]]
        return summary
    with numpy.errstate(all="ignore"):
        summary.update(_numbers(array))
    summary["first"] = [plain(value.item()) for value in array.ravel()[:FIRST]]
    return summary


def _numbers(array: Array) -> dict[str, Any]:
    import numpy

    if array.dtype.kind == "b":
        return {"true": int(numpy.count_nonzero(array))}
    numbers: dict[str, Any] = {}
    finite = array
    if array.dtype.kind in "fc":
        numbers["nan"] = int(numpy.count_nonzero(numpy.isnan(array)))
        numbers["inf"] = int(numpy.count_nonzero(numpy.isinf(array)))
        if numbers["nan"] or numbers["inf"]:
            finite = array[numpy.isfinite(array)]
    if finite.size == 0:
        return numbers
    if array.dtype.kind == "c":
        numbers["mean"] = plain(finite.mean(dtype=numpy.complex128).item())
        return numbers
    numbers["min"] = plain(finite.min().item())
    numbers["max"] = plain(finite.max().item())
    numbers["mean"] = plain(finite.mean(dtype=numpy.float64).item())
    # One row of scores, whatever dimensions of size one it has around it.
    if array.size > 1 and array.size == max(array.shape) and not numbers.get("nan"):
        numbers["argmax"] = int(array.argmax())
    return numbers


def plain(value: Any) -> Any:
    """A value that JSON has: it has no infinities and no complex numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """A summary for a person."""
    if "shape" not in summary:
        value = "" if summary["value"] is None else f" {summary['value']!r}"
        return [f"{summary['name']}: {summary['kind']}{value}"]
    shape = tuple(summary["shape"])
    count = math.prod(shape)
    lines = [f"{summary['name']}: {summary['dtype']} {shape}"]
    if "bits" in summary:
        values = "the bits: " + " ".join(f"{value:#x}" for value in summary["bits"])
    else:
        numbers = [
            f"{name} {_text(summary[name])}"
            for name in ("min", "max", "mean", "argmax", "true")
            if name in summary
        ]
        numbers += [f"{name} {summary[name]}" for name in ("nan", "inf") if summary.get(name)]
        if numbers:
            lines.append("  " + "  ".join(numbers))
        values = " ".join(_text(value) for value in summary["first"])
    more = f" ... ({count} values)" if count > FIRST else ""
    lines.append(f"  {values}{more}" if count else "  no elements")
    return lines


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"{_text(value[0])}{'' if str(value[1]).startswith('-') else '+'}{_text(value[1])}j"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# ---- files ----------------------------------------------------------------------------------------------


def check_destination(destination: Path) -> None:
    """Refuses what `save` could not write to, before a model runs for it.

    Raises:
        UsageError: it is neither a .npz file, in a directory that exists, nor a directory.
    """
    if _is_npz(destination):
        if not destination.parent.is_dir():
            raise UsageError(f"--output {destination}: there is no directory '{destination.parent}'")
    elif destination.suffix.lower() == ".npy" or (destination.exists() and not destination.is_dir()):
        raise UsageError(f"--output {destination}: give a .npz file, or a directory for .npy files")


def save(outputs: list[Output], destination: Path) -> list[str]:
    """Writes the outputs to a .npz file, or each to a .npy in a directory, by their names.

    Returns:
        What is not in the files as it was in the outputs, in words.
    """
    import numpy

    if _is_npz(destination):
        with destination.open("wb") as file:
            return save_npz(outputs, file)
    arrays, _, notes = _arrays(outputs)
    destination.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        numpy.save(destination / f"{name}.npy", array)
    return notes


def save_npz(outputs: list[Output], file: BinaryIO) -> list[str]:
    """Writes the outputs to an open .npz file; the answer is as that of `save`."""
    import numpy

    arrays, dtypes, notes = _arrays(outputs)
    numpy.savez(file, **arrays, **dtypes)
    return notes


def _arrays(outputs: list[Output]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The outputs as arrays; which dtypes their bits are of, where numpy lacks those; and notes on them."""
    import numpy

    arrays: dict[str, Any] = {}
    dtypes: dict[str, Any] = {}
    notes = []
    for output in outputs:
        if output.value is None:
            notes.append(f"{output.name} is None, and not stored")
            continue
        arrays[output.name] = array = numpy.asarray(output.value)
        if isinstance(output.value, TensorBuffer) and not DTYPES[output.value.dtype].format:
            dtypes[DTYPE_KEY + output.name] = numpy.asarray(str(output.value.dtype))
            notes.append(f"{output.name} is {output.value.dtype}, and its bits are stored as {array.dtype}")
    return arrays, dtypes, notes


def _is_npz(destination: Path) -> bool:
    return destination.suffix.lower() == ".npz"

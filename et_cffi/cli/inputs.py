"""What `--input` names: files of arrays, raw bytes, and values for inputs that are no tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from et_cffi import MethodMeta, ScalarType, TensorInfo, lay_out
from et_cffi.cli.describe import LITERALS
from et_cffi.cli.failure import UsageError
from et_cffi.dtypes import DTYPES

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

HELP = """\
inputs, one --input for each, in the method's order:
  x.npy       an array; whatever its memory layout, it is laid out as the method reads it
  all.npz     its arrays, in the order of the file, one input each
  x.bin       a file of any other name: raw bytes, exactly as many as the input has, which must
              have a fixed shape and the default layout (bytes would not tell another)
  3  0.5  true  none  str:hello
              an int, a float, a bool, None, a string: for inputs that are no tensors
A file whose name looks like a value is given as ./3, a value that begins with a dash as
--input=-3. No dtype is converted. Where numpy lacks the dtype (bfloat16, say), the input is raw
bytes, or a .npy of void elements of its width (V2), which numpy.save makes of an ml_dtypes
array and bits.view("V2") of its bits; a .npz that --output wrote can be given as it is."""

DTYPE_KEY = "dtype:"  # "dtype:x" in a .npz names the dtype whose bits the array "x" holds

_INT = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?(inf|nan)", re.ASCII | re.I)
_WORDS = {"true": True, "false": False, "none": None}


class Given(NamedTuple):
    """One input as it was given: an array, the Path of a file of raw bytes, or a value."""

    origin: str
    value: Any
    dtype: str = ""  # whose bits an array holds, where its file says so


def count_inputs(count: int) -> str:
    """So many inputs, in words."""
    return f"{count or 'no'} input{'' if count == 1 else 's'}"


def read_inputs(texts: Sequence[str], meta: MethodMeta) -> list[Any]:
    """What the texts after each `--input` stand for, as inputs of the method.

    Raises:
        UsageError: there are more or fewer than the method takes, or one is not what it takes.
        OSError: a file cannot be read.
    """
    given = [item for text in texts for item in parse(text)]
    if len(given) != meta.num_inputs():
        raise UsageError(
            f"the method '{meta.name()}' takes {count_inputs(meta.num_inputs())}, and {len(given)} "
            f"{'was' if len(given) == 1 else 'were'} given: "
            + (", ".join(item.origin for item in given) or "an empty .npz")
        )
    return [_as_input(item, meta, index) for index, item in enumerate(given)]


def parse(text: str) -> list[Given]:
    if text.lower() in _WORDS:
        return [Given(text, _WORDS[text.lower()])]
    if _INT.fullmatch(text):
        return [Given(text, int(text))]
    if _FLOAT.fullmatch(text):
        return [Given(text, float(text))]
    if text.startswith("str:"):
        return [Given(text, text[len("str:") :])]
    if not text:
        raise UsageError("the name of a file is empty")
    path = Path(text)
    suffix = path.suffix.lower()
    if suffix not in {".npy", ".npz"}:
        return [Given(text, path)]
    with path.open("rb") as file:
        try:
            return _read_npz(file, text) if suffix == ".npz" else [Given(text, _read_npy(file))]
        except Exception as error:  # whatever numpy, zipfile and zlib make of a damaged file
            raise UsageError(
                f"{text} is no readable {suffix} file ({error or type(error).__name__})"
            ) from error


def _read_npy(file: BinaryIO) -> Array:
    import numpy

    # numpy.load would take a file that it does not know for a pickle, and say so.
    array: Array = numpy.lib.format.read_array(file, allow_pickle=False)
    return array


def _read_npz(file: BinaryIO, origin: str) -> list[Given]:
    import zipfile

    import numpy

    if not zipfile.is_zipfile(file):
        raise UsageError("it is no zip archive")
    file.seek(0)
    with numpy.load(file, allow_pickle=False) as npz:
        dtypes = {name: str(npz[name]) for name in npz.files if name.startswith(DTYPE_KEY)}
        return [
            Given(f"{origin}['{name}']", npz[name], dtypes.get(DTYPE_KEY + name, ""))
            for name in npz.files
            if name not in dtypes
        ]


def _as_input(given: Given, meta: MethodMeta, index: int) -> Any:
    import numpy

    kind = meta.input_kind(index)
    where = f"input {index} ({given.origin})"
    if kind != "Tensor":
        if isinstance(given.value, numpy.ndarray) and given.value.ndim == 0:
            return given.value.item()
        if isinstance(given.value, (numpy.ndarray, Path)):
            example = f"; write it as in --input {LITERALS[kind]}" if kind in LITERALS else ""
            raise UsageError(f"{where}: the method takes a value of kind {kind} and no file{example}")
        return given.value
    info = meta.input_tensor_meta(index)
    if isinstance(given.value, Path):
        return _from_bytes(given.value, info, where)
    if isinstance(given.value, numpy.ndarray):
        return _from_array(given, info, where)
    raise UsageError(
        f"{where}: the method takes a tensor ({ScalarType(info.dtype())}, {info.sizes()}) and no value; give "
        f"a .npy file, or ./{given.origin} for a file of that name"
    )


def _from_bytes(path: Path, info: TensorInfo, where: str) -> Any:
    import numpy

    dtype = ScalarType(info.dtype())
    with path.open("rb") as file:
        if info.is_dynamic():
            raise UsageError(f"{where}: raw bytes do not tell its shape, which is dynamic; give a .npy file")
        if not _is_default_layout(info):
            raise UsageError(
                f"{where}: raw bytes do not tell their layout, and the method reads dim order "
                f"{info.dim_order()}; give a .npy file"
            )
        data = file.read(info.nbytes() + 1)
    if len(data) != info.nbytes():
        held = f"{len(data)}" if len(data) < info.nbytes() else f"more than {info.nbytes()}"
        raise UsageError(
            f"{where}: raw bytes of {dtype} {info.sizes()} are {info.nbytes()}, and the file holds {held}"
        )
    if not DTYPES[dtype].format:
        return data
    return numpy.frombuffer(data, str(dtype)).reshape(info.sizes())


def _is_default_layout(info: TensorInfo) -> bool:
    # A dimension of size one may stand anywhere.
    order = [dim for dim in info.dim_order() if info.sizes()[dim] != 1]
    return order == sorted(order)


def _from_array(given: Given, info: TensorInfo, where: str) -> Any:
    array: Array = given.value
    dtype = ScalarType(info.dtype())
    itemsize, in_numpy = DTYPES[dtype].itemsize, bool(DTYPES[dtype].format)
    has = given.dtype or array.dtype.name
    if not in_numpy and (given.dtype == str(dtype) or array.dtype.str == f"|V{itemsize}"):
        if info.is_dynamic():
            raise UsageError(f"{where}: a {dtype} input of dynamic shape can be given from Python only")
        if array.shape != info.sizes():
            raise UsageError(f"{where}: its shape is {array.shape}, and the method takes {info.sizes()}")
        # The bytes in the order in which the method reads them, which is what it takes bytes to be.
        return array.transpose(info.dim_order()).tobytes()
    if has != str(dtype):
        if in_numpy:
            how = f"array.astype('{dtype}') converts it"
        elif array.dtype.kind == "u" and array.itemsize == itemsize:
            how = f"if these are the bits of {dtype}, save array.view('V{itemsize}')"
        else:
            how = f"convert it and save its bits as array.view('V{itemsize}')"
        raise UsageError(f"{where}: its dtype is {has}, and the method takes {dtype}; {how}")
    # An array of another rank goes on as it is: the refusal then names the shape that the method takes.
    return lay_out(array, info) if array.ndim == len(info.sizes()) else array

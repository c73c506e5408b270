"""Several sets of inputs as one along the first dimension, and the outputs of that as several again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from et_cffi import MethodMeta, TensorBuffer, lay_out
from et_cffi.cli.expected import tensor_of
from et_cffi.cli.failure import UsageError
from et_cffi.cli.outputs import Output


def check_stackable(meta: MethodMeta, count: int) -> None:
    """Refuses a method whose first dimension is not one of so many.

    Raises:
        UsageError: an input is no tensor, is not dynamic or too small.
    """
    for index in range(meta.num_inputs()):
        if meta.input_kind(index) != "Tensor":
            raise UsageError(
                f"--stack: input {index} is of kind {meta.input_kind(index)} and cannot be stacked"
            )
        info = meta.input_tensor_meta(index)
        if not info.is_dynamic() or not info.sizes():
            raise UsageError(f"--stack: input {index} has the fixed shape {info.sizes()}")
        if info.sizes()[0] < count:
            raise UsageError(
                f"--stack {count}: input {index} has at most {info.sizes()[0]} along its first dimension"
            )


class Stacked:
    """Sets of inputs as one. An array with a dimension less than the method's is one row.

    Raises:
        UsageError: they do not fit together.
    """

    def __init__(self, sets: Sequence[list[Any]], meta: MethodMeta) -> None:
        import numpy

        self._rows: list[int] = []
        self._bare: list[bool] = []
        columns: list[list[Any]] = [[] for _ in range(meta.num_inputs())]
        for values in sets:
            rows, bare = set(), set()
            for index, value in enumerate(values):
                if not isinstance(value, numpy.ndarray):
                    raise UsageError(f"input {index} is bytes and cannot be stacked; give a .npy file")
                is_bare = value.ndim == len(meta.input_tensor_meta(index).sizes()) - 1
                array = value[numpy.newaxis] if is_bare else value
                columns[index].append(array)
                rows.add(array.shape[0] if array.ndim else 0)
                bare.add(is_bare)
            if len(rows) != 1 or len(bare) != 1:
                raise UsageError(f"its inputs have different numbers of rows: {sorted(rows)}")
            self._rows.append(rows.pop())
            self._bare.append(bare.pop())
        try:
            joined = [numpy.concatenate(arrays) for arrays in columns]
        except ValueError as error:
            raise UsageError(f"the inputs do not stack: {error}") from None
        self.inputs = [
            lay_out(array, info) if array.ndim == len(info.sizes()) else array
            for array, info in ((each, meta.input_tensor_meta(i)) for i, each in enumerate(joined))
        ]

    def split(self, outputs: list[Output]) -> list[list[Output]]:
        """The outputs of each set.

        Raises:
            UsageError: an output does not have a row for each row of the inputs.
        """
        import numpy

        total = sum(self._rows)
        parts: list[list[Output]] = [[] for _ in self._rows]
        for output in outputs:
            shape = output.value.shape if isinstance(output.value, TensorBuffer) else ()
            if not shape or shape[0] != total:
                what = f"shape {shape}" if isinstance(output.value, TensorBuffer) else f"kind {output.kind}"
                raise UsageError(
                    f"{output.name} has the {what}, and not a row for each of the {total} rows stacked"
                )
            array, begin = numpy.asarray(output.value), 0
            for part, rows, bare in zip(parts, self._rows, self._bare):
                own = array[begin : begin + rows]
                own = own[0] if bare else own
                begin += rows
                part.append(output._replace(value=tensor_of(own, output.value.dtype, own.shape)))
        return parts

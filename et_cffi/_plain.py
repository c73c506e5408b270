"""Plain inputs where there is no C API of CPython's: described once for each shape, then only pointed at."""

from __future__ import annotations

from array import array
from typing import Any

from et_cffi._buffer import describe_buffer
from et_cffi._inputs import write_memory
from et_cffi._lib import ffi
from et_cffi.errors import ExecuTorchError
from et_cffi.metadata import MethodMeta


class PlainInputs:
    """An array of etcffi_value, for a method that has planned inputs only: they are copied inside the call.

    Exactly `memoryview` and `array.array` are plain: to ask one for its memory runs no code of anybody's.
    """

    def __init__(self, meta: MethodMeta) -> None:
        self._infos = [meta.input_tensor_meta(i) for i in range(meta.num_inputs())]
        self.array = ffi.new("etcffi_value[]", len(self._infos))
        self._items = [self.array[i] for i in range(len(self._infos))]
        # What each was described for.
        self._known: list[Any] = [None] * len(self._infos)

    def write(self, inputs: Any) -> list[Any] | None:
        """Describes the inputs, and returns what holds their memory; None where one is not plain."""
        if type(inputs) is not list and type(inputs) is not tuple:
            return None
        inputs = tuple(inputs)
        if len(inputs) != len(self._items):
            return None
        held = []
        for index, source in enumerate(inputs):
            try:
                if type(source) is memoryview:
                    known: Any = (source.format, source.shape, source.strides)
                elif type(source) is array:
                    known = (source.typecode, len(source))
                else:
                    return None
                if self._known[index] != known:
                    self._known[index] = None
                    if not self._describe(index, source):
                        return None
                    self._known[index] = known
                memory = ffi.from_buffer(source)
            except (ValueError, ExecuTorchError):
                return None  # the long way finds the same, and has the words for it
            self._items[index].memory.data = memory
            held.append(memory)
        return held

    def _describe(self, index: int, source: Any) -> bool:
        memory = describe_buffer(source, self._infos[index])
        if memory is None or not memoryview(source).c_contiguous:
            return False
        write_memory(self._items[index], memory)
        memory.release()
        return True

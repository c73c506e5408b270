"""From the memory that a caller gives for outputs to what the C layer takes."""

from __future__ import annotations

from typing import Any

from et_cffi._inputs import as_inputs, describe, naming, write_memory
from et_cffi._lib import ffi, lib
from et_cffi._memory import Memory
from et_cffi.cdata import CDataTensor
from et_cffi.errors import ArgumentError, InputCountError, InputKindError
from et_cffi.metadata import MethodMeta, TensorInfo


class Placement:
    """The memory given for the outputs of one run: an array of etcffi_value, and what holds the memory.

    Who writes it: the runtime and the C layer, inside the one call. It is held from here until `release`.
    """

    __slots__ = ("array", "held", "out")

    def __init__(self, out: tuple[Any, ...]) -> None:
        self.out = out
        self.array = ffi.new("etcffi_value[]", len(out))
        self.held: list[Memory] = []

    def release(self) -> None:
        """Lets go of the memory."""
        held, self.held = self.held, []
        for memory in held:
            memory.release()

    def fill_in(self, results: list[Any]) -> list[Any]:
        """The results of the run, with the caller's objects where their memory was written."""
        return [given if given is not None else made for given, made in zip(self.out, results)]


class OutputWriter:
    """Describes the memory given for a method's outputs."""

    def __init__(self, meta: MethodMeta) -> None:
        self._infos: list[TensorInfo | None] = [
            meta.output_tensor_meta(i) if meta.output_kind(i) == "Tensor" else None
            for i in range(meta.num_outputs())
        ]

    def place(self, out: Any) -> Placement:
        """Describes what is given for all outputs: memory, or None for one that is to be returned as ever.

        Raises:
            ExecuTorchError: more or fewer than there are outputs, or something that holds no memory.
        """
        given = as_inputs(out, len(self._infos), "output")
        if len(given) != len(self._infos):
            raise InputCountError(
                f"the method has {len(self._infos)} outputs, and `out` has {len(given)} items; pass None for "
                "an output that is to be returned in memory of its own"
            )
        placement = Placement(given)
        try:
            for index, (info, target) in enumerate(zip(self._infos, given)):
                with naming("output", index, info):
                    self._describe(placement, index, info, target)
        except BaseException:
            placement.release()
            raise
        return placement

    def _describe(self, placement: Placement, index: int, info: TensorInfo | None, target: Any) -> None:
        value = placement.array[index]
        if target is None:
            value.tag = lib.ETCFFI_Tag_None
            return
        if info is None:
            raise InputKindError("it is no tensor, so no memory can be given for it; pass None")
        if isinstance(target, CDataTensor) and target.copied:
            raise ArgumentError("it is from_cdata(..., copy=True), which says that it is not to be written")
        memory = describe(target, info)
        if memory is None:
            raise InputKindError(
                f"a {type(target).__name__} is given for it, which holds no memory; pass a writable array, "
                "buffer or DLPack producer, or None"
            )
        placement.held.append(memory)
        write_memory(value, memory)

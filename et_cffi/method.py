"""A loaded method, and what it holds of its caller's memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

from et_cffi._inputs import InputWriter, as_inputs
from et_cffi._lib import ffi, lib
from et_cffi._log import forward_log
from et_cffi._memory import Memory
from et_cffi._torch import loaded_torch, to_torch
from et_cffi.errors import MemoryMovedError, MethodStateError, ThreadError, check
from et_cffi.metadata import MethodMeta
from et_cffi.tensor_buffer import TensorBuffer


class _NotGiven:
    def __repr__(self) -> str:
        return "..."


_NOT_GIVEN = _NotGiven()

_NUMBERS = {
    lib.ETCFFI_Tag_ListInt: "int64_t *",
    lib.ETCFFI_Tag_ListBool: "bool *",
    lib.ETCFFI_Tag_ListDouble: "double *",
}


class Method:
    """A method of a program, ready to run. One thread may use it at a time: load one for each thread.

    Made by `Program.load_method`. It closes itself when it is dropped; `close()` or a `with` statement does
    so at a definite time.
    """

    def __init__(self, handle: Any, metadata: MethodMeta) -> None:
        self._handle: Optional[Any] = handle
        self._metadata = metadata
        self._writer = InputWriter(metadata)
        self._output_values: list[Any] = []
        # Who reads these: the runtime, in every run until the inputs are replaced or the method is gone.
        # Inputs that were copied inside the call are not among them.
        self._held: list[Memory] = []
        # Pointers of a refused call: some of them may be installed beside some of _held.
        self._held_refused: list[Memory] = []
        # What this execution handed over, by clone_outputs: reading twice gives the same objects.
        self._results: dict[bool, list[Any]] = {}
        # Held by the thread that uses the method; reentrant, since a call is made of several steps.
        self._claim = threading.RLock()
        self._calls = 0  # under way, one inside the other
        # Asked once, when the method is loaded: the type of a result must not change under a caller in
        # the middle of a run because something else imported torch.
        self._torch = loaded_torch()

    @property
    def metadata(self) -> MethodMeta:
        """The method's inputs, outputs and memory."""
        return self._metadata

    def execute(self, inputs: Any = _NOT_GIVEN, *, clone_outputs: bool = True) -> list[Any]:
        """Runs the method and returns its outputs.

        Args:
            inputs: a list or other sequence with one item for each input, or a single input as it is. Left
                out, the method runs with the inputs of `set_inputs`. A tensor is whatever holds memory: a
                numpy array, any buffer, a DLPack producer, a torch tensor, a `TensorBuffer`.
            clone_outputs: False lends out the outputs that are in planned memory instead of copying them;
                the next run then overwrites them. It changes nothing for an output without planned memory,
                which has memory of its own for each run.

        Returns:
            One item for each output: a `TensorBuffer`, or a torch tensor over the same memory where the
            process had torch when the method was loaded; int, float, bool, str, None or a list of these
            for outputs that are no tensors.

        Raises:
            ExecuTorchError: one of the classes in `et_cffi.errors`, naming the input and what to do. After
                an input was refused, a whole set has to be given before the method runs again.
        """
        with self._claimed() as handle:
            if inputs is not _NOT_GIVEN:
                self._set_inputs(handle, inputs)
            self._results = {}
            for memory in self._held:
                self._check_place(memory)
            check(lib.etcffi_method_execute(handle))
            forward_log()
            return self._read_outputs(handle, clone_outputs)

    def __call__(self, inputs: Any = _NOT_GIVEN, clone_outputs: bool = True) -> list[Any]:
        """The same as `execute`."""
        return self.execute(inputs, clone_outputs=clone_outputs)

    def set_inputs(self, inputs: Any) -> None:
        """Sets all inputs, for `execute()` without any.

        A planned input is copied now. Any other is read when the method runs, from the caller's own memory
        where that is a writable buffer or comes through DLPack: it is held until the inputs are replaced or
        the method is gone, and what the caller writes to it before a run is what the run reads.

        Raises:
            ExecuTorchError: as `execute`.
        """
        with self._claimed() as handle:
            self._set_inputs(handle, inputs)

    def get_outputs(self, clone_outputs: bool = True) -> list[Any]:
        """The outputs of the last run; read twice, the same objects.

        Args:
            clone_outputs: as for `execute`.

        Raises:
            MethodStateError: the method has not run with its present inputs.
        """
        with self._claimed() as handle:
            return self._read_outputs(handle, clone_outputs)

    def get_attribute(self, name: str) -> Any:
        """A named tensor of the method (`num_attributes` of them), in place: it is lent, not copied.

        Raises:
            ExecuTorchError: the method has no attribute of that name.
        """
        with self._claimed() as handle:
            made = ffi.new("etcffi_tensor **")
            check(lib.etcffi_method_get_attribute(handle, name.encode(), made))
            return self._result(made[0])

    def close(self) -> None:
        """Frees the method's memory and lets go of its inputs. Results that were handed over stay valid.

        Raises:
            ThreadError: another thread is running it.
            MethodStateError: it is running on this thread (a producer of an input called back).
        """
        self._acquire()
        try:
            if self._calls:
                raise MethodStateError(f"the method '{self._metadata.name()}' is running and cannot be closed")
            handle, self._handle = self._handle, None
            self._results = {}
            if handle is not None:
                ffi.release(handle)
            for memory in self._held + self._held_refused:
                memory.release()
            self._held, self._held_refused = [], []
        finally:
            self._claim.release()

    def __enter__(self) -> Method:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a Method holds native memory and cannot be pickled; load it again where it is needed")

    def __repr__(self) -> str:
        return f"<et_cffi.Method '{self._metadata.name()}'{'' if self._handle else ', closed'}>"

    def _acquire(self) -> None:
        if not self._claim.acquire(blocking=False):
            raise ThreadError(
                f"the method '{self._metadata.name()}' is being used by another thread; load one method for "
                "each thread (program.load_method)"
            )

    @contextmanager
    def _claimed(self) -> Iterator[Any]:
        self._acquire()
        try:
            if self._handle is None:
                raise MethodStateError(f"the method '{self._metadata.name()}' is closed")
            self._calls += 1
            try:
                yield self._handle
            finally:
                self._calls -= 1
        finally:
            self._claim.release()

    def _set_inputs(self, handle: Any, inputs: Any) -> None:
        self._results = {}
        # A caller who retries after a refusal accumulates nothing: nothing reads an incomplete set.
        for memory in self._held_refused:
            memory.release()
        self._held_refused = []
        described: list[Optional[Memory]] = []
        with self._writer.values() as values:
            try:
                given = as_inputs(inputs)
                if len(given) == len(values):
                    for index, source in enumerate(given):
                        described.append(self._writer.write(values[index], index, source))
                check(lib.etcffi_method_set_inputs(handle, values, len(given)))
            except BaseException:
                lib.etcffi_method_refuse_inputs(handle)
                # The runtime may have taken some of them before it refused: both sets are kept until a
                # whole one has replaced them.
                self._held_refused += _pointed_at(values, described)
                raise
            replaced, self._held = self._held, _pointed_at(values, described)
        for memory in replaced:
            memory.release()

    def _check_place(self, memory: Memory) -> None:
        if memory.locate is not None and memory.locate() != memory.location:
            raise MemoryMovedError(
                "an input's memory was moved or resized after it was set (numpy's resize(refcheck=False) does "
                "that); set the inputs again"
            )

    def _read_outputs(self, handle: Any, clone: bool) -> list[Any]:
        clone = bool(clone)
        results = self._results
        if clone not in results:
            # Taken, not shared: a finaliser or a producer may use the method in the middle of this.
            count = self._metadata.num_outputs()
            values = self._output_values.pop() if self._output_values else ffi.new("etcffi_value[]", count)
            check(lib.etcffi_method_get_outputs(handle, clone, values, count))
            results[clone] = [self._value(value) for value in values]
            self._output_values.append(values)
        return list(results[clone])

    def _value(self, value: Any) -> Any:
        tag = value.tag
        if tag == lib.ETCFFI_Tag_Tensor:
            return self._result(value.tensor)
        if tag == lib.ETCFFI_Tag_Int:
            return int(value.as_int)
        if tag == lib.ETCFFI_Tag_Bool:
            return bool(value.as_int)
        if tag == lib.ETCFFI_Tag_Double:
            return float(value.as_double)
        if tag == lib.ETCFFI_Tag_String:
            return ffi.unpack(value.as_string, value.size).decode("utf-8", "surrogatepass")
        if tag in _NUMBERS:
            holder = ffi.gc(value.tensor, lib.etcffi_tensor_release)
            memory = lib.etcffi_tensor_memory(holder)
            return list(ffi.cast(_NUMBERS[tag], memory.data)[0 : memory.sizes[0]])
        if tag in {lib.ETCFFI_Tag_ListTensor, lib.ETCFFI_Tag_ListOptionalTensor}:
            holder = ffi.gc(value.tensor, lib.etcffi_tensor_release)
            items = [self._value(item) for item in value.items[0 : value.size]]
            ffi.release(holder)
            return items
        return None

    def _result(self, tensor: Any) -> Any:
        buffer = TensorBuffer(ffi.gc(tensor, lib.etcffi_tensor_release))
        return buffer if self._torch is None else to_torch(self._torch, buffer)


def _pointed_at(values: Any, described: list[Optional[Memory]]) -> list[Memory]:
    """The inputs that the runtime reads when it runs; the others were copied, and are let go of."""
    kept = []
    for value, memory in zip(values, described):
        if memory is None:
            continue
        if value.pointed_at:
            kept.append(memory)
        else:
            memory.release()
    return kept

"""A loaded method, and what it holds of its caller's memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from et_cffi._destructor import Destructor
from et_cffi._inputs import Held, InputValues, InputWriter, as_inputs
from et_cffi._lib import address_of, cpython, ffi, lib
from et_cffi._log import forward_log
from et_cffi._torch import loaded_torch, to_torch
from et_cffi.errors import MemoryMovedError, MethodStateError, ThreadError, check, failure
from et_cffi.memory import MemoryUse, PlannedMemory, memory_of
from et_cffi.metadata import MethodMeta
from et_cffi.tensor_buffer import TensorBuffer


class _NotGiven:
    def __repr__(self) -> str:
        return "..."


_NOT_GIVEN = _NotGiven()

# Looked up once: they are used in every run.
_TENSOR = lib.ETCFFI_Tag_Tensor

# What an execution handed over, by clone_outputs.
Results = dict[bool, list[Any]]

_MOVED = (
    "an input's memory was moved or resized after it was set (numpy's resize(refcheck=False) and torch's "
    "set_() do that); set the inputs again"
)

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

    def __init__(
        self, handle: Any, destructor: Destructor, metadata: MethodMeta, planned: PlannedMemory | None = None
    ) -> None:
        self._handle: Any | None = handle
        self._destructor = destructor
        self._planned = planned
        self._metadata = metadata
        self._writer = InputWriter(metadata)
        self._num_outputs = metadata.num_outputs()
        self._output_values: list[Any] = []
        # Planned inputs are copied by the runtime, so a method that has no others holds nothing.
        self._may_point_at = any(
            metadata.input_kind(i) == "Tensor" and not metadata.input_tensor_meta(i).is_memory_planned()
            for i in range(metadata.num_inputs())
        )
        # Who reads these: the runtime, in every run until the inputs are replaced or the method is gone.
        # Inputs that were copied inside the call are not among them.
        self._held: list[Held] = []
        # Pointers of a refused call: some of them may be installed beside some of _held.
        self._held_refused: list[Held] = []
        # Reading the outputs of an execution twice gives the same objects.
        self._results: Results = {}
        # Held by the thread that uses the method; reentrant, since a call is made of several steps.
        self._claim = threading.RLock()
        self._calls = 0  # under way, one inside the other
        # From before the runtime is given pointers until what they point at is held, and while it runs: who
        # used the method in between (a finaliser, a signal handler, a backend that calls back) would replace
        # inputs that are being read, or have its own confused with these.
        self._running = False
        # Asked once, when the method is loaded: the type of a result must not change under a caller in
        # the middle of a run because something else imported torch.
        self._torch = loaded_torch()
        # What is lent out of a caller's planned memory has to hold it, which the runner knows nothing of.
        self._runner = self._make_runner() if cpython and planned is None else None
        # Its run, where no input is ever pointed at: there is then nothing to settle after it.
        self._quick = self._runner.run if self._runner is not None and not self._may_point_at else None

    def _make_runner(self) -> Any:
        """What runs the method by CPython's C API, where all inputs and outputs are tensors; else None."""
        meta = self._metadata
        kinds = [meta.input_kind(i) for i in range(meta.num_inputs())]
        kinds += [meta.output_kind(i) for i in range(meta.num_outputs())]
        if any(kind != "Tensor" for kind in kinds):
            return None
        planned = bytes(meta.input_tensor_meta(i).is_memory_planned() for i in range(meta.num_inputs()))
        tensor_type = None if self._torch is None else self._torch.Tensor
        return cpython.Runner(
            address_of(self._handle), TensorBuffer, planned, meta.num_outputs(), tensor_type
        )

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
        # The shortest way, for what most calls are: plain, and nothing to be held beyond it.
        quick = self._quick
        if quick is not None and inputs is not _NOT_GIVEN and self._claim.acquire(False):
            try:
                if not self._running and not self._destructor.done:
                    ran = quick(inputs, clone_outputs)
                    if type(ran) is list:
                        if self._torch is not None:
                            return self._keep(ran, bool(clone_outputs))
                        self._results = {bool(clone_outputs): ran}
                        return ran.copy()
                    if ran is not None:
                        return self._ran(self._handle, bool(clone_outputs), *ran)
            finally:
                self._claim.release()
        handle = self._enter()
        try:
            clone = bool(clone_outputs)
            if inputs is not _NOT_GIVEN:
                # Where CPython and PyPy part: a run that is plain is done by CPython's C API, as below.
                if self._runner is not None:
                    self._running = True
                    ran = self._runner.run(inputs, clone)
                    if type(ran) is list:
                        return self._ran(handle, clone, 0, ran, [])
                    if ran is not None:
                        return self._ran(handle, clone, *ran)
                    self._running = False
                return self._run(handle, inputs, clone)
            return self._read(handle, clone, run=True)
        finally:
            self._leave()

    def __call__(self, inputs: Any = _NOT_GIVEN, clone_outputs: bool = True) -> list[Any]:
        """The same as `execute`."""
        return self.execute(inputs, clone_outputs=clone_outputs)

    def set_inputs(self, inputs: Any) -> None:
        """Sets all inputs, for `execute()` without any.

        A planned input is copied now. Any other is read when the method runs, from the caller's own memory
        where that is a writable buffer or comes through DLPack: it is held until the inputs are replaced or
        the method is gone, and what the caller writes to it before a run is what the run reads. Memory on a
        device is read where it is if its allocator is a known one (docs/device.md), and copied now if not.

        Raises:
            ExecuTorchError: as `execute`.
        """
        handle = self._enter()
        try:
            self._give(handle, inputs, None)
        finally:
            self._leave()

    def _execute_only(self) -> None:
        """`execute()` that leaves the outputs where they are, for portable_lib."""
        handle = self._enter()
        try:
            self._step(handle, None, clone=True, run=True)
        finally:
            self._leave()

    def get_outputs(self, clone_outputs: bool = True) -> list[Any]:
        """The outputs of the last run; read twice, the same objects.

        Args:
            clone_outputs: as for `execute`.

        Raises:
            MethodStateError: the method has not run with its present inputs.
        """
        handle = self._enter()
        try:
            results = self._results.get(bool(clone_outputs))
            return (
                list(results) if results is not None else self._read(handle, bool(clone_outputs), run=False)
            )
        finally:
            self._leave()

    def get_attribute(self, name: str) -> Any:
        """A named tensor of the method (`num_attributes` of them), in place: it is lent, not copied.

        Raises:
            ExecuTorchError: the method has no attribute of that name.
        """
        handle = self._enter()
        try:
            made = ffi.new("etcffi_tensor **")
            check(lib.etcffi_method_get_attribute(handle, name.encode(), made))
            return self._result(TensorBuffer._adopt(address_of(made[0])))
        finally:
            self._leave()

    @property
    def memory(self) -> MemoryUse:
        """What the method uses of memory, in bytes."""
        handle = self._enter()
        try:
            return memory_of(handle)
        finally:
            self._leave()

    def close(self) -> None:
        """Frees the method's memory and lets go of its inputs. Results that were handed over stay valid.

        Raises:
            ThreadError: another thread is running it.
            MethodStateError: it is running on this thread (a producer of an input called back).
        """
        self._acquire()
        try:
            if self._calls or (self._runner is not None and self._runner.running):
                raise MethodStateError(
                    f"the method '{self._metadata.name()}' is running and cannot be closed"
                )
            handle, self._handle = self._handle, None
            self._planned = None
            self._results = {}
            if handle is not None and not self._destructor.done:
                ffi.release(handle)
            for held in self._held + self._held_refused:
                held.release()
            self._held, self._held_refused = [], []
        finally:
            self._claim.release()

    def __enter__(self) -> Method:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Method holds native memory and cannot be pickled; pickle its program, and load the method "
            "of it in each process"
        )

    def __repr__(self) -> str:
        return f"<et_cffi.Method '{self._metadata.name()}'{', closed' if self._destructor.done else ''}>"

    def _acquire(self) -> None:
        if not self._claim.acquire(blocking=False):
            raise ThreadError(
                f"the method '{self._metadata.name()}' is being used by another thread; load one method for "
                "each thread (program.load_method)"
            )

    def _enter(self) -> Any:
        """Claims the method for this thread, until _leave."""
        self._acquire()
        handle = self._handle
        running = self._running or (self._runner is not None and self._runner.running)
        if self._destructor.done or running:
            self._claim.release()
            state = "in the middle of a run, on this thread" if running else "closed"
            raise MethodStateError(f"the method '{self._metadata.name()}' is {state}")
        if self._planned is not None:
            try:
                self._planned.check()
            except BaseException:
                self._claim.release()
                raise
        self._calls += 1
        return handle

    def _leave(self) -> None:
        if self._running:
            # An exception (Ctrl-C, no memory) came before it was settled what to hold: nothing is read.
            lib.etcffi_method_refuse_inputs(self._handle)
            self._results = {}
            self._running = False
        self._calls -= 1
        self._claim.release()

    def _run(self, handle: Any, inputs: Any, clone: bool) -> list[Any]:
        # Taken, not shared: a finaliser or a producer may use the method in the middle of this.
        outputs = self._output_values.pop() if self._output_values else self._new_output_values()
        results = self._give(handle, inputs, (clone, outputs))
        return self._convert(outputs, clone, results)

    def _give(self, handle: Any, inputs: Any, run: tuple[bool, Any] | None) -> Results:
        """Sets the inputs and, where `run` says how and into what, runs the method and gets its outputs.
        Returns the place to keep these in."""
        self._drop_refused()
        described: list[Held | None] = []
        writer = self._writer
        values = writer.take()
        complete = False
        try:
            given = as_inputs(inputs, len(values.items))
            if len(given) == len(values.items):
                for index, source in enumerate(given):
                    described.append(writer.write(values, index, source))
            self._running = True
            results: Results = {}
            self._results = results
            # Describing one of them may have run code that moved another.
            if len(described) > 1 and _have_moved(described):
                raise MemoryMovedError(_MOVED)
            array = values.array
            if run is None:
                status = lib.etcffi_method_set_inputs(handle, array, len(given))
            else:
                clone, outputs = run
                status = lib.etcffi_method_run(handle, array, len(given), clone, outputs, self._num_outputs)
            complete = self._took_them(handle, status)
            if status:
                raise failure(status)
        finally:
            pointed_at = _pointed_at(values, described) if self._may_point_at else _let_go(described)
            self._replace_inputs(handle, pointed_at, complete)
            writer.put_back(values)
        forward_log()
        return results

    def _took_them(self, handle: Any, status: int) -> bool:
        """Whether all of the inputs of that call are installed. A method that was busy took none of them, and
        has those of before."""
        return not status or (status != lib.ETCFFI_Busy and bool(lib.etcffi_method_has_inputs(handle)))

    def _drop_refused(self) -> None:
        # A caller who retries after a refusal accumulates nothing: nothing reads an incomplete set.
        refused, self._held_refused = self._held_refused, []
        for held in refused:
            held.release()

    def _replace_inputs(self, handle: Any, pointed_at: list[Held], complete: bool) -> None:
        if complete:
            replaced = self._held + self._held_refused
            self._held, self._held_refused = pointed_at, []
            self._running = False
            for held in replaced:
                held.release()
        else:
            lib.etcffi_method_refuse_inputs(handle)
            self._results = {}
            # The runtime may have taken some of them before it refused: both sets are kept until a whole
            # one has replaced them.
            self._held_refused += pointed_at
            self._running = False

    def _ran(self, handle: Any, clone: bool, status: int, results: list[Any], pins: list[Held]) -> list[Any]:
        kept: Results = {}
        self._results = kept
        if self._held_refused:
            self._drop_refused()
        complete = self._took_them(handle, status)
        try:
            if status:
                # Never kept in a variable: its traceback would lead back to that, and to the inputs.
                raise failure(status)
        finally:
            self._replace_inputs(handle, pins, complete)
        forward_log()
        return self._keep(results, clone, kept)

    def _keep(self, results: list[Any], clone: bool, kept: Results | None = None) -> list[Any]:
        if self._torch is not None:
            # What the runner has not made torch's already.
            results = [
                to_torch(self._torch, result) if type(result) is TensorBuffer else result
                for result in results
            ]
        if kept is None:
            self._results = {clone: results}
        else:
            kept[clone] = results
        return results.copy()

    def _new_output_values(self) -> Any:
        return ffi.new("etcffi_value[]", self._num_outputs)

    def _read(self, handle: Any, clone: bool, run: bool) -> list[Any]:
        """The outputs, of a run with the inputs that were set where `run` says so."""
        values = self._output_values.pop() if self._output_values else self._new_output_values()
        results = self._step(handle, values, clone=clone, run=run)
        return self._convert(values, clone, results)

    def _step(self, handle: Any, values: Any | None, *, clone: bool, run: bool) -> Results:
        """Runs the method with the inputs that were set, or gets the outputs into `values`, or both. Returns
        the place to keep these in."""
        self._running = True
        # An output may be in an input's memory too.
        moved = _have_moved(self._held)
        status = 0
        if run and not moved:
            self._results = {}
            status = lib.etcffi_method_execute(handle)
        if values is not None and not status and not moved:
            status = lib.etcffi_method_get_outputs(handle, clone, values, self._num_outputs)
        results = self._results
        self._running = False
        if moved:
            raise MemoryMovedError(_MOVED)
        check(status)
        forward_log()
        return results

    def _convert(self, values: Any, clone: bool, results: Results) -> list[Any]:
        # Kept with the results of that run: converting one may call Python, which may run the method again.
        results[clone] = converted = self._converted(values)
        self._output_values.append(values)
        return converted.copy()

    def _converted(self, values: Any) -> list[Any]:
        # All tensors are owned before anything is converted, which may raise.
        owned = [
            TensorBuffer._adopt(address_of(value.tensor)) if value.tag == _TENSOR else value
            for value in values
        ]
        return [self._result(item) if type(item) is TensorBuffer else self._value(item) for item in owned]

    def _value(self, value: Any) -> Any:
        tag = value.tag
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
            items = self._converted(value.items[0 : value.size])
            ffi.release(holder)
            return items
        return None

    def _result(self, buffer: TensorBuffer) -> Any:
        buffer._keeps = self._planned
        return buffer if self._torch is None else to_torch(self._torch, buffer)


def _have_moved(inputs: Iterable[Held | None]) -> bool:
    """The pin is not trusted: whatever the runtime is to read must still be where it was when it was set."""
    return any(held is not None and held.moved() for held in inputs)


def _pointed_at(values: InputValues, described: list[Held | None]) -> list[Held]:
    """The inputs that the runtime reads when it runs; the others were copied, and are let go of."""
    kept = []
    for value, held in zip(values.items, described):
        if held is None:
            continue
        if value.pointed_at:
            value.pointed_at = 0
            kept.append(held)
        else:
            held.release()
    return kept


def _let_go(described: list[Held | None]) -> list[Held]:
    for held in described:
        if held is not None:
            held.release()
    return []

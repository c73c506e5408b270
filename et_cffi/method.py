"""A loaded method, and what it holds of its caller's memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

from et_cffi._destructor import Destructor
from et_cffi._inputs import Held, InputValues, InputWriter, as_inputs
from et_cffi._lib import address_of, cpython, ffi, lib
from et_cffi._log import forward_log
from et_cffi._outputs import OutputWriter, Placement
from et_cffi._torch import loaded_torch, to_torch
from et_cffi.device import CPU
from et_cffi.errors import MemoryMovedError, MethodStateError, ThreadError, check, failure
from et_cffi.memory import MemoryUse, PlannedMemory, memory_of
from et_cffi.metadata import MethodMeta
from et_cffi.tensor_buffer import TensorBuffer, adopt


class _NotGiven:
    def __repr__(self) -> str:
        return "..."


_NOT_GIVEN = _NotGiven()

# Looked up once: they are used in every run.
_TENSOR = lib.ETCFFI_Tag_Tensor

# What an execution handed over, by clone_outputs.
Results = dict[bool, list[Any]]

_OTHER_THREAD = (
    "the method '{}' is being used by another thread; load one method for each thread (program.load_method)"
)
_IN_A_RUN = "the method '{}' is in the middle of a run, on this thread"
_MOVED = (
    "an input's memory was moved or resized after it was set (numpy's resize(refcheck=False) and torch's "
    "set_() do that); set the inputs again"
)

# The kinds of outputs that the C API of CPython makes; the others are made here.
_PLAIN_OUTPUTS = {"Tensor", "Int", "Bool", "Double", "None"}

_NUMBERS = {
    lib.ETCFFI_Tag_ListInt: "int64_t *",
    lib.ETCFFI_Tag_ListBool: "bool *",
    lib.ETCFFI_Tag_ListDouble: "double *",
}


class _Run(NamedTuple):
    """How a method is run and its outputs are got, in one call of the C layer."""

    clone: bool
    outputs: Any  # etcffi_value[], one for each output
    placement: Placement | None = None

    def __call__(self, handle: Any, inputs: Any, num_inputs: int) -> int:
        clone, outputs, placement = self
        if placement is None:
            status = lib.etcffi_method_run(handle, inputs, num_inputs, clone, outputs, len(outputs))
        else:
            into = placement.array
            status = lib.etcffi_method_run_into(
                handle, inputs, num_inputs, into, clone, outputs, len(outputs)
            )
        return int(status)


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
        self._output_writer = OutputWriter(metadata)
        self._num_outputs = metadata.num_outputs()
        self._output_values: list[Any] = []
        # Planned inputs are copied by the runtime, so a method that has no others holds nothing.
        self._may_point_at = any(
            metadata.input_kind(i) == "Tensor" and not metadata.input_tensor_meta(i).is_memory_planned()
            for i in range(metadata.num_inputs())
        )
        # Who reads these: the runtime, in every run until the inputs are replaced or the method is gone.
        # Inputs that were copied inside the call are not among them.
        self._held_here: list[Held] = []
        # Pointers of a refused call: some of them may be installed beside some of _held.
        self._refused_here: list[Held] = []
        # Reading the outputs of an execution twice gives the same objects.
        self._results_here: Results = {}
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
        # Where CPython and PyPy part: by CPython's C API, a run that is plain takes a fraction of the time.
        # What is lent out of a caller's planned memory has to hold it, which the runner knows nothing of.
        self._runner = self._make_runner() if cpython and planned is None else None
        # The shortest way, where nothing is left to do in Python.
        self._quick: Any = None
        if self._runner is not None and (self._torch is None or self._makes_torch(self._runner)):
            self._quick = self._runner.run
        self._plain: Any = None
        if cpython is None and self._torch is None and not self._may_point_at and self._has_tensors_only():
            from et_cffi._plain import PlainInputs

            self._plain = PlainInputs(metadata)
            self._quick = self._run_plain

    def _has_tensors_only(self) -> bool:
        meta = self._metadata
        kinds = [meta.input_kind(i) for i in range(meta.num_inputs())]
        return set(kinds + [meta.output_kind(i) for i in range(self._num_outputs)]) <= {"Tensor"}

    def _makes_torch(self, runner: Any) -> bool:
        """Whether the runner makes all of the torch tensors that are results."""
        meta = self._metadata
        return bool(runner.exchanges) and all(
            meta.output_tensor_meta(i).device == CPU
            for i in range(meta.num_outputs())
            if meta.output_kind(i) == "Tensor"
        )

    # Results, and what holds inputs, are the runner's where there is one: it replaces them too, without the
    # Python layer.

    @property
    def _results(self) -> Results:
        results = self._results_here if self._runner is None else self._runner.results
        return {} if results is None else results

    @_results.setter
    def _results(self, results: Results) -> None:
        if self._runner is None:
            self._results_here = results
        else:
            self._runner.results = results

    @property
    def _held(self) -> list[Held]:
        return self._held_here if self._runner is None else self._runner.held

    @_held.setter
    def _held(self, held: list[Held]) -> None:
        if self._runner is None:
            self._held_here = held
        else:
            self._runner.held = held

    @property
    def _held_refused(self) -> list[Held]:
        return self._refused_here if self._runner is None else self._runner.refused

    @_held_refused.setter
    def _held_refused(self, held: list[Held]) -> None:
        if self._runner is None:
            self._refused_here = held
        else:
            self._runner.refused = held

    def _make_runner(self) -> Any:
        """What runs the method by CPython's C API, where its outputs are tensors and numbers; else None."""
        meta = self._metadata
        if not {meta.output_kind(i) for i in range(meta.num_outputs())} <= _PLAIN_OUTPUTS:
            return None
        kinds = bytearray()
        for index in range(meta.num_inputs()):
            kind = meta.input_kind(index)
            if kind == "Tensor":
                kinds += b"p" if meta.input_tensor_meta(index).is_memory_planned() else b"t"
            else:
                kinds += b"d" if kind == "Double" else b"s"
        tensor_type = None if self._torch is None else self._torch.Tensor
        return cpython.Runner(
            address_of(self._handle), TensorBuffer, bytes(kinds), meta.num_outputs(), tensor_type
        )

    @property
    def metadata(self) -> MethodMeta:
        """The method's inputs, outputs and memory."""
        return self._metadata

    def execute(self, inputs: Any = _NOT_GIVEN, *, clone_outputs: bool = True, out: Any = None) -> list[Any]:
        """Runs the method and returns its outputs.

        Args:
            inputs: a list or other sequence with one item for each input, or a single input as it is. Left
                out, the method runs with the inputs of `set_inputs`. A tensor is whatever holds memory: a
                numpy array, any buffer, a DLPack producer, a torch tensor, a `TensorBuffer`.
            clone_outputs: False lends out the outputs that are in planned memory instead of copying them;
                the next run then overwrites them. It changes nothing for an output without planned memory,
                which has memory of its own for each run.
            out: memory to write the outputs to: a list with one item for each output, or a single item for
                the only one. An item is whatever an input can be, if it may be written, with the output's
                dtype, layout and actual shape; or None, for an output that is to be returned as ever. An
                output without planned memory and with a static shape is written there directly if its
                backend allows, and if the memory is not that of an input; every other is copied there after
                the run.

        Returns:
            One item for each output: what `out` has for it; or a `TensorBuffer`, or a torch tensor over the
            same memory where the process had torch when the method was loaded; int, float, bool, str, None
            or a list of these for outputs that are no tensors.

        Raises:
            ExecuTorchError: one of the classes in `et_cffi.errors`, naming the input and what to do. After
                an input was refused, a whole set has to be given before the method runs again.
            ArgumentError: memory in `out` is read-only, or overlaps other memory in `out`, or the method's.
        """
        quick = self._quick
        if quick is not None and out is None and inputs is not _NOT_GIVEN:
            ran = quick(inputs, clone_outputs)
            if type(ran) is list:
                return ran
            if ran is not None:
                status, results = ran
                check(status)
                forward_log()
                return list(results)
        handle = self._enter()
        try:
            clone = bool(clone_outputs)
            if out is not None:
                return self._run_into(handle, inputs, clone, out)
            if inputs is _NOT_GIVEN:
                return self._read(handle, clone, run=True)
            if self._runner is not None:
                ran = self._runner.run(inputs, clone, True)
                if ran is not None:
                    return self._ran(handle, clone, ran)
            return self._run(handle, inputs, clone)
        finally:
            self._leave()

    def __call__(self, inputs: Any = _NOT_GIVEN, clone_outputs: bool = True, out: Any = None) -> list[Any]:
        """The same as `execute`."""
        return self.execute(inputs, clone_outputs=clone_outputs, out=out)

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
            MethodStateError: the method has not run with its present inputs; or it ran with `out` and without
                `clone_outputs`, and clones are asked for.
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
            return self._result(adopt(made[0]))
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
        self._hold()
        try:
            if self._calls or self._running:
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
            # It keeps the method too, and what it gave last. Whoever still has it finds it held.
            self._runner = self._quick = None
        finally:
            self._let_go()

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
            raise ThreadError(_OTHER_THREAD.format(self._metadata.name()))

    def _hold(self) -> None:
        """Claims the method for this thread and keeps plain runs off, until _let_go."""
        self._acquire()
        if self._runner is None:
            return
        left = self._runner.hold()
        if type(left) is bool:
            self._claim.release()
            if not left:
                raise ThreadError(_OTHER_THREAD.format(self._metadata.name()))
            raise MethodStateError(_IN_A_RUN.format(self._metadata.name()))
        self._take_left()

    def _take_left(self) -> None:
        """Takes over what plain runs gave since the last time, or that the last one was refused."""
        left = self._runner.left if self._runner is not None else None
        if left is not None:
            clones, results = left
            self._results = {} if results is None else {clones: self._as_torch(results)}

    def _let_go(self) -> None:
        if self._runner is not None:
            self._runner.let_go()
        self._claim.release()

    def _enter(self) -> Any:
        """Claims the method for a call, until _leave."""
        self._hold()
        try:
            if self._destructor.done:
                raise MethodStateError(f"the method '{self._metadata.name()}' is closed")
            if self._running:
                raise MethodStateError(_IN_A_RUN.format(self._metadata.name()))
            if self._planned is not None:
                self._planned.check()
        except BaseException:
            self._let_go()
            raise
        self._calls += 1
        return self._handle

    def _leave(self) -> None:
        if self._running:
            # An exception (Ctrl-C, no memory) came before it was settled what to hold: nothing is read.
            lib.etcffi_method_refuse_inputs(self._handle)
            self._results = {}
            self._running = False
        self._calls -= 1
        self._let_go()

    def _ran(self, handle: Any, clone: bool, ran: Any) -> list[Any]:
        """Ends a run of the runner's."""
        if type(ran) is tuple:
            if len(ran) == 1:
                return self._run_asked(handle, ran[0], clone)
            status, ran = ran
            check(status)
        # Those of this very run: a signal handler may have run the method since, and left others.
        results = self._as_torch(ran)
        left = self._runner.left if self._runner is not None else None
        if left is not None and left[1] is not None and all(a is b for a, b in zip(left[1], ran)):
            self._results = {clone: results}
        forward_log()
        return results.copy()

    def _as_torch(self, results: list[Any]) -> list[Any]:
        """The same where there is no torch; else torch's, where the runner has not made them that."""
        if self._torch is None:
            return results
        return [
            to_torch(self._torch, result) if type(result) is TensorBuffer else result for result in results
        ]

    def _run(self, handle: Any, inputs: Any, clone: bool) -> list[Any]:
        # Taken, not shared: a finaliser or a producer may use the method in the middle of this.
        outputs = self._output_values.pop() if self._output_values else self._new_output_values()
        results = self._give(handle, inputs, _Run(clone, outputs))
        return self._convert(outputs, clone, results)

    def _run_asked(self, handle: Any, inputs: list[Any], clone: bool) -> list[Any]:
        """Goes on with what the runner has asked DLPack producers for."""
        try:
            return self._run(handle, inputs, clone)
        finally:
            # What nobody came to claim is given back now: an exception keeps this frame, and so the list.
            for source in inputs:
                if type(source) is cpython.Asked:
                    source.release()

    def _run_plain(self, inputs: Any, clone: Any) -> list[Any] | None:
        """The same as the runner's run(), in Python, for an interpreter that compiles it."""
        plain = self._plain
        # None: a finaliser came in the middle of this.
        if plain is None or not self._claim.acquire(False):
            return None
        self._plain = None
        try:
            if self._running or self._destructor.done or self._planned is not None:
                return None
            held = plain.write(inputs)
            if held is None:
                return None
            clone = bool(clone)
            outputs = self._output_values.pop() if self._output_values else self._new_output_values()
            self._running = True
            results: Results = {}
            self._results = results
            status = lib.etcffi_method_run(
                self._handle, plain.array, len(held), clone, outputs, self._num_outputs
            )
            self._running = False
            check(status)
            made = [adopt(outputs[i].tensor) for i in range(self._num_outputs)]
            results[clone] = made
            self._output_values.append(outputs)
            forward_log()
            return made.copy()
        finally:
            self._plain = plain
            if self._running:
                # An exception came before the call, or in the middle of it (Ctrl-C).
                lib.etcffi_method_refuse_inputs(self._handle)
                self._results = {}
                self._running = False
            self._claim.release()

    def _run_into(self, handle: Any, inputs: Any, clone: bool, out: Any) -> list[Any]:
        # Before anything is done with the inputs: what holds no memory is refused with the last in place.
        placement = self._output_writer.place(out)
        try:
            outputs = self._output_values.pop() if self._output_values else self._new_output_values()
            if inputs is _NOT_GIVEN:
                results = self._step(handle, outputs, clone=clone, run=True, placement=placement)
            else:
                results = self._give(handle, inputs, _Run(clone, outputs, placement))
        finally:
            placement.release()
        return self._convert(outputs, clone, results, placement)

    def _give(self, handle: Any, inputs: Any, run: _Run | None) -> Results:
        """Sets the inputs and, where `run` says how, runs the method and gets its outputs. Returns the place
        to keep these in."""
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
            if run is not None:
                _require_unmoved(run.placement)
            array = values.array
            if run is None:
                status = lib.etcffi_method_set_inputs(handle, array, len(given))
            else:
                status = run(handle, array, len(given))
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

    def _new_output_values(self) -> Any:
        return ffi.new("etcffi_value[]", self._num_outputs)

    def _read(self, handle: Any, clone: bool, run: bool) -> list[Any]:
        """The outputs, of a run with the inputs that were set where `run` says so."""
        values = self._output_values.pop() if self._output_values else self._new_output_values()
        results = self._step(handle, values, clone=clone, run=run)
        return self._convert(values, clone, results)

    def _step(
        self,
        handle: Any,
        values: Any | None,
        *,
        clone: bool,
        run: bool,
        placement: Placement | None = None,
    ) -> Results:
        """Runs the method with the inputs that were set, or gets the outputs into `values`, or both. Returns
        the place to keep these in."""
        _require_unmoved(placement)
        self._running = True
        # An output may be in an input's memory too.
        moved = _have_moved(self._held)
        status = 0
        if run and not moved:
            self._results = {}
            if placement is not None:
                status = _Run(clone, values, placement)(handle, ffi.NULL, 0)
            else:
                status = lib.etcffi_method_execute(handle)
        if values is not None and placement is None and not status and not moved:
            status = lib.etcffi_method_get_outputs(handle, clone, values, self._num_outputs)
        results = self._results
        self._running = False
        if moved:
            raise MemoryMovedError(_MOVED)
        check(status)
        forward_log()
        return results

    def _convert(
        self, values: Any, clone: bool, results: Results, placement: Placement | None = None
    ) -> list[Any]:
        converted = self._converted(values)
        self._output_values.append(values)
        if placement is not None:
            converted = placement.fill_in(converted)
            # The C layer is not asked again: it knows nothing of the caller's memory after that call.
            results[False] = converted
        # Kept with the results of that run: converting one may call Python, which may run the method again.
        results[clone] = converted
        return converted.copy()

    def _converted(self, values: Any) -> list[Any]:
        # All tensors are owned before anything is converted, which may raise.
        owned = [adopt(value.tensor) if value.tag == _TENSOR else value for value in values]
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


def _require_unmoved(placement: Placement | None) -> None:
    if placement is not None and _have_moved(placement.held):
        raise MemoryMovedError(
            "memory in `out` was moved or resized after it was described (a producer of an input or of "
            "another output did so); give it again"
        )


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

"""Reads ETDump files: what a program's methods did, and how long it took.

```python
import numpy
from et_cffi import Runtime, etdump

program = Runtime.get().load_program("tests/models/digits.pte", enable_etdump=True)
program.load_method("forward").execute(numpy.load("tests/models/digit.npy"))
program.write_etdump_result_to_file("model.etdp")
for run in etdump.read("model.etdp").runs:
    for operator in run.operators:
        print(run.name, operator.instruction, operator.name, operator.nanoseconds)
```

It needs the package flatbuffers (`pip install et_cffi[devtools]`), and neither torch nor pandas.
"""

from __future__ import annotations

import os
import struct
from typing import Any, NamedTuple

from et_cffi._buffer import bytes_of, is_buffer
from et_cffi._flatbuffers import schema, verifies
from et_cffi._lib import lib
from et_cffi.dtypes import DTYPES, ScalarType
from et_cffi.errors import InvalidETDumpError

_IDENTIFIER = b"ED00"
_UNSET = -1
# What the runtime calls an instruction, and how the kernels' own events begin.
_CALLS = ("OPERATOR_CALL", "DELEGATE_CALL")
_KERNEL = "native_call_"


class Event(NamedTuple):
    """Something that took time. `start` and `end` count nanoseconds of a clock that never goes back.

    `instruction` is the number of the method's instruction during which it happened, or None outside of any.
    An event inside a delegate has a `delegate_id`, as the backend gave it: a text, or the number of one of
    its nodes; and what else the backend says of it, in `delegate_metadata`.
    """

    name: str
    instruction: int | None
    start: int
    end: int
    delegate_id: int | str | None
    delegate_metadata: bytes

    @property
    def nanoseconds(self) -> int:
        """How long it took."""
        return self.end - self.start


class DebugTensor(NamedTuple):
    """A result of an instruction, whose values are in the debug buffer."""

    instruction: int | None
    delegate_id: int | str | None
    scalar_type: ScalarType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    offset: int
    is_output: bool
    """Whether it is an output of the method."""

    def values(self, debug_buffer: Any) -> Any:
        """The values, as a numpy array.

        Args:
            debug_buffer: the content of the file that `write_etdump_result_to_file` wrote as its second.

        Raises:
            InvalidETDumpError: the values lie outside of it.
        """
        import numpy

        dtype = DTYPES[self.scalar_type]
        if 0 in self.shape:
            return numpy.empty(self.shape, dtype.typestr)
        strides = [stride * dtype.itemsize for stride in self.strides]
        reach = sum((size - 1) * stride for size, stride in zip(self.shape, strides)) + dtype.itemsize
        data = bytes_of(debug_buffer)
        if min([self.offset, *strides]) < 0 or self.offset + reach > len(data):
            raise InvalidETDumpError(f"the values lie outside of the debug buffer of {len(data)} bytes")
        return numpy.ndarray(self.shape, dtype.typestr, data, self.offset, strides).copy()


class Run(NamedTuple):
    """A load ("Default") or a run ("Execute") of a method."""

    name: str
    events: list[Event]
    """All of them, in the order in which they ended."""
    debug_tensors: list[DebugTensor]

    @property
    def operators(self) -> list[Event]:
        """One event for each instruction that called an operator or a delegate, named after the operator.

        The time is the whole instruction's. A delegate is named DELEGATE_CALL; `delegate_events` has what it
        says of its inside.
        """
        names = {
            event.instruction: event.name[len(_KERNEL) :]
            for event in self.events
            if event.name.startswith(_KERNEL)
        }
        return [
            event._replace(name=names.get(event.instruction, event.name))
            for event in self.events
            if event.name in _CALLS
        ]

    @property
    def delegate_events(self) -> list[Event]:
        """The events inside delegates; those of one delegate have the same `instruction`."""
        return [event for event in self.events if event.delegate_id is not None]


class ETDump(NamedTuple):
    """The content of an ETDump file."""

    version: int
    runs: list[Run]


def read(source: Any) -> ETDump:
    """Reads an ETDump.

    Args:
        source: a path (str or os.PathLike), or a buffer that holds the file.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidETDumpError: it is no whole ETDump.
        ModuleNotFoundError: the package flatbuffers is not installed.
    """
    accessors = schema("etdump")
    if isinstance(source, (str, os.PathLike)):
        with open(source, "rb") as file:
            data, name = file.read(), f"'{os.fsdecode(source)}'"
    elif is_buffer(source):
        data, name = bytes_of(source).tobytes(), "the data"
    else:
        raise TypeError(f"an ETDump is read from a path or a buffer, not from a {type(source).__name__}")
    # The size stands before the flatbuffer, and the identifier behind the root's offset.
    if len(data) < 12 or data[8:12] != _IDENTIFIER:
        raise InvalidETDumpError(f'{name} is no ETDump: it lacks the identifier "ED00" at byte 8')
    (size,) = struct.unpack_from("<I", data)
    if size + 4 > len(data):
        raise InvalidETDumpError(f"{name} is truncated: it has {len(data)} bytes of {size + 4}")
    if not verifies(lib.ETCFFI_FILE_ETDUMP, data):
        raise InvalidETDumpError(f"{name} is damaged: its flatbuffer does not verify")
    root = accessors.ETDump.GetRootAs(data, 4)
    try:
        return ETDump(root.Version(), [_run(root.RunData(i)) for i in range(root.RunDataLength())])
    except ValueError as error:  # a scalar type that there is not
        raise InvalidETDumpError(f"{name} is damaged: {error}") from error


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


def _instruction(number: int) -> int | None:
    # The runtime has an unsigned "none", which the file keeps as its signed counterpart.
    return None if number == _UNSET else number


def _delegate_id(event: Any) -> int | str | None:
    name = event.DelegateDebugIdStr()
    if name is not None:
        return _text(name)
    number: int = event.DelegateDebugIdInt()
    return None if number == _UNSET else number


def _run(data: Any) -> Run:
    events, tensors = [], []
    for index in range(data.EventsLength()):
        event = data.Events(index)
        profile, debug = event.ProfileEvent(), event.DebugEvent()
        if profile is not None:
            events.append(_event(profile))
        if debug is not None and debug.DebugEntry() is not None:
            tensors += _debug_tensors(debug)
    return Run(_text(data.Name()), events, tensors)


def _event(profile: Any) -> Event:
    delegate_id = _delegate_id(profile)
    name = _text(profile.Name()) or (str(delegate_id) if delegate_id is not None else "")
    metadata = bytes(profile.DelegateDebugMetadata(i) for i in range(profile.DelegateDebugMetadataLength()))
    return Event(
        name,
        _instruction(profile.InstructionId()),
        profile.StartTime(),
        profile.EndTime(),
        delegate_id,
        metadata,
    )


def _debug_tensors(debug: Any) -> list[DebugTensor]:
    value = debug.DebugEntry()
    tensors = [value.Tensor()] if value.Tensor() is not None else []
    listed = value.TensorList()
    if listed is not None:
        tensors += [listed.Tensors(i) for i in range(listed.TensorsLength())]
    is_output = value.Output() is not None and bool(value.Output().BoolVal())
    return [
        DebugTensor(
            _instruction(debug.InstructionId()),
            _delegate_id(debug),
            ScalarType(tensor.ScalarType()),
            tuple(tensor.Sizes(i) for i in range(tensor.SizesLength())),
            tuple(tensor.Strides(i) for i in range(tensor.StridesLength())),
            tensor.Offset(),
            is_output,
        )
        for tensor in tensors
    ]

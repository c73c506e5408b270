"""What a program's file holds: operators, delegates, constants, and whether this runtime has what it needs.

```python
from et_cffi import Runtime, inspection

program = Runtime.get().load_program("tests/models/digits.pte")
for method in inspection.inspect(program).methods:
    print(method.name, method.missing_operators, method.missing_backends)
```

No method is loaded, so it works on a program that cannot run here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from et_cffi._lib import ffi, lib, text
from et_cffi.dtypes import ScalarType
from et_cffi.errors import check
from et_cffi.metadata import MethodMeta, TensorInfo
from et_cffi.program import Program

_KINDS = {
    lib.ETCFFI_CONSTANT: "constant",
    lib.ETCFFI_INITIAL_STATE: "initial state",
    lib.ETCFFI_EXTERNAL: "external",
}


@dataclass(frozen=True)
class Value:
    """An input or output of a method. What only a tensor has is None for anything else."""

    kind: str
    """"Tensor", "Int", "Double", "Bool", "String", "None" or the kind of a list."""
    name: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    """Where `dynamic`, the upper bounds; the file tells neither lower ones nor which dimensions vary."""
    dynamic: bool | None = None
    dim_order: tuple[int, ...] | None = None
    device: str | None = None
    planned: bool | None = None
    """Whether the runtime reserves the memory."""
    nbytes: int | None = None


@dataclass(frozen=True)
class Operator:
    """An operator that a method uses, and how many of its instructions call it."""

    name: str
    calls: int
    available: bool
    """Whether this runtime has a kernel of that name; it may be for other dtypes."""


@dataclass(frozen=True)
class Delegate:
    """A part of a method that a backend runs, and where in the file the backend's data for it are."""

    backend: str
    calls: int
    options: int
    """How many compile options were given when the part was lowered."""
    offset: int
    nbytes: int
    available: bool
    """Whether the backend is registered, and says that it can run here."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor whose values are stored."""

    kind: str
    """"constant"; "initial state" (of a buffer that the method writes); or "external" (in a .ptd)."""
    name: str
    """What a .ptd knows it by; often empty for the others."""
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Where the values are in the file; tensors with the same offset are one. 0 for external ones."""
    nbytes: int


@dataclass(frozen=True)
class PlannedMemory:
    """A buffer that the runtime reserves for a method."""

    nbytes: int
    device: str


@dataclass(frozen=True)
class NamedData:
    """Data that delegates find by a key in the program's own file."""

    key: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class MethodInspection:
    """What the file says of a method."""

    name: str
    instructions: int
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    operators: tuple[Operator, ...]
    delegates: tuple[Delegate, ...]
    planned: tuple[PlannedMemory, ...]
    stored: tuple[StoredTensor, ...]

    @property
    def missing_operators(self) -> tuple[str, ...]:
        """The operators that this runtime lacks."""
        return tuple(operator.name for operator in self.operators if not operator.available)

    @property
    def missing_backends(self) -> tuple[str, ...]:
        """The backends that are not registered or cannot run here."""
        return tuple(sorted({part.backend for part in self.delegates if not part.available}))

    @property
    def keeps_state(self) -> bool:
        """Whether an operator works in place ("aten::copy_"), as on a buffer that the next run reads.

        What a backend keeps is not told.
        """
        return any(operator.name.partition(".")[0].endswith("_") for operator in self.operators)

    @property
    def external_keys(self) -> tuple[str, ...]:
        """The names that .ptd files have to bring. What a delegate looks up by itself is not among them."""
        return tuple(sorted({tensor.name for tensor in self.stored if tensor.kind == "external"}))

    @property
    def constants(self) -> tuple[StoredTensor, ...]:
        """The constants, each once however many values share it."""
        found = {tensor.offset: tensor for tensor in self.stored if tensor.kind == "constant"}
        return tuple(found.values())


@dataclass(frozen=True)
class ProgramInspection:
    """What a program's file holds."""

    identifier: str
    """The file format's, such as "ET12"."""
    version: int
    """The schema's."""
    flatbuffer_nbytes: int
    constants_nbytes: int
    """The segment of all methods' constants, with its padding."""
    segments: int
    named_data: tuple[NamedData, ...]
    methods: tuple[MethodInspection, ...]

    @property
    def runnable(self) -> bool:
        """Whether this runtime has every operator and backend."""
        return not any(method.missing_operators or method.missing_backends for method in self.methods)


def inspect(program: Program) -> ProgramInspection:
    """What a loaded program's file holds.

    Raises:
        InvalidProgramError: the file states a tensor that cannot be.
    """
    facts = ffi.new("etcffi_file_facts *")
    check(lib.etcffi_program_file_facts(program._handle, facts))
    return ProgramInspection(
        text(facts.identifier),
        int(facts.version),
        int(facts.flatbuffer_nbytes),
        int(facts.constants_nbytes),
        int(facts.num_segments),
        tuple(
            NamedData(text(item.key), int(item.offset), int(item.nbytes))
            for item in _all("etcffi_named_data", lib.etcffi_program_named_data, program._handle)
        ),
        tuple(_method(program, name, index) for name, index in program._indices.items()),
    )


def _all(kind: str, function: Any, *where: Any) -> Any:
    """What a function with a capacity has to give."""
    count = ffi.new("size_t *")
    check(function(*where, ffi.NULL, 0, count))
    items = ffi.new(f"{kind}[]", count[0])
    check(function(*where, items, count[0], count))
    return items


def _method(program: Program, name: str, index: int) -> MethodInspection:
    meta = program.metadata(name)
    where = (program._handle, index)
    operators: dict[str, int] = {}
    for item in _all("etcffi_operator_facts", lib.etcffi_program_operators, *where):
        full = ".".join(part for part in (text(item.name), text(item.overload)) if part)
        operators[full] = operators.get(full, 0) + int(item.calls)
    return MethodInspection(
        name,
        meta.num_instructions(),
        tuple(_value(meta, "input", i) for i in range(meta.num_inputs())),
        tuple(_value(meta, "output", i) for i in range(meta.num_outputs())),
        tuple(
            Operator(each, calls, bool(lib.etcffi_has_kernel(each.encode())))
            for each, calls in operators.items()
        ),
        tuple(_delegate(i) for i in _all("etcffi_delegate_facts", lib.etcffi_program_delegates, *where)),
        tuple(PlannedMemory(nbytes, str(device)) for nbytes, device in meta.planned_buffers),
        tuple(_stored(i) for i in _all("etcffi_stored_tensor", lib.etcffi_program_stored_tensors, *where)),
    )


def _delegate(item: Any) -> Delegate:
    return Delegate(
        text(item.backend),
        int(item.calls),
        int(item.num_options),
        int(item.payload.offset),
        int(item.payload.nbytes),
        bool(lib.etcffi_backend_is_available(item.backend)),
    )


def _stored(item: Any) -> StoredTensor:
    info = TensorInfo(item.tensor)
    return StoredTensor(
        _KINDS[item.kind],
        info.name,
        str(ScalarType(info.dtype())),
        info.sizes(),
        int(item.data.offset),
        int(item.data.nbytes),
    )


def _value(meta: MethodMeta, side: str, index: int) -> Value:
    kind = meta.input_kind(index) if side == "input" else meta.output_kind(index)
    if kind != "Tensor":
        return Value(kind)
    info = meta.input_tensor_meta(index) if side == "input" else meta.output_tensor_meta(index)
    return Value(
        kind,
        info.name,
        str(ScalarType(info.dtype())),
        info.sizes(),
        info.is_dynamic(),
        info.dim_order(),
        str(info.device),
        info.is_memory_planned(),
        info.nbytes(),
    )

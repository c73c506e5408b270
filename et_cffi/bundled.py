"""Bundled programs (.bpte): a program together with test cases, each of inputs and expected outputs.

```python
from et_cffi import bundled

for report in bundled.load("tests/models/add_bundled.bpte").verify():
    print(report)
```

It needs the package flatbuffers (`pip install et_cffi[devtools]`).
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from et_cffi._buffer import bytes_of, is_buffer
from et_cffi._compare import OutputReport, compare
from et_cffi._flatbuffers import schema, verifies
from et_cffi._lib import lib
from et_cffi.dtypes import ScalarType
from et_cffi.errors import (
    ArgumentError,
    InvalidProgramError,
    ProgramNotFoundError,
    UnknownMethodError,
    VerificationError,
)
from et_cffi.method import Method
from et_cffi.program import Program
from et_cffi.runtime import Runtime
from et_cffi.tensor_buffer import TensorBuffer, copy_of

_IDENTIFIER = b"BP08"


class Case(NamedTuple):
    """A test case: inputs for `Method.execute`, and the outputs that the eager module computed from them.

    Tensors are `TensorBuffer`, in the layout that the method was exported with.
    """

    inputs: list[Any]
    expected_outputs: list[Any]


class CaseReport(NamedTuple):
    """What came of a test case."""

    method: str
    case: int
    outputs: list[OutputReport]

    @property
    def passed(self) -> bool:
        """Whether every output is as expected."""
        return all(output.passed for output in self.outputs)

    def __str__(self) -> str:
        lines = [f"method '{self.method}', case {self.case}: {'passed' if self.passed else 'FAILED'}"]
        return "\n".join([*lines, *(f"  {output}" for output in self.outputs)])


class BundledProgram:
    """A program and its test cases. Made by `load`."""

    def __init__(self, data: bytes, root: Any, what: str) -> None:
        self._what = what
        self._root = root
        self._suites = {}
        for index in range(root.MethodTestSuitesLength()):
            suite = root.MethodTestSuites(index)
            self._suites[(suite.MethodName() or b"").decode("utf-8", "replace")] = suite
        field, length = root._tab.Offset(8), root.ProgramLength()
        if not length:
            raise InvalidProgramError(f"{what} holds no program")
        start = root._tab.Vector(field)
        self._program = memoryview(data)[start : start + length]  # it stays where it is

    @property
    def program(self) -> memoryview:
        """The program inside, as `Runtime.load_program` takes it."""
        return self._program

    @property
    def method_names(self) -> set[str]:
        """The methods that have test cases."""
        return set(self._suites)

    def load_program(self, **options: Any) -> Program:
        """Loads the program inside, with the options of `Runtime.load_program`."""
        return Runtime.get().load_program(self._program, **options)

    def num_cases(self, method_name: str) -> int:
        """How many test cases a method has.

        Raises:
            UnknownMethodError: it has none; the message names the methods that have.
        """
        return int(self._suite(method_name).TestCasesLength())

    def case(self, method_name: str, index: int) -> Case:
        """A test case.

        Raises:
            UnknownMethodError: the method has none; the message names the methods that have.
            ArgumentError: it has no case of that number.
            InvalidProgramError: the case is damaged.
        """
        suite, count = self._suite(method_name), self.num_cases(method_name)
        if not 0 <= index < count:
            raise ArgumentError(f"{self._what} has no test case {index} for '{method_name}'; it has {count}")
        try:
            case = suite.TestCases(index)
            return Case(
                [_value(case.Inputs(i)) for i in range(case.InputsLength())],
                [_value(case.ExpectedOutputs(i)) for i in range(case.ExpectedOutputsLength())],
            )
        except ValueError as error:  # a tensor that cannot be
            raise InvalidProgramError(
                f"test case {index} for '{method_name}' of {self._what} is damaged: {error}"
            ) from error

    def run(
        self, method: Method, index: int, *, rtol: float = 1e-5, atol: float = 1e-8
    ) -> tuple[list[Any], CaseReport]:
        """Runs a method of this program on a test case of its own.

        Returns:
            The outputs, as `Method.execute` gives them, and how they compare.
        """
        name = method.metadata.name()
        case = self.case(name, index)
        outputs = method.execute(case.inputs)
        return outputs, self.compare(name, index, outputs, rtol=rtol, atol=atol)

    def compare(
        self, method_name: str, index: int, outputs: list[Any], *, rtol: float = 1e-5, atol: float = 1e-8
    ) -> CaseReport:
        """Compares outputs with those that a test case expects.

        Floating point values are close if |actual - expected| <= atol + rtol * |expected|, or both are NaN,
        or the same infinity; everything else has to be equal.

        Raises:
            ArgumentError: the case expects no outputs, or another number of them.
        """
        expected = self.case(method_name, index).expected_outputs
        if len(expected) != len(outputs):
            raise ArgumentError(
                f"test case {index} for '{method_name}' of {self._what} expects {len(expected)} outputs, and "
                f"the method has {len(outputs)}"
            )
        reports = [
            compare(i, actual, wanted, rtol, atol)
            for i, (actual, wanted) in enumerate(zip(outputs, expected))
        ]
        return CaseReport(method_name, index, reports)

    def verify(
        self,
        method_name: str | None = None,
        *,
        rtol: float = 1e-5,
        atol: float = 1e-8,
        **options: Any,
    ) -> list[CaseReport]:
        """Runs every test case, of one method or of all, each method's on one loaded method and in order.

        Args:
            method_name: the method, or None for all that have test cases.
            rtol: as for `compare`.
            atol: as for `compare`.
            options: those of `Runtime.load_program`.
        """
        program = self.load_program(**options)
        reports = []
        for name in sorted(self._suites) if method_name is None else [method_name]:
            with program.load_method(name) as method:
                for index in range(self.num_cases(name)):
                    reports.append(self.run(method, index, rtol=rtol, atol=atol)[1])
        return reports

    def _suite(self, method_name: str) -> Any:
        if method_name not in self._suites:
            raise UnknownMethodError(
                f"{self._what} has no test cases for '{method_name}'; it has some for "
                + (", ".join(f"'{name}'" for name in sorted(self._suites)) or "no method")
            )
        return self._suites[method_name]


def require_passed(report: CaseReport) -> None:
    """Raises VerificationError, with the report, unless the case passed."""
    if not report.passed:
        raise VerificationError(str(report))


def load(source: Any) -> BundledProgram:
    """Loads a bundled program.

    Args:
        source: a path (str or os.PathLike), a buffer that holds the file, or a file object.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidProgramError: it is no whole bundled program.
        ModuleNotFoundError: the package flatbuffers is not installed.
    """
    accessors = schema("bundled_program")
    what = "the bundled program"
    if isinstance(source, (str, os.PathLike)):
        what = f"'{os.fsdecode(source)}'"
        try:
            with open(source, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            raise ProgramNotFoundError(f"there is no file {what}", os.fsdecode(source)) from None
    elif is_buffer(source):
        data = source if isinstance(source, bytes) else bytes_of(source).tobytes()
    elif hasattr(source, "read"):
        data = source.read()
    else:
        raise TypeError(
            "a bundled program is loaded from a path, a buffer or a file object, not from a "
            f"{type(source).__name__}"
        )
    if data[4:8] != _IDENTIFIER:
        raise InvalidProgramError(f'{what} is no bundled program: it lacks the identifier "BP08" at byte 4')
    if not verifies(lib.ETCFFI_FILE_BUNDLED_PROGRAM, data):
        raise InvalidProgramError(f"{what} is truncated or damaged: its flatbuffer does not verify")
    return BundledProgram(data, accessors.BundledProgram.GetRootAs(data, 0), what)


def _value(value: Any) -> Any:
    accessors = schema("bundled_program")
    kind, table = value.ValType(), value.Val()
    if kind == accessors.ValueUnion.NONE:
        return None
    fields = {"Tensor": None, "Int": "IntVal", "Bool": "BoolVal", "Double": "DoubleVal"}
    for name, field in fields.items():
        if kind == getattr(accessors.ValueUnion, name) and table is not None:
            read = getattr(accessors, name)()
            read.Init(table.Bytes, table.Pos)
            return _tensor(read) if field is None else getattr(read, field)()
    raise ValueError(f"a value is of the kind {kind}")


def _tensor(tensor: Any) -> TensorBuffer:
    ndim = tensor.SizesLength()
    if ndim > lib.ETCFFI_MAX_DIM or tensor.DimOrderLength() != ndim:
        raise ValueError(f"a tensor has {ndim} dimensions, and {tensor.DimOrderLength()} of them an order")
    sizes = [tensor.Sizes(i) for i in range(ndim)]
    dim_order = [tensor.DimOrder(i) for i in range(tensor.DimOrderLength())]
    if sorted(dim_order) != list(range(ndim)):
        raise ValueError(f"a tensor of {ndim} dimensions has the dim order {dim_order}")
    content = bytes(tensor.DataAsNumpy()) if tensor.DataLength() else b""
    return copy_of(content, ScalarType(tensor.ScalarType()), sizes, dim_order)

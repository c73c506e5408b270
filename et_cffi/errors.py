"""What goes wrong, as exceptions.

Every exception is an `ExecuTorchError`, and also the builtin that a Python user would expect: a wrong shape
is a `ValueError` too, a missing file a `FileNotFoundError`.
"""

from __future__ import annotations

import errno

from et_cffi._lib import lib, text
from et_cffi._log import forward_log


class ExecuTorchError(RuntimeError):
    """Something that the ExecuTorch runtime, or et_cffi in front of it, refuses.

    Attributes:
        code: the runtime's number for the failure (`executorch::runtime::Error`; 0x12 is InvalidArgument),
            or one of et_cffi's own from 0x1000 on (`include/et_cffi.h`); 0 where no C call was made.
        log: the runtime's own log lines of the failed call, one a line, "LEVEL file:line message".
    """

    code: int
    log: str

    def __init__(self, message: str, *, code: int = 0, log: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.log = log

    # KeyError and OSError have a __str__ of their own, made for other arguments.
    __str__ = RuntimeError.__str__


class ProgramNotFoundError(ExecuTorchError, FileNotFoundError):
    """There is no file of that name."""

    def __init__(self, message: str, filename: str) -> None:
        super().__init__(message)
        self.errno = errno.ENOENT
        self.filename = filename


class InvalidProgramError(ExecuTorchError, ValueError):
    """The data is no ExecuTorch program: empty, truncated, damaged, of another kind or version."""


class DataNotFoundError(ExecuTorchError, FileNotFoundError):
    """There is no data file (.ptd) of that name."""

    def __init__(self, message: str, filename: str) -> None:
        super().__init__(message)
        self.errno = errno.ENOENT
        self.filename = filename


class InvalidDataError(ExecuTorchError, ValueError):
    """A data file (.ptd) is none, or truncated or damaged, or names what another one names too."""


class DataMissingError(ExecuTorchError, KeyError):
    """A method's weights are kept outside of its program, and were not given."""


class VerificationError(ExecuTorchError):
    """A method's outputs are not what its bundled test case expects; the message has each output's report."""


class InvalidETDumpError(ExecuTorchError, ValueError):
    """The data is no ETDump: empty, truncated, damaged or of another kind."""


class LibraryError(ExecuTorchError, OSError):
    """A shared library of kernels or of a backend that cannot be loaded."""


class AlreadyRegisteredError(ExecuTorchError):
    """A library whose kernels or backend are registered already; registering twice would end the process."""


class UnknownMethodError(ExecuTorchError, KeyError):
    """The program has no method of that name."""


class OperatorMissingError(ExecuTorchError, NotImplementedError):
    """No kernel is registered for an operator that the method uses."""


class BackendMissingError(ExecuTorchError, NotImplementedError):
    """The method delegates to a backend that is not registered."""


class ArgumentError(ExecuTorchError, ValueError):
    """An argument that cannot be: a number out of range, an option for nobody."""


class InputCountError(ExecuTorchError, ValueError):
    """More or fewer inputs than the method takes."""


class InputKindError(ExecuTorchError, TypeError):
    """Something else than the method takes: no memory where it wants a tensor, a bool where an int."""


class DtypeError(ExecuTorchError, ValueError):
    """A dtype that the method did not ask for, or that has no name here."""


class ShapeError(ExecuTorchError, ValueError):
    """A rank or a shape other than the method's, or more than the runtime can describe."""


class LayoutError(ExecuTorchError, ValueError):
    """Memory in another layout than the method was exported for."""


class DeviceError(ExecuTorchError, BufferError):
    """Memory on a device where the method, or the host, cannot read it."""


class MemoryMissingError(ExecuTorchError, ValueError):
    """A tensor with elements and no memory for them, or not enough."""


class MemoryMovedError(ExecuTorchError, BufferError):
    """An input that the runtime was pointed at is no longer where it was when it was set."""


class MethodStateError(ExecuTorchError):
    """A method asked for something that it cannot do now: inputs incomplete, not executed, closed."""


class ThreadError(MethodStateError):
    """A method used by two threads at once; load one for each thread."""


class RuntimeCheckError(ExecuTorchError):
    """A check inside the runtime failed, where it would have ended the process."""


class AllocationError(ExecuTorchError, MemoryError):
    """Memory that could not be had."""


_BY_STATUS: dict[int, type[ExecuTorchError]] = {
    lib.ETCFFI_Aborted: RuntimeCheckError,
    lib.ETCFFI_OutOfMemory: AllocationError,
    lib.ETCFFI_Error_MemoryAllocationFailed: AllocationError,
    lib.ETCFFI_BadFile: InvalidProgramError,
    lib.ETCFFI_Error_InvalidProgram: InvalidProgramError,
    lib.ETCFFI_UnknownMethod: UnknownMethodError,
    lib.ETCFFI_MissingOperator: OperatorMissingError,
    lib.ETCFFI_Error_OperatorMissing: OperatorMissingError,
    lib.ETCFFI_MissingBackend: BackendMissingError,
    lib.ETCFFI_BadCount: InputCountError,
    lib.ETCFFI_BadKind: InputKindError,
    lib.ETCFFI_BadDtype: DtypeError,
    lib.ETCFFI_BadShape: ShapeError,
    lib.ETCFFI_BadLayout: LayoutError,
    lib.ETCFFI_BadDevice: DeviceError,
    lib.ETCFFI_NoMemory: MemoryMissingError,
    lib.ETCFFI_InputsIncomplete: MethodStateError,
    lib.ETCFFI_NotExecuted: MethodStateError,
    lib.ETCFFI_MethodBroken: MethodStateError,
    lib.ETCFFI_Busy: ThreadError,
    lib.ETCFFI_BadData: InvalidDataError,
    lib.ETCFFI_MissingData: DataMissingError,
    lib.ETCFFI_BadLibrary: LibraryError,
    lib.ETCFFI_AlreadyRegistered: AlreadyRegisteredError,
    lib.ETCFFI_BadArgument: ArgumentError,
}


def failure(status: int, where: str = "") -> ExecuTorchError:
    """The exception for a status that is not 0, from this thread's last call; `where` begins its words."""
    error = _BY_STATUS.get(status, ExecuTorchError)(where + text(lib.etcffi_last_message()))
    error.code = status
    error.log = text(lib.etcffi_last_log())
    forward_log()
    return error


def check(status: int) -> None:
    """Raises what a C call answered, unless it is 0."""
    if status:
        raise failure(status)

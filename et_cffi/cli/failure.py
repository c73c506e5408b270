"""What a command reports instead of a traceback."""

from __future__ import annotations

from et_cffi import errors

# 2 is argparse's own status for bad use. A bad file is the caller's to mend too; 1 is left for a model that
# could not be loaded here, or failed while it ran.
FAILED = 1
BAD_USE = 2

_CALLERS_FAULT = (
    errors.ProgramNotFoundError,
    errors.InvalidProgramError,
    errors.DataNotFoundError,
    errors.InvalidDataError,
    errors.DataMissingError,
    errors.UnknownMethodError,
    errors.InputCountError,
    errors.InputKindError,
    errors.DtypeError,
    errors.ShapeError,
    errors.LayoutError,
    errors.MemoryMissingError,
)


class UsageError(Exception):
    """The command line, or a file that it names, is not what the command can work with."""


def status_of(error: Exception) -> int:
    """The exit status for an error."""
    if isinstance(error, errors.ExecuTorchError):
        return BAD_USE if isinstance(error, _CALLERS_FAULT) else FAILED
    return FAILED if isinstance(error, MemoryError) else BAD_USE


def line_of(error: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(error, OSError) and not isinstance(error, errors.ExecuTorchError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        text = str(error) or type(error).__name__
    return " ".join(text.split())

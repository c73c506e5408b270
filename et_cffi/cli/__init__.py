"""The command line, `python -m et_cffi COMMAND`.

Each command is a module of its own with `SUMMARY`, `DESCRIPTION`, `add_arguments(parser)` and
`execute(arguments)`, which returns the exit status, and is named in `COMMANDS`.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

import et_cffi
from et_cffi.cli import batch, bench, completion, doctor, inspect, libraries, profile, run, verify
from et_cffi.cli.failure import BAD_USE, UsageError, line_of, status_of

PROGRAM = "python -m et_cffi"
COMMANDS: dict[str, ModuleType] = {
    "run": run,
    "inspect": inspect,
    "verify": verify,
    "bench": bench,
    "profile": profile,
    "batch": batch,
    "doctor": doctor,
    "completion": completion,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status: an error is one line on stderr.

    Args:
        arguments: the command line after the program's name; that of the process by default.
    """
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A model's string may hold what the terminal's encoding does not.
            sys.stdout.reconfigure(errors="backslashreplace")
        status = _dispatch(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except (UsageError, et_cffi.ExecuTorchError, ModuleNotFoundError, OSError, MemoryError) as error:
        print(f"error: {line_of(error)}", file=sys.stderr)
        _drop_unwritable()
        return status_of(error)


def console() -> int:
    """The installed command `et_cffi`, which is `python -m et_cffi`."""
    import signal

    # As for any Unix tool: a reader that goes away, or Ctrl-C, ends the process at once and in silence.
    # Python would wait for a model to finish running before it raised KeyboardInterrupt.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored (nohup)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return main()


def _dispatch(arguments: Sequence[str] | None) -> int:
    parser = make_parser(PROGRAM)
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as request:  # --help and --version, once they are printed
        return int(request.code or 0)
    if parsed.command is None:
        parser.print_help()
        return BAD_USE
    status: int = COMMANDS[parsed.command].execute(parsed)
    return status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        import platform

        python = f"{platform.python_implementation()} {platform.python_version()}"
        print(f"et_cffi {et_cffi.__version__}, ExecuTorch {libraries.executorch_version()}, {python}")
        print("libraries: " + ", ".join(libraries.bundled_names()))
        parser.exit()


def make_parser(program: str) -> argparse.ArgumentParser:
    """The parser of the command line, by the name under which it is called."""
    parser = _Parser(
        prog=program,
        description="Run ExecuTorch programs (.pte) without PyTorch.",
        epilog=f"{program} COMMAND --help tells more about a command.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        added = commands.add_parser(
            name,
            help=command.SUMMARY,
            description=command.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_arguments(added)
    for each in (parser, *commands.choices.values()):
        each.add_argument("--version", action=_Version, nargs=0, help="print versions and exit")
    return parser


def _drop_unwritable() -> None:
    """Where what was printed cannot be written, Python's own attempt at exit is not to complain again."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)

"""python -m et_cffi completion: a script by which a shell completes the command et_cffi."""

from __future__ import annotations

import argparse
from typing import Any

from et_cffi.cli.failure import UsageError

SUMMARY = "a script by which a shell completes the command et_cffi"

DESCRIPTION = """\
Prints a script for a shell, which then completes commands, options and file names of the installed
command et_cffi (the same as python -m et_cffi). The package shtab writes it (pip install
et_cffi[cli]); for bash there is a plainer one without.

examples:
  eval "$(et_cffi completion bash)"                        # in ~/.bashrc
  et_cffi completion zsh > ~/.zsh/_et_cffi                 # a directory of $fpath
  et_cffi completion tcsh > ~/.et_cffi.csh                 # sourced in ~/.cshrc

exit status: 0; 2 for bad use.
"""

NAME = "et_cffi"

# Which arguments are files and directories, by their names in the parsers.
_FILES = {"model", "input", "expect", "data", "plot", "trace", "save_report", "compare", "diff", "output"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    parser.add_argument("shell", choices=["bash", "zsh", "tcsh"], help="the shell")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def execute(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    from et_cffi.cli import make_parser

    parser = make_parser(NAME)
    script = _by_shtab(parser, arguments.shell)
    if script is None:
        if arguments.shell != "bash":
            raise UsageError(
                f"completion for {arguments.shell} needs the package shtab; install it with: "
                "pip install et_cffi[cli]"
            )
        script = plain_bash(parser)
    if arguments.json:
        import json

        script = json.dumps({"shell": arguments.shell, "script": script})
    print(script.rstrip("\n"))
    return 0


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _by_shtab(parser: argparse.ArgumentParser, shell: str) -> str | None:
    try:
        import shtab
    except ModuleNotFoundError:
        return None
    for command in _commands(parser).values():
        for action in command._actions:
            if action.dest in _FILES:
                setattr(action, "complete", shtab.FILE)  # noqa: B010  # where shtab looks for it
    script: Any = shtab.complete(parser, shell)
    return str(script)


def plain_bash(parser: argparse.ArgumentParser) -> str:
    """A script for bash: commands, options, and file names for everything else."""
    commands = _commands(parser)
    lines = [
        "_et_cffi() {",
        '  local current="${COMP_WORDS[COMP_CWORD]}" command="" word words=""',
        '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        f'    case "$word" in {"|".join(commands)}) command="$word"; break ;; esac',
        "  done",
        '  case "$command" in',
        f'    "") words="{" ".join([*commands, *_options(parser)])}" ;;',
    ]
    lines += [f'    {name}) words="{" ".join(_words(command))}" ;;' for name, command in commands.items()]
    lines += [
        "  esac",
        '  if [[ -z "$command" || "$command" == completion || "$current" == -* ]]; then',
        '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")',
        "  else",
        '    mapfile -t COMPREPLY < <(compgen -f -- "$current")',
        "  fi",
        "}",
        f"complete -o filenames -F _et_cffi {NAME}",
    ]
    return "\n".join(lines)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [
        option for action in parser._actions for option in action.option_strings if option.startswith("--")
    ]


def _words(command: argparse.ArgumentParser) -> list[str]:
    choices = [str(choice) for action in command._actions for choice in action.choices or ()]
    return choices + _options(command)

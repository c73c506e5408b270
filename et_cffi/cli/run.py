"""python -m et_cffi run: runs a method once and prints its outputs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from et_cffi.cli.describe import choose_method, input_lines, inputs_of
from et_cffi.cli.failure import UsageError
from et_cffi.cli.inputs import HELP, count_inputs, read_inputs
from et_cffi.cli.outputs import check_destination, name_outputs, save, summarize, summary_lines
from et_cffi.cli.source import add_model_arguments, open_source

SUMMARY = "run a method once and print its outputs"

DESCRIPTION = f"""\
Runs a method of a program once and prints each output: name, dtype, shape, smallest and largest
value, mean, the index of the largest in a row of scores, and the first values. Without --input it
prints which inputs the method takes.

{HELP}

examples:
  python -m et_cffi run model.pte                                 # which inputs does it take?
  python -m et_cffi run model.pte --input image.npy               # run forward
  python -m et_cffi run model.pte --input x.npy --input 3 --method scale
  python -m et_cffi run model.pte --input all.npz --output results.npz
  python -m et_cffi run model.pte --data weights.ptd --input x.npy

exit status: 0, 2 for bad use or a bad file, 1 where the model could not be loaded or failed.
An error is one line on stderr.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    add_model_arguments(parser)
    parser.add_argument(
        "--input", metavar="INPUT", action="append", default=[], help="an input, as above; repeat it for more"
    )
    parser.add_argument(
        "--output",
        metavar="PATH",
        type=Path,
        help="write the outputs to a .npz file, or to a directory as .npy files",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def execute(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    if arguments.output is not None:
        check_destination(arguments.output)
    program = open_source(arguments.model, arguments.data).program
    meta = program.metadata(choose_method(program, arguments.method))
    if meta.num_inputs() and not arguments.input:
        wanted = {"method": meta.name(), "inputs": inputs_of(meta)}
        print(json.dumps(wanted) if arguments.json else "\n".join(input_lines(meta)), flush=True)
        raise UsageError(
            f"the method '{meta.name()}' takes {count_inputs(meta.num_inputs())}, and no --input was given"
        )
    inputs = read_inputs(arguments.input, meta)
    with program.load_method(meta.name()) as method:
        outputs = name_outputs(method.execute(inputs), meta)
    notes = save(outputs, arguments.output) if arguments.output is not None else []
    summaries = [summarize(output) for output in outputs]
    if arguments.json:
        print(json.dumps({"method": meta.name(), "outputs": summaries}))
    else:
        print("\n".join([line for summary in summaries for line in summary_lines(summary)] + notes))
    return 0

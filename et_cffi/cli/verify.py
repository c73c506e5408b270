"""python -m et_cffi verify: runs a method and compares its outputs with what they should be."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import et_cffi
from et_cffi.cli.accuracy import Accuracy, measure
from et_cffi.cli.describe import choose_method
from et_cffi.cli.expected import read_expected
from et_cffi.cli.failure import FAILED, UsageError
from et_cffi.cli.inputs import HELP, count_inputs, read_inputs
from et_cffi.cli.libraries import executorch_version
from et_cffi.cli.numbers import tolerance
from et_cffi.cli.outputs import name_outputs
from et_cffi.cli.report import CheckedCase, Report, check_report_path, facts_of, save_report, verdict
from et_cffi.cli.source import Source, add_model_arguments, open_source, sha256
from et_cffi.errors import UnknownMethodError

SUMMARY = "compare a method's outputs with what they should be"

DESCRIPTION = f"""\
Runs a method and compares each output with what it should be: how many elements are out of
tolerance, the largest absolute and relative error and where it is, mean error, signal-to-noise
ratio, cosine similarity, and NaNs and infinities told apart. A bundled program (.bpte) brings its
own inputs and expectations; all of its test cases are run.

An element is within tolerance if |actual - expected| <= atol + rtol * |expected|, or both are NaN
or the same infinity. Everything but floating point has to be equal.

{HELP}

--expect takes the same forms, one for each output in order; a .npz that `run --output` wrote goes by
its names.

examples:
  python -m et_cffi verify model.pte --input x.npy --expect y.npy --rtol 1e-3
  python -m et_cffi verify model.bpte
  python -m et_cffi verify model.bpte --save-report report.html

exit status: 0 if every output is within tolerance; 1 if one is not, or the model could not run;
2 for bad use or a bad file. An error is one line on stderr.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    add_model_arguments(parser)
    parser.add_argument("--input", metavar="INPUT", action="append", default=[], help="an input, as above")
    parser.add_argument(
        "--expect", metavar="EXPECTED", action="append", default=[], help="what an output should be"
    )
    parser.add_argument("--rtol", type=tolerance, default=1e-5, help="relative tolerance (default: 1e-5)")
    parser.add_argument("--atol", type=tolerance, default=1e-8, help="absolute tolerance (default: 1e-8)")
    parser.add_argument(
        "--save-report",
        metavar="FILE",
        type=Path,
        help="write a report with a histogram of the errors, as .html or .md",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def execute(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    if arguments.save_report is not None:
        check_report_path(arguments.save_report)
    source = open_source(arguments.model, arguments.data)
    if source.bundled is not None and not arguments.input and not arguments.expect:
        cases = _bundled_cases(source, arguments)
    else:
        cases = [_given_case(source, arguments)]
    report = Report(_facts(source, arguments), cases)
    if arguments.save_report is not None:
        save_report(report, arguments.save_report)
    if arguments.json:
        print(json.dumps(_as_json(report, arguments)))
    else:
        _print(report)
    return 0 if report.passed else FAILED


def _given_case(source: Source, arguments: argparse.Namespace) -> CheckedCase:
    meta = source.program.metadata(choose_method(source.program, arguments.method))
    if not arguments.expect:
        raise UsageError("nothing to compare with: give --expect for each output, or a bundled program")
    if meta.num_inputs() and not arguments.input:
        raise UsageError(
            f"the method '{meta.name()}' takes {count_inputs(meta.num_inputs())}, and no --input was given"
        )
    inputs = read_inputs(arguments.input, meta)
    with source.program.load_method(meta.name()) as method:
        outputs = name_outputs(method.execute(inputs), meta)
    expected = read_expected(arguments.expect, outputs)
    measured = [
        measure(output.name, output.value, wanted, arguments.rtol, arguments.atol)
        for output, wanted in zip(outputs, expected)
    ]
    return CheckedCase(meta.name(), None, measured)


def _bundled_cases(source: Source, arguments: argparse.Namespace) -> list[CheckedCase]:
    bundled = source.bundled
    assert bundled is not None
    names = sorted(bundled.method_names) if arguments.method is None else [arguments.method]
    cases = []
    for name in names:
        if name not in source.program.method_names:
            raise UnknownMethodError(f"{source.path} has test cases for '{name}', and no such method")
        count = bundled.num_cases(name)
        with source.program.load_method(name) as method:
            for index in range(count):
                case = bundled.case(name, index)
                results = method.execute(case.inputs)
                if len(results) != len(case.expected_outputs):
                    raise UsageError(
                        f"test case {index} for '{name}' expects {len(case.expected_outputs)} outputs, and "
                        f"the method has {len(results)}"
                    )
                measured = [
                    measure(f"output_{i}", got, want, arguments.rtol, arguments.atol)
                    for i, (got, want) in enumerate(zip(results, case.expected_outputs))
                ]
                cases.append(CheckedCase(name, index, measured))
    if not cases:
        raise UsageError(f"{source.path} holds no test cases; give --input and --expect")
    return cases


def _facts(source: Source, arguments: argparse.Namespace) -> dict[str, str]:
    return {
        "file": source.path,
        "sha256": sha256(source.path),
        "tolerance": f"{arguments.atol:g} absolute + {arguments.rtol:g} relative",
        "run by": (
            f"et_cffi {et_cffi.__version__}, ExecuTorch {executorch_version()}, "
            f"{platform.python_implementation()} {platform.python_version()} on {platform.machine()}"
        ),
    }


def _as_json(report: Report, arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "passed": report.passed,
        **report.facts,
        "rtol": arguments.rtol,
        "atol": arguments.atol,
        "cases": [
            {
                "method": case.method,
                "case": case.case,
                "passed": case.passed,
                "outputs": [output.as_json() for output in case.outputs],
            }
            for case in report.cases
        ],
    }


def _print(report: Report) -> None:
    for case in report.cases:
        print(f"{case.title}: {'passed' if case.passed else 'FAILED'}")
        for output in case.outputs:
            print(f"  {output.name}, {output.what}: {verdict(output)}")
            for line in _lines(output):
                print(f"    {line}")


def _lines(output: Accuracy) -> list[str]:
    facts = facts_of(output)
    width = max((len(name) for name, _ in facts), default=0)
    return [f"{name.ljust(width)}  {value}" for name, value in facts]

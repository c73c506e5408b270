"""python -m et_cffi inspect: what a file holds, and whether this runtime can run it."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import mmap
from pathlib import Path
from typing import Any

from et_cffi.cli import libraries, show
from et_cffi.cli.describe import layout_of
from et_cffi.cli.failure import FAILED, line_of
from et_cffi.cli.source import Source, add_model_arguments, open_source
from et_cffi.errors import DataMissingError
from et_cffi.inspection import Delegate, MethodInspection, ProgramInspection, StoredTensor, Value, inspect

SUMMARY = "what a file holds, and whether it can run here"

DESCRIPTION = """\
Prints what a program's file holds: methods with their inputs and outputs, the operators they use
and whether this runtime has them, what is delegated to backends, constants, planned memory, the
names that .ptd files have to bring, and the test cases of a bundled program. No method is loaded,
so it works on a file that cannot run here; with --data those that need .ptd files are, which tells
whether all is there. Of a dynamic tensor the file tells the upper bounds only: "up to (8, 5)".

examples:
  python -m et_cffi inspect model.pte
  python -m et_cffi inspect model.pte --check           # status 1 if it cannot run here
  python -m et_cffi inspect old.pte --diff new.pte      # status 1 if they differ

exit status: 0; 1 with --check where an operator or backend is missing, or a name in the files of
--data, and with --diff where the files differ; 2 for bad use or a bad file. An error is one line on
stderr.
"""

_LONGEST = 5  # how many constants are listed, the largest first


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    add_model_arguments(parser, method=False)
    parser.add_argument("--diff", metavar="OTHER", help="say what is different in another file")
    parser.add_argument("--check", action="store_true", help="fail where something is missing")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def execute(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    source = open_source(arguments.model, arguments.data)
    found = inspect(source.program)
    lacking = _lacking_data(source, found) if arguments.data else None
    failed = arguments.check and (lacking is not None or not found.runnable)
    if arguments.diff is not None:
        other = open_source(arguments.diff)
        changes = differences(_facts(source, found), _facts(other, inspect(other.program)))
        if arguments.json:
            print(json.dumps({"from": source.path, "to": other.path, "changes": changes}))
        else:
            print("\n".join(map(_change_line, changes)) if changes else "no difference")
        return FAILED if changes or failed else 0
    if arguments.json:
        print(json.dumps(_as_json(source, found, lacking)))
    else:
        _print(source, found, _verdict(found, bool(arguments.data), lacking))
    return FAILED if failed else 0


def _lacking_data(source: Source, found: ProgramInspection) -> str | None:
    """What the data files that were given lack, in the words of loading a method; None if nothing."""
    for method in found.methods:
        if method.external_keys and not method.missing_operators and not method.missing_backends:
            try:
                source.program.load_method(method.name).close()
            except DataMissingError as error:
                return line_of(error)
    return None


# ---- for scripts ----------------------------------------------------------------------------------------


def _as_json(source: Source, found: ProgramInspection, lacking: str | None) -> dict[str, Any]:
    known = {
        "file": source.path,
        "nbytes": source.nbytes,
        "runnable": found.runnable and lacking is None,
        "lacking_data": lacking,
    }
    known.update(dataclasses.asdict(found))
    for method, known_method in zip(found.methods, known["methods"]):  # type: ignore[call-overload]
        known_method["missing_operators"] = method.missing_operators
        known_method["missing_backends"] = method.missing_backends
        known_method["external_keys"] = method.external_keys
        for value in known_method["inputs"] + known_method["outputs"]:
            value["layout"] = None if value["dim_order"] is None else layout_of(tuple(value["dim_order"]))
    known["test_cases"] = _test_cases(source)
    known["runtime"] = {
        "executorch": libraries.executorch_version(),
        "libraries": [library._asdict() for library in libraries.libraries()],
    }
    return known


def _test_cases(source: Source) -> list[dict[str, Any]] | None:
    """A bundled program's test cases, in words; None for another."""
    if source.bundled is None:
        return None
    found = []
    for method in sorted(source.bundled.method_names):
        for index in range(source.bundled.num_cases(method)):
            case = source.bundled.case(method, index)
            found.append(
                {
                    "method": method,
                    "case": index,
                    "inputs": [_short(value) for value in case.inputs],
                    "expected_outputs": [_short(value) for value in case.expected_outputs],
                }
            )
    return found


def _short(value: Any) -> str:
    return f"{value.dtype} {value.shape}" if hasattr(value, "shape") else repr(value)


# ---- for a person ---------------------------------------------------------------------------------------


def _print(source: Source, found: ProgramInspection, verdict: str) -> None:
    kind = "program" if source.bundled is None else "bundled program"
    print(f"{source.path}: {kind}, {show.size(source.nbytes)}")
    print(f"  file format {found.identifier}, schema version {found.version}")
    print(
        f"  flatbuffer {show.size(found.flatbuffer_nbytes)}, {show.count(found.segments, 'segment')}, "
        f"constants {show.size(found.constants_nbytes)}, data that delegates find by a key "
        f"{show.size(sum(item.nbytes for item in found.named_data))} ({len(found.named_data)})"
    )
    loaded = [library.name for library in libraries.libraries() if library.loaded is not False]
    print(f"  here: ExecuTorch {libraries.executorch_version()} with {', '.join(loaded)}")
    for method in found.methods:
        _print_method(method)
    cases = _test_cases(source)
    if cases is not None:
        rows = []
        for case in cases:
            inputs, outputs = ", ".join(case["inputs"]), ", ".join(case["expected_outputs"])
            rows.append([case["method"], str(case["case"]), inputs, outputs])
        print()
        show.table(["method", ">case", "inputs", "expected outputs"], rows, "test cases")
    print()
    print(verdict)


def _print_method(method: MethodInspection) -> None:
    print()
    print(f"method {method.name}: {show.count(method.instructions, 'instruction')}")
    rows = [
        [f"{side} {index}", *_value_cells(value)]
        for side, values in (("input", method.inputs), ("output", method.outputs))
        for index, value in enumerate(values)
    ]
    if rows:
        show.table(["", "name", "kind", "shape", "layout", "device", "memory", ">bytes"], rows)
    if method.operators:
        rows = [
            [operator.name, str(operator.calls), "yes" if operator.available else "MISSING"]
            for operator in sorted(method.operators, key=lambda each: (-each.calls, each.name))
        ]
        show.table(["operator", ">calls", "here"], rows)
    if method.delegates:
        rows = [
            [part.backend, str(part.calls), f"{part.nbytes:,}", "yes" if part.available else "MISSING"]
            for part in method.delegates
        ]
        show.table(["delegate", ">calls", ">bytes", "here"], rows)
    if method.planned:
        planned = [f"{item.nbytes:,} on {item.device}" for item in method.planned]
        total = show.size(sum(item.nbytes for item in method.planned))
        print(f"  planned memory: {total}" + (f" ({', '.join(planned)})" if len(planned) > 1 else ""))
    _print_stored("constants", list(method.constants))
    _print_stored("initial state", [each for each in method.stored if each.kind == "initial state"])
    if method.external_keys:
        print(f"  needs from .ptd files: {', '.join(method.external_keys)}")


def _print_stored(title: str, tensors: list[StoredTensor]) -> None:
    if not tensors:
        return
    print(f"  {title}: {len(tensors)}, {show.size(sum(tensor.nbytes for tensor in tensors))}")
    for tensor in sorted(tensors, key=lambda each: -each.nbytes)[:_LONGEST]:
        name = f" {tensor.name}" if tensor.name else ""
        print(f"    {tensor.dtype} {tensor.shape}{name}: {tensor.nbytes:,}")
    if len(tensors) > _LONGEST:
        print(f"    and {len(tensors) - _LONGEST} smaller ones")


def _value_cells(value: Value) -> list[str]:
    if value.shape is None or value.dim_order is None:
        return ["", value.kind, "", "", "", "", ""]
    return [
        value.name or "",
        f"{value.kind} {value.dtype}",
        f"{'up to ' if value.dynamic else ''}{value.shape}",
        layout_of(value.dim_order),
        value.device or "",
        "planned" if value.planned else "caller's",
        f"{value.nbytes:,}",
    ]


def _verdict(found: ProgramInspection, with_data: bool, lacking: str | None) -> str:
    if found.runnable and lacking is not None:
        return f"it cannot run here; {lacking}"
    if found.runnable:
        keys = sorted({key for method in found.methods for key in method.external_keys})
        names = show.count(len(keys), "name")
        needs = f"; the .ptd files have all that it needs, {names}" if with_data else ""
        needs = needs or f"; it needs .ptd files with {names}"
        return f"this runtime has every operator and backend{needs if keys else ''}"
    missing = sorted({name for method in found.methods for name in method.missing_operators})
    missing += sorted({f"backend {name}" for method in found.methods for name in method.missing_backends})
    return f"it cannot run here; missing: {', '.join(missing)}"


# ---- differences ----------------------------------------------------------------------------------------


def _facts(source: Source, found: ProgramInspection) -> dict[str, str]:
    """A file as facts that have a name and a value, so that two files differ in those that do."""
    content = memoryview(_mapped(source.path)) if source.content is None else source.content

    def digest(offset: int, nbytes: int) -> str:
        return hashlib.sha256(content[offset : offset + nbytes]).hexdigest()[:12] if offset else "none"

    facts = {
        "file: bytes": f"{source.nbytes:,}",
        "file: kind": "program" if source.bundled is None else "bundled program",
        "file: schema version": f"{found.identifier}, {found.version}",
    }
    # The key is made of the content: which keys there are tells whether delegates' weights are others.
    for item in found.named_data:
        facts[f"file: named data {item.key}"] = f"{item.nbytes:,} bytes, sha256 " + digest(
            item.offset, item.nbytes
        )
    for method in found.methods:
        facts.update(
            (f"method {method.name}: {name}", value) for name, value in _method_facts(method, digest).items()
        )
    for case in _test_cases(source) or []:
        facts[f"test case {case['method']} {case['case']}"] = (
            f"{', '.join(case['inputs'])} -> {', '.join(case['expected_outputs'])}"
        )
    return facts


def _mapped(path: str) -> mmap.mmap:
    with Path(path).open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _method_facts(method: MethodInspection, digest: Any) -> dict[str, str]:
    facts = {"instructions": str(method.instructions)}
    for side, values in (("input", method.inputs), ("output", method.outputs)):
        for index, value in enumerate(values):
            facts[f"{side} {index}"] = " ".join(cell for cell in _value_cells(value) if cell)
    for operator in method.operators:
        facts[f"operator {operator.name}"] = show.count(operator.calls, "call")
    for number, part in enumerate(method.delegates):
        facts[f"delegate {number}"] = _delegate_fact(part, digest)
    for number, item in enumerate(method.planned):
        facts[f"planned memory {number}"] = f"{item.nbytes:,} bytes on {item.device}"
    for kind in ("constant", "initial state"):
        tensors = method.constants if kind == "constant" else method.stored
        for number, tensor in enumerate(each for each in tensors if each.kind == kind):
            what = digest(tensor.offset, tensor.nbytes)
            facts[f"{kind} {tensor.name or number}"] = f"{tensor.dtype} {tensor.shape}, sha256 {what}"
    for key in method.external_keys:
        facts[f"external {key}"] = "needed from a .ptd"
    return facts


def _delegate_fact(part: Delegate, digest: Any) -> str:
    calls = show.count(part.calls, "call")
    return f"{part.backend}, {calls}, {part.nbytes:,} bytes, sha256 {digest(part.offset, part.nbytes)}"


def differences(old: dict[str, str], new: dict[str, str]) -> list[dict[str, str | None]]:
    """The facts whose values are not the same; None where one side has no such fact."""
    names = [*old, *(name for name in new if name not in old)]
    return [
        {"what": name, "from": old.get(name), "to": new.get(name)}
        for name in names
        if old.get(name) != new.get(name)
    ]


def _change_line(change: dict[str, str | None]) -> str:
    if change["from"] is None:
        return f"+ {change['what']}: {change['to']}"
    if change["to"] is None:
        return f"- {change['what']}: {change['from']}"
    return f"~ {change['what']}: {change['from']} -> {change['to']}"

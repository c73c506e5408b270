"""A method's inputs, in words."""

from __future__ import annotations

from typing import Any

from et_cffi import MethodMeta, Program, ScalarType
from et_cffi.cli.failure import UsageError

LITERALS = {"Int": "3", "Double": "0.5", "Bool": "true", "String": "str:hello", "None": "none"}
_CHANNELS_LAST = ((0, 2, 3, 1), (0, 2, 3, 4, 1))


def choose_method(program: Program, name: str | None) -> str:
    """The method asked for, else `forward`, else the only one there is."""
    names = program.method_names
    if name is not None:
        return name
    if "forward" in names:
        return "forward"
    if len(names) == 1:
        return next(iter(names))
    raise UsageError(
        "the program has no method 'forward'; choose one with --method: "
        + (", ".join(sorted(names)) or "it has none")
    )


def layout_of(dim_order: tuple[int, ...]) -> str:
    """The name of a memory layout."""
    if dim_order == tuple(range(len(dim_order))):
        return "default"
    return "channels-last" if dim_order in _CHANNELS_LAST else f"dim order {dim_order}"


def inputs_of(meta: MethodMeta) -> list[dict[str, Any]]:
    """What there is to know of each input of a method, for JSON."""
    inputs: list[dict[str, Any]] = []
    for index in range(meta.num_inputs()):
        kind = meta.input_kind(index)
        known: dict[str, Any] = {"index": index, "kind": kind}
        if kind == "Tensor":
            info = meta.input_tensor_meta(index)
            known["name"] = info.name
            known["dtype"] = str(ScalarType(info.dtype()))
            known["shape"] = list(info.sizes())
            known["dynamic"] = info.is_dynamic()
            known["layout"] = layout_of(info.dim_order())
        inputs.append(known)
    return inputs


def input_lines(meta: MethodMeta) -> list[str]:
    """The same for a person, a line for each input."""
    return [_line(known) for known in inputs_of(meta)]


def _line(known: dict[str, Any]) -> str:
    kind = known["kind"]
    if kind != "Tensor":
        example = f", such as --input {LITERALS[kind]}" if kind in LITERALS else ""
        return f"input {known['index']}: {kind}{example}"
    name = f" '{known['name']}'" if known["name"] else ""
    shape = f"{'up to ' if known['dynamic'] else ''}{tuple(known['shape'])}"
    dynamic = ", dynamic" if known["dynamic"] else ""
    layout = "" if known["layout"] == "default" else f", {known['layout']}"
    return f"input {known['index']}{name}: Tensor {known['dtype']} {shape}{dynamic}{layout}"

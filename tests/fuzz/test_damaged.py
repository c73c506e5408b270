"""Damaged programs, one damage at a time: each is refused before anything is read or written by it.

Each case changes one number of a test model, found by the schema, and names the words of the refusal. Without
the check, in csrc/validate.cpp or csrc/xnnpack.cpp, its case loads, or fails inside the runtime, or crashes.
"""

from __future__ import annotations

import struct
from typing import Any

import flatbuffer
import model_index
import numpy
import pytest

import et_cffi

PLAN = "Program.execution_plan[]"
VALUE = f"{PLAN}.values[].val"
TENSOR = f"{VALUE}(Tensor)"
INSTRUCTION = f"{PLAN}.chains[].instructions[].instr_args"
ARGS = f"scalar {INSTRUCTION}(KernelCall).args[]"
ABSENT = 0


def damaged(model: str, *edits: tuple[str, int, Any]) -> bytes:
    """A model in which the so-manyth place of a name is set to a number, or to a function of what it was."""
    data = bytearray(model_index.path(model).read_bytes())
    sites = flatbuffer.walk(bytes(data))[0]
    for name, number, new in edits:
        place = [site for site in sites if f"{site.kind} {site.path}" == name][number]
        (old,) = struct.unpack_from("<" + place.format, data, place.offset)
        struct.pack_into("<" + place.format, data, place.offset, new(old) if callable(new) else new)
    return bytes(data)


DAMAGES = {
    # What the program has to have at all.
    "no methods": ("add", "no list of methods", ("field Program.execution_plan?", 0, ABSENT)),
    "no name": ("add", "no name", (f"field {PLAN}.name?", 0, ABSENT)),
    "no values": ("add", "no list of values", (f"field {PLAN}.values?", 0, ABSENT)),
    "no inputs": ("add", "no list of inputs", (f"field {PLAN}.inputs?", 0, ABSENT)),
    "no outputs": ("add", "no list of outputs", (f"field {PLAN}.outputs?", 0, ABSENT)),
    "no delegates": ("add", "no list of delegates", (f"field {PLAN}.delegates?", 0, ABSENT)),
    "no chains": ("add", "no instructions", (f"field {PLAN}.chains?", 0, ABSENT)),
    "no buffers": ("add", "no list of planned buffers", (f"field {PLAN}.non_const_buffer_sizes?", 0, ABSENT)),
    "no operators": (
        "add",
        "instruction 0: there is no such operator",
        (f"field {PLAN}.operators?", 0, ABSENT),
    ),
    "no instructions": (
        "add",
        "no list of instructions",
        (f"field {PLAN}.chains[].instructions?", 0, ABSENT),
    ),
    # Inputs, outputs, planned buffers.
    "input": ("add", "input 1: there is no value 99", (f"scalar {PLAN}.inputs[]", 1, 99)),
    "output": ("add", "output 0: there is no value -1", (f"scalar {PLAN}.outputs[]", 0, -1)),
    "input is constant": ("conv", "input 0: it is a constant", (f"scalar {PLAN}.inputs[]", 0, 1)),
    "buffer size": ("add", "its size is negative", (f"scalar {PLAN}.non_const_buffer_sizes[]", 1, -1)),
    "buffer device": (
        "device_add_planned",
        "no such kind of device",
        (f"scalar {PLAN}.non_const_buffer_device[].device_type", 0, 9),
    ),
    "buffer of device": (
        "device_add_planned",
        "there is no such buffer",
        (f"scalar {PLAN}.non_const_buffer_device[].buffer_idx", 0, 7),
    ),
    # Values.
    "kind": ("add", "of a kind that the runtime does not know", (f"scalar {PLAN}.values[].val_type", 0, 99)),
    "value": ("add", "value 0: it is missing", (f"field {VALUE}?", 0, ABSENT)),
    "list item": ("conv", "an item is no value of the method", (f"scalar {VALUE}(IntList).items[]", 0, 500)),
    "list of tensors": ("conv", "an item is no int", (f"scalar {VALUE}(IntList).items[]", 0, 0)),
    "tensor list item": ("run_fails", "there is no value 77", (f"scalar {VALUE}(TensorList).items[]", 0, 77)),
    "tensor list of ints": (
        "run_fails",
        "an item is no tensor",
        (f"scalar {VALUE}(TensorList).items[]", 0, 2),
    ),
    "dtype": ("add", "its dtype is none", (f"scalar {TENSOR}.scalar_type", 0, 120)),
    "dynamism": ("two_dynamic", "neither static nor dynamic", (f"scalar {TENSOR}.shape_dynamism", 0, 9)),
    "no sizes": ("add", "its shape is missing", (f"field {TENSOR}.sizes?", 0, ABSENT)),
    "no dim order": ("add", "its shape is missing", (f"field {TENSOR}.dim_order?", 0, ABSENT)),
    "negative size": ("add", "its size -5 in dimension 1 is negative", (f"scalar {TENSOR}.sizes[]", 1, -5)),
    "large size": ("add", "beyond the end of its planned buffer", (f"scalar {TENSOR}.sizes[]", 0, 1 << 20)),
    "dim order": ("add", "no order of its dimensions", (f"scalar {TENSOR}.dim_order[]", 0, 7)),
    "dim order twice": ("add", "no order of its dimensions", (f"scalar {TENSOR}.dim_order[]", 1, 0)),
    "rank": ("conv", "not that of its shape", (f"length {TENSOR}.dim_order", 0, lambda old: old - 1)),
    "memory": ("add", "in no planned buffer", (f"scalar {TENSOR}.allocation_info.memory_id", 0, 5)),
    "offset": (
        "add",
        "beyond the end of its planned buffer",
        (f"scalar {TENSOR}.allocation_info.memory_offset_low", 0, 1 << 30),
    ),
    "alignment": (
        "add",
        "not aligned",
        (f"scalar {TENSOR}.allocation_info.memory_offset_low", 0, lambda old: old - 1),
    ),
    "constant": ("conv", "there is no such constant", (f"scalar {TENSOR}.data_buffer_idx", 0, 99)),
    "constant's place": (
        "conv",
        "beyond the end of the constants",
        ("scalar Program.constant_segment.offsets[]", 1, 1 << 40),
    ),
    "constant's size": ("conv", "beyond the end of the constants", (f"scalar {TENSOR}.sizes[]", 0, 400)),
    "device": (
        "device_add",
        "no such kind of device",
        (f"scalar {TENSOR}.extra_tensor_info.device_type", 0, 18),
    ),
    "device of memory": (
        "device_add_planned",
        "its planned buffer is on another device",
        (f"scalar {TENSOR}.extra_tensor_info.device_type", 0, 0),
    ),
    # Instructions.
    "operator": ("conv", "there is no such operator", (f"scalar {INSTRUCTION}(KernelCall).op_index", 0, 77)),
    "operator's name": (
        "add_unplanned",
        "operator 0: it has no name",
        (f"field {PLAN}.operators[].name?", 0, ABSENT),
    ),
    "overload's name": (
        "add_unplanned",
        "operator 0: it has no name",
        (f"field {PLAN}.operators[].overload?", 0, ABSENT),
    ),
    "argument": ("add", "instruction 0: there is no value 999", (ARGS, 0, 999)),
    "no arguments": (
        "add",
        "its arguments are missing",
        (f"field {INSTRUCTION}(KernelCall).args?", 0, ABSENT),
    ),
    "output argument": ("add", "what it writes to is not what it returns", (ARGS, 3, 0)),
    "instruction": ("add", "of a kind that the runtime does not know", (f"scalar {INSTRUCTION}_type", 0, 99)),
    "free": ("add", "not the runtime's to free", (f"scalar {INSTRUCTION}_type", 0, 5)),
    "no memory": (
        "add_unplanned",
        "it uses the tensor 1, which has no memory",
        (f"scalar {PLAN}.inputs[]", 1, 0),
    ),
    "writes to a constant": (
        "two_dynamic_unplanned",
        "writes to the value 1, which is a constant",
        (ARGS, 3, 1),
        (ARGS, 4, 1),
    ),
    "jump": (
        "add",
        "it jumps to no instruction",
        (f"scalar {INSTRUCTION}_type", 0, 4),
        (f"offset {INSTRUCTION}(KernelCall).args", 0, 50),
    ),
    "move": (
        "add",
        "it moves a tensor to where none is",
        (f"scalar {INSTRUCTION}_type", 0, 3),
        (f"offset {INSTRUCTION}(KernelCall).args", 0, 3),
    ),
    # Delegates.
    "backend": ("conv_xnnpack", "it names no backend", (f"field {PLAN}.delegates[].id?", 0, ABSENT)),
    "no data": ("conv_xnnpack", "it has no data", (f"field {PLAN}.delegates[].processed?", 0, ABSENT)),
    "data": (
        "conv_xnnpack",
        "its data is in no segment",
        (f"scalar {PLAN}.delegates[].processed.index", 0, 9),
    ),
    "data's place": (
        "conv_xnnpack",
        "its data is nowhere",
        (f"scalar {PLAN}.delegates[].processed.location", 0, 7),
    ),
    "inline data": (
        "conv_xnnpack",
        "its data is missing",
        (f"scalar {PLAN}.delegates[].processed.location", 0, 0),
    ),
    "option": (
        "device_add",
        "an option of it is missing",
        (f"field {PLAN}.delegates[].compile_specs[].value?", 0, ABSENT),
    ),
    "delegate's argument": (
        "conv_xnnpack",
        "there is no value 99",
        (f"scalar {INSTRUCTION}(DelegateCall).args[]", 0, 99),
    ),
    "weight's name": ("conv_xnnpack", "it has no name", ("field Program.named_data[].key?", 0, ABSENT)),
    "weight's segment": (
        "conv_xnnpack",
        "it is in no segment",
        ("scalar Program.named_data[].segment_index", 0, 99),
    ),
}

# What is seen when the method is loaded: the delegate's own data is read then.
DELEGATES = {
    "arguments": ("conv_xnnpack", "too few arguments", (f"length {INSTRUCTION}(DelegateCall).args", 0, 1)),
    "no tensor": ("conv_xnnpack", "else than a tensor", (f"scalar {PLAN}.values[].val_type", 1, 1)),
    "dtype": ("conv_xnnpack", "called with a smaller dtype", (f"scalar {TENSOR}.scalar_type", 0, 2)),
    "weight": (
        "conv_xnnpack",
        "a weight of another size",
        ("scalar Program.segments[].size", 1, lambda old: old - 4),
    ),
}


@pytest.mark.parametrize("verification", et_cffi.Verification, ids=lambda verification: verification.name)
@pytest.mark.parametrize("damage", DAMAGES)
def test_refused_at_load(damage, verification):
    model, words, *edits = DAMAGES[damage]
    with pytest.raises(et_cffi.errors.InvalidProgramError, match=words) as refusal:
        et_cffi.Runtime.get().load_program(damaged(model, *edits), verification=verification)
    assert str(refusal.value).startswith("the program is damaged: ")


@pytest.mark.parametrize("damage", DELEGATES)
def test_refused_before_the_delegate_is_made(damage):
    model, words, *edits = DELEGATES[damage]
    program = et_cffi.Runtime.get().load_program(damaged(model, *edits))
    with pytest.raises(et_cffi.errors.InvalidProgramError, match=words):
        program.load_method("forward")


def test_weights_that_are_nowhere():
    """A delegate looks for them in a data file that was not given."""
    program = et_cffi.Runtime.get().load_program(
        damaged("conv_xnnpack", ("field Program.named_data?", 0, ABSENT))
    )
    with pytest.raises(et_cffi.ExecuTorchError, match=r"in a data file \(.ptd\), and none was given"):
        program.load_method("forward")


def test_an_output_that_a_run_replaces():
    """The last operator writes its int to where the file promises a tensor."""
    data = damaged("item_output", (ARGS, -1, 5))
    program = et_cffi.Runtime.get().load_program(data)
    inputs = [numpy.ones((2, 2), numpy.float32)]
    with pytest.raises(et_cffi.ExecuTorchError, match="output 0 is no tensor any more"):
        program.load_method("forward").execute(inputs)


@pytest.mark.parametrize(
    ("damage", "ends_well"),
    [
        (b"\xff", False),
        (b"\xe0\x80\x80", False),
        (b"\xc3", False),
        (b"\xc3\xa9", True),
        (b"\xed\xa0\x80", True),
    ],
)
def test_a_text_that_is_none(damage, ends_well):
    """What Python could not decode is refused; anything else is its own text."""
    data = bytearray(model_index.path("attributes").read_bytes())
    (text,) = [
        site
        for site in flatbuffer.walk(bytes(data))[0]
        if (site.kind, site.path) == ("length", f"{VALUE}(String).string_val")
    ]
    (size,) = struct.unpack_from("<I", data, text.offset)
    data[text.offset + 4 + size - len(damage) : text.offset + 4 + size] = damage
    if not ends_well:
        with pytest.raises(et_cffi.errors.InvalidProgramError, match="its text is no text"):
            et_cffi.Runtime.get().load_program(bytes(data))
        return
    (result,) = et_cffi.Runtime.get().load_program(bytes(data)).load_method("get_name").execute([])
    assert result.endswith(damage.decode("utf-8", "surrogatepass"))


def test_two_methods_of_one_name():
    data = bytearray(model_index.path("multi").read_bytes())
    names = [
        site
        for site in flatbuffer.walk(bytes(data))[0]
        if (site.kind, site.path) == ("offset", f"{PLAN}.name")
    ]
    target = names[0].offset + struct.unpack_from("<I", data, names[0].offset)[0]
    struct.pack_into("<I", data, names[1].offset, target - names[1].offset & 0xFFFFFFFF)
    with pytest.raises(et_cffi.errors.InvalidProgramError, match="another method has its name"):
        et_cffi.Runtime.get().load_program(bytes(data))


def test_undamaged_models_load():
    """What the checks refuse is never what an exporter wrote."""
    for name, model in model_index.models().items():
        if model["file"].endswith(".pte"):
            et_cffi.Runtime.get().load_program(model_index.path(name))

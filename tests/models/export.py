"""Exports the models that the tests run. The only file under tests/ that imports torch.

    python tests/models/export.py                    # every model, beside this file
    python tests/models/export.py --only add         # one model (a name, or a prefix with a *)
    python tests/models/export.py --out DIR
    python tests/models/export.py --check            # export nothing, ask the official runtime again

Needs torch 2.13 and executorch 1.5.1 with its dependencies. What it makes is committed, so nobody needs any
of them to run the tests. Exporting again gives the same numbers; the bytes of a program may differ.

What each model leaves
----------------------

`NAME.pte`   the program (`.bpte` for a bundled program; `.ptd` files hold a program's external data)
`NAME.npz`   inputs and the outputs that the *eager* module computed from them, as numpy arrays
`index.json` one file for all models: what is in each program, and what should happen when it runs

Keys in the npz, for value number i of case number k of one method:

    input_{i}   output_{i}                  case 0 of the method "forward"
    case{k}_input_{i}   case{k}_output_{i}  case k > 0 of "forward"
    {method}/...                            the same names after the method's name, for other methods
    ..._after                               what the caller's memory for an input holds afterwards, if the
                                            model writes it and the input is not planned

Arrays hold logical values, C-contiguous, whatever the layout of the method: a channels-last input of
shape (N, C, H, W) is stored as an (N, C, H, W) array. A dtype that numpy lacks (bfloat16, the float8s,
complex32) is stored as the unsigned integer of the same width, and the key `dtype:input_0` then holds its
name. Values that are not tensors are in the npz's one string `json`: {key: {"kind": ..., "value": ...}}.
Cases of one method are to be run in order on one loaded method: some models keep state.

index.json: {"format": 1, "executorch": ..., "torch": ..., "models": {NAME: {

    "file", "npz"     names beside index.json
    "data"            the .ptd files that the program needs
    "why"             the reason this model exists
    "expect"          "runs", "load fails", "run fails" or "aborts" (an ET_CHECK: ends a process that
                      does not replace the abort hook)
    "says"            a regular expression, found in the error or in the runtime's log when it does not run
    "needs"           backends, and operators outside the standard libraries, that have to be registered
    "official"        what executorch.runtime did with it on the day of export
    "rtol", "atol"    numpy.allclose(actual, expected, rtol, atol)
    "methods"         {METHOD: {"cases": how many (0: a constant), "fails": the numbers of those that have
                      no answer (none named, in a model that does not run: all of them),
                      "inputs": [VALUE], "outputs": [VALUE]}}

VALUE describes the program, not one case: {"kind": "tensor", "int", "float", "bool", "str" or "none", ...}.
A value that is not a tensor has "value" (a placeholder, where a kernel computes it). A tensor has "dtype",
"shape" (the largest, if it is dynamic), "dynamic" (its shape may change), "dim_order", "layout" ("default",
"channels_last" or "other"), "planned" (the runtime reserves its memory), "constant" (it is in the file),
"device", and "id": two values of one method with the same id are one value.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import fnmatch
import importlib
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, schema, to_edge_transform_and_lower
from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary
from executorch.exir.passes import MemoryPlanningPass
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

HERE = pathlib.Path(__file__).resolve().parent

# Dtypes that numpy cannot name, and the unsigned integer that holds their bits.
OPAQUE = {
    torch.bfloat16: torch.uint16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
    torch.complex32: torch.uint32,
}


# ------------------------------------------------------------------------------------------------------
# The registry
# ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Method:
    """One method of a program: a module, and the inputs to run it with. Case 0 is the one exported with."""

    module: nn.Module
    cases: Sequence[tuple]
    dynamic: Any = None
    fails: Sequence[int] = ()  # cases that have no answer


@dataclasses.dataclass
class Recipe:
    """Everything that decides what is in one file."""

    methods: dict[str, Method]
    planned: bool = True
    partitioner: list = dataclasses.field(default_factory=list)
    constants: dict[str, Any] | None = None
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    edge: dict[str, Any] = dataclasses.field(default_factory=dict)
    transform: Callable | None = None  # (module, example inputs) -> the module to export: quantization
    expect: str = "runs"
    says: str = ""
    needs: Sequence[str] = ()
    rtol: float = 0.0
    atol: float = 0.0
    finish: Callable | None = None  # (executorch program, out dir, name) -> writes other files, returns names
    suffix: str = ".pte"
    rename: tuple | None = None  # (name, ScalarType): what to call the dtype of every tensor in the file
    edit: Callable | None = None  # (the file, deserialized): makes of it what the exporter would not
    keep: Any = None  # something that has to outlive the export


REGISTRY: dict[str, tuple[str, Callable[[], Recipe]]] = {}


def model(name: str, why: str):
    """Registers the function below it as the recipe for `name`."""

    def register(make: Callable[[], Recipe]):
        assert name not in REGISTRY, name
        REGISTRY[name] = (why, make)
        return make

    return register


def forward(module: nn.Module, *cases: tuple, dynamic: Any = None, **rest) -> Recipe:
    """A program with the one method `forward`."""
    return Recipe({"forward": Method(module, cases, dynamic)}, **rest)


def values(*shape: int, start: int = 0, step: float = 0.25, dtype=torch.float32) -> torch.Tensor:
    """Different values with mixed signs, in no order that a transpose or a flip leaves as it was.

    Value number k is (start + k + 1) * step, negative when k is odd; the ks are scattered over the tensor.
    Two tensors with ranges of `start` that do not meet share no value.
    """
    count = int(np.prod(shape, dtype=np.int64))
    stride = next(s for s in (7, 5, 11, 13, 1) if count % s or s == 1)
    k = (torch.arange(count) * stride + count // 3) % max(count, 1) + start
    sign = 1 - 2 * (k % 2)
    return ((k + 1) * step * sign).to(dtype).reshape(shape)


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(memory_format=torch.channels_last)


class Function(nn.Module):
    """A module out of a plain function."""

    def __init__(self, function: Callable):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


# ------------------------------------------------------------------------------------------------------
# add, in its forms
# ------------------------------------------------------------------------------------------------------


class Add(nn.Module):
    def forward(self, x, y):
        return x + y


def add_inputs(start: int = 0) -> tuple:
    return values(2, 2, start=start), values(2, 2, start=start + 4)


@model("add", "The smallest useful program: float32 x + y, all memory planned.")
def _add():
    return forward(Add(), add_inputs(), add_inputs(100))


# 128 KiB: large enough that what copies of it there are can be told from other copies.
@model("large", "Tensors whose copies can be counted.")
def _large():
    return forward(Add(), (values(64, 512), values(64, 512, start=40000)))


@model("large_unplanned", "The same, unplanned.")
def _large_unplanned():
    return forward(Add(), (values(64, 512), values(64, 512, start=40000)), planned=False)


@model("add_unplanned", "The same, with inputs and outputs in memory that the caller owns.")
def _add_unplanned():
    return forward(Add(), add_inputs(), add_inputs(100), planned=False)


# ------------------------------------------------------------------------------------------------------
# Layouts
# ------------------------------------------------------------------------------------------------------


class Conv(nn.Module):
    """Two convolutions whose weights all differ, so no permutation of the input gives the same output."""

    def __init__(self, channels: int = 3):
        super().__init__()
        self.first = nn.Conv2d(channels, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 2, 3, stride=2)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def images(*shape: int) -> tuple:
    return (values(*shape, step=1 / 64),), (values(*shape, start=1000, step=1 / 256),)


def images_channels_last(*shape: int) -> tuple:
    return tuple((channels_last(x),) for (x,) in images(*shape))


@model("conv", "A convolution network in the default layout, portable kernels.")
def _conv():
    return forward(Conv(), *images(2, 3, 5, 7), **CLOSE)


@model("conv_channels_last", "The same weights, exported for a channels-last input; its output is too.")
def _conv_channels_last():
    return forward(Conv(), *images_channels_last(2, 3, 5, 7), **CLOSE)


@model("conv_channels_last_unplanned", "Channels-last, with memory that the caller owns.")
def _conv_channels_last_unplanned():
    return forward(Conv(), *images_channels_last(2, 3, 5, 7), planned=False, **CLOSE)


@model("conv_xnnpack", "The same network lowered to XNNPACK, default layout.")
def _conv_xnnpack():
    return forward(
        Conv(), *images(2, 3, 5, 7), partitioner=[XnnpackPartitioner()], needs=["XnnpackBackend"], **CLOSE
    )


@model("conv_xnnpack_channels_last", "XNNPACK with a channels-last input.")
def _conv_xnnpack_channels_last():
    return forward(
        Conv(),
        *images_channels_last(2, 3, 5, 7),
        partitioner=[XnnpackPartitioner()],
        needs=["XnnpackBackend"],
        **CLOSE,
    )


@model("conv_xnnpack_unplanned", "XNNPACK reading the caller's memory, if it may.")
def _conv_xnnpack_unplanned():
    return forward(
        Conv(),
        *images(2, 3, 5, 7),
        partitioner=[XnnpackPartitioner()],
        needs=["XnnpackBackend"],
        planned=False,
        **CLOSE,
    )


@model("conv_channels_last_batch1", "A size-one dimension, which says nothing about layout.")
def _conv_channels_last_batch1():
    return forward(Conv(), *images_channels_last(1, 3, 5, 7), **CLOSE)


@model("conv_channels_last_channel1", "Exported as dim order (0, 2, 1, 3), which the kernel refuses.")
def _conv_channels_last_channel1():
    says = "default or channels last dim order"
    return forward(Conv(1), *images_channels_last(1, 1, 5, 7), expect="run fails", says=says, **CLOSE)


class BothLayouts(nn.Module):
    def forward(self, x, y):
        return x + x, y * y  # no numbers: a kernel refuses a rank-0 tensor beside a channels-last one


@model("layouts_mixed", "One input in each layout, so that an error has to name the right one; unplanned.")
def _layouts_mixed():
    inputs = values(2, 3, 4, 5), channels_last(values(2, 3, 4, 5, start=200))
    return forward(BothLayouts(), inputs, planned=False)


@model("layouts_mixed_planned", "The same, planned.")
def _layouts_mixed_planned():
    inputs = values(2, 3, 4, 5), channels_last(values(2, 3, 4, 5, start=200))
    return forward(BothLayouts(), inputs)


def channel1(function: Callable = torch.exp, **rest) -> Recipe:
    return forward(Function(function), (channels_last(values(2, 1, 4, 5, step=1 / 16)),), **CLOSE, **rest)


@model("channel1_channels_last", "One channel, dim order (0, 2, 1, 3): the same bytes as the default layout.")
def _channel1_channels_last():
    return channel1()


@model("channel1_channels_last_unplanned", "The same, unplanned.")
def _channel1_channels_last_unplanned():
    return channel1(planned=False)


@model("channel1_channels_last_xnnpack", "The same dim order given to a delegate.")
def _channel1_channels_last_xnnpack():
    return channel1(lambda x: x + x, partitioner=[XnnpackPartitioner()], needs=["XnnpackBackend"])


# ------------------------------------------------------------------------------------------------------
# Every dtype
# ------------------------------------------------------------------------------------------------------


def bits(dtype: torch.dtype) -> tuple:
    """A 2x3 tensor of any dtype, all different where the dtype has six values."""
    if dtype == torch.bool:
        return (torch.tensor([[True, False, False], [True, True, False]]),)
    count = torch.arange(1, 7).reshape(2, 3)
    if dtype.is_complex:
        return (torch.complex(count * 1.5, count * -0.25).to(dtype),)
    if dtype.is_floating_point:
        return ((count * 1.5 * torch.tensor([[1, -1, 1], [-1, 1, -1]])).to(dtype),)
    if dtype in (torch.uint16, torch.uint32, torch.uint64):
        wide = torch.iinfo(dtype).bits // 8 - 1  # the top byte is set, so a signed reading shows
        return ((count * 37 + (1 << (wide * 8)) * 0x40 * (count % 2)).to(dtype),)
    return ((count * 11 * torch.tensor([[1, -1, 1], [-1, 1, -1]]).abs()).to(dtype),)


def dtype_models() -> None:
    """One model per dtype, planned and unplanned."""
    add, flip, copy_ = (lambda x: x + x), (lambda x: torch.flip(x, [1])), (lambda x: x.clone())
    # The exporter's verifier refuses these dtypes in any operator, though the runtime runs them.
    unverified = {"_check_ir_validity": False}
    recipes: list[tuple[torch.dtype, Callable, dict]] = [
        *((d, add, {}) for d in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)),
        *((d, add, {}) for d in (torch.float16, torch.float32, torch.float64, torch.bfloat16)),
        (torch.bool, flip, {}),
        *((d, add, unverified) for d in (torch.complex32, torch.complex64, torch.complex128)),
        *((d, copy_, unverified) for d in (torch.uint16, torch.uint32)),
        *((d, copy_, unverified) for d in (torch.float8_e4m3fn, torch.float8_e5m2)),
    ]
    for dtype, function, edge in recipes:
        name = str(dtype).removeprefix("torch.")
        what = {add: "x + x", flip: "its columns reversed", copy_: "a copy (no kernel adds it)"}[function]
        for planned in (True, False):

            def make(dtype=dtype, function=function, edge=edge, planned=planned):
                return forward(Function(function), bits(dtype), planned=planned, edge=edge)

            suffix = "" if planned else "_unplanned"
            model(f"dtype_{name}{suffix}", f"{name}: {what}.")(make)

    # These the exporter cannot write at all: a copy of another dtype of the same width, renamed in the file.
    unwritable = {
        "uint64": (torch.int64, schema.ScalarType.UINT64),
        "float8_e4m3fnuz": (torch.uint8, schema.ScalarType.FLOAT8E4M3FNUZ),
        "float8_e5m2fnuz": (torch.uint8, schema.ScalarType.FLOAT8E5M2FNUZ),
        "qint8": (torch.int8, schema.ScalarType.QINT8),
        "quint8": (torch.uint8, schema.ScalarType.QUINT8),
        "qint32": (torch.int32, schema.ScalarType.QINT32),
        "quint4x2": (torch.uint8, schema.ScalarType.QUINT4x2),
        "quint2x4": (torch.uint8, schema.ScalarType.QUINT2x4),
        "bits16": (torch.int16, schema.ScalarType.BITS16),
    }
    for name, (dtype, scalar_type) in unwritable.items():
        for planned in (True, False):

            def make(name=name, dtype=dtype, scalar_type=scalar_type, planned=planned):
                rename = (name, scalar_type)
                return forward(Function(lambda x: x.clone()), bits(dtype), planned=planned, rename=rename)

            suffix = "" if planned else "_unplanned"
            model(f"dtype_{name}{suffix}", f"{name}: a copy; renamed in the file.")(make)


dtype_models()


# ------------------------------------------------------------------------------------------------------
# Dynamic shapes
# ------------------------------------------------------------------------------------------------------


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))

    def forward(self, x):
        return self.layers(x)


def mlp(**rest) -> Recipe:
    cases = [(values(n, 5, start=50 * n, step=1 / 256),) for n in (4, 1, 8, 3)]
    return forward(Mlp(), *cases, dynamic=({0: Dim("batch", min=1, max=8)},), **CLOSE, **rest)


@model("mlp_dynamic", "A batch of 1 to 8; an output smaller than its planned buffer.")
def _mlp_dynamic():
    return mlp()


@model("mlp_dynamic_unplanned", "The same; the caller's memory, and outputs sized to the bound.")
def _mlp_dynamic_unplanned():
    return mlp(planned=False)


@model("mlp_dynamic_xnnpack", "The same through XNNPACK, which reshapes at run time.")
def _mlp_dynamic_xnnpack():
    return mlp(partitioner=[XnnpackPartitioner()], needs=["XnnpackBackend"])


@model("mlp_dynamic_xnnpack_unplanned", "The same in the caller's memory.")
def _mlp_dynamic_xnnpack_unplanned():
    return mlp(partitioner=[XnnpackPartitioner()], needs=["XnnpackBackend"], planned=False)


@model("xnnpack_kinds_unplanned", "A method for each kind of XNNPACK kernel, over sizes no vector divides.")
def _xnnpack_kinds_unplanned():
    torch.manual_seed(0)
    sizes = [(values(n, start=100 * n, step=1 / 64),) for n in (5, 1, 2, 3, 4, 7, 8, 13, 16, 31, 33, 63, 70)]
    dynamic = (({0: Dim("size", min=1, max=70)},),)
    rows = [(values(n, 5, start=50 * n, step=1 / 256),) for n in (3, 1, 2, 4, 5, 6, 7)]
    wide = [(values(n, 37, start=900 * n, step=1 / 4096),) for n in (3, 1, 2, 7)]
    row_dynamic = ({0: Dim("row", min=1, max=7)},)
    image = [(values(1, 3, 7, 5, start=400 * n, step=1 / 64),) for n in (0, 1)]
    return Recipe(
        {
            "unary": Method(Function(torch.sigmoid), sizes, dynamic),
            "clamp": Method(Function(torch.relu), sizes, dynamic),
            "binary": Method(Function(lambda x: x * x), sizes, dynamic),
            "softmax": Method(Function(lambda x: x.softmax(1)), rows, (row_dynamic,)),
            "linear": Method(nn.Linear(5, 3), rows, row_dynamic),
            "wide": Method(nn.Linear(37, 19), wide, row_dynamic),
            "conv": Method(nn.Conv2d(3, 4, 3), image),
            "depthwise": Method(nn.Conv2d(3, 3, 3, groups=3), image),
            "pool": Method(nn.MaxPool2d(2), image),
            "mean": Method(Function(lambda x: x.mean((2, 3), keepdim=True)), image),
        },
        partitioner=[XnnpackPartitioner()],
        needs=["XnnpackBackend"],
        planned=False,
        rtol=1e-4,
        atol=1e-5,
    )


@model("xnnpack_threads", "Large enough for XNNPACK to use the threads of its pool.")
def _xnnpack_threads():
    torch.manual_seed(0)
    cases = [(values(96, 128, start=start, step=1 / 65536),) for start in (0, 20000)]
    xnnpack = {"partitioner": [XnnpackPartitioner()], "needs": ["XnnpackBackend"]}
    return forward(nn.Linear(128, 96), *cases, **xnnpack, **CLOSE)


@model("xnnpack_halves_unplanned", "float16 through XNNPACK, whose kernels read past the end of an input.")
def _xnnpack_halves_unplanned():
    torch.manual_seed(0)
    sizes = [(values(n, start=10 * n, step=1 / 64).half(),) for n in (5, 1, 2, 3, 7, 8, 9, 17)]
    dynamic = (({0: Dim("size", min=1, max=17)},),)
    rows = [(values(n, 37, start=50 * n, step=1 / 4096).half(),) for n in (3, 1, 2)]
    image = [(values(1, 3, 7, 5, step=1 / 64).half(),)]
    return Recipe(
        {
            "unary": Method(Function(torch.square), sizes, dynamic),
            "binary": Method(Function(lambda x: x - x * x), sizes, dynamic),
            "wide": Method(nn.Linear(37, 19).half(), rows, ({0: Dim("row", min=1, max=3)},)),
            "conv": Method(nn.Conv2d(3, 4, 3).half(), image),
            "depthwise": Method(nn.Conv2d(3, 3, 3, groups=3).half(), image),
            "pool": Method(nn.MaxPool2d(2), image),
        },
        partitioner=[XnnpackPartitioner()],
        needs=["XnnpackBackend"],
        planned=False,
        rtol=1e-2,
        atol=1e-2,
    )


def two_dynamic(**rest) -> Recipe:
    cases = [(values(n, m, start=40 * n),) for n, m in ((3, 4), (2, 6), (5, 2), (1, 1))]
    rows, columns = Dim("rows", min=1, max=5), Dim("columns", min=1, max=6)
    return forward(Function(lambda x: x * 2 + 1), *cases, dynamic=(({0: rows, 1: columns},),), **rest)


@model("two_dynamic", "Two dynamic dimensions.")
def _two_dynamic():
    return two_dynamic()


@model("two_dynamic_unplanned", "Two dynamic dimensions, unplanned.")
def _two_dynamic_unplanned():
    return two_dynamic(planned=False)


@model("conv_dynamic_channels_last", "Dynamic batch and channels-last at once.")
def _conv_dynamic_channels_last():
    cases = [(channels_last(values(n, 3, 5, 7, start=200 * n, step=1 / 256)),) for n in (2, 4, 3)]
    return forward(Conv(), *cases, dynamic=({0: Dim("batch", min=2, max=4)},), planned=False, **CLOSE)


@model("dynamic_with_zero", "A dynamic dimension that may be zero.")
def _dynamic_with_zero():
    cases = [(values(n, 3, start=20 * n),) for n in (2, 0, 4)]
    dynamic = (({0: Dim("rows", min=0, max=4)},),)
    return forward(Function(lambda x: x * 2 + 1), *cases, dynamic=dynamic, planned=False)


@model("big_bound", "A bound a thousand times what the cases use, unplanned.")
def _big_bound():
    cases = [(values(n, 3, start=20 * n),) for n in (2, 5)]
    dynamic = (({0: Dim("rows", min=1, max=5000)},),)
    return forward(Function(lambda x: x * 2 + 1), *cases, dynamic=dynamic, planned=False)


@model("masked_select", "The size of the output depends on the numbers in the input.")
def _masked_select():
    cases = [(values(2, 3),), (-values(2, 3).abs(),), (values(2, 3).abs(),)]  # some, none, all
    edge = {"_core_aten_ops_exception_list": [torch.ops.aten.masked_select.default]}
    return forward(Function(lambda x: torch.masked_select(x, x > 0)), *cases, edge=edge)


# ------------------------------------------------------------------------------------------------------
# Quantization
# ------------------------------------------------------------------------------------------------------


class ConvLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.linear = nn.Linear(4 * 5 * 7, 3)

    def forward(self, x):
        return self.linear(torch.relu(self.conv(x)).flatten(1))


def quantize(module: nn.Module, inputs: tuple) -> nn.Module:
    """PT2E quantization, 8 bits, as XNNPACK wants it."""
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(torch.export.export(module, inputs, strict=False).module(), quantizer)
    prepared(*inputs)
    return convert_pt2e(prepared)


def register_quantized_operators() -> None:
    """Fills torch.ops.quantized_decomposed: the operators, embedding_byte, and the out variants."""
    importlib.import_module("torchao.quantization.pt2e.quantize_pt2e")
    importlib.import_module("executorch.exir.passes._quant_patterns_and_replacements")
    importlib.import_module("executorch.kernels.quantized")


QUANTIZE_OPERATORS = [
    "quantized_decomposed::quantize_per_tensor.out",
    "quantized_decomposed::dequantize_per_tensor.out",
]

# One step of an 8-bit output is about 0.01 here: allow one step, for a sum that rounds the other way.
QUANTIZED = {"rtol": 0.0, "atol": 0.03}


@model("quantized_xnnpack", "A quantized convolution and linear layer, lowered to XNNPACK.")
def _quantized_xnnpack():
    return forward(
        ConvLinear(),
        (values(1, 3, 5, 7, step=1 / 64),),
        transform=quantize,
        partitioner=[XnnpackPartitioner()],
        needs=["XnnpackBackend"],
        **QUANTIZED,
    )


@model("quantized_portable", "The same, not delegated: quantize and dequantize kernels around float ones.")
def _quantized_portable():
    register_quantized_operators()
    return forward(
        ConvLinear(),
        (values(1, 3, 5, 7, step=1 / 64),),
        transform=quantize,
        needs=QUANTIZE_OPERATORS,
        **QUANTIZED,
    )


class QuantizeRound(nn.Module):
    def forward(self, x):
        ops = torch.ops.quantized_decomposed
        q = ops.quantize_per_tensor.default(x, 0.5, 3, -128, 127, torch.int8)
        return q, ops.dequantize_per_tensor.default(q, 0.5, 3, -128, 127, torch.int8)


@model("quantized_round", "Two quantized operators and nothing else: an int8 output and a float one.")
def _quantized_round():
    register_quantized_operators()
    return forward(QuantizeRound(), (values(3, 4),), needs=QUANTIZE_OPERATORS)


class EmbeddingByte(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", (torch.arange(40).reshape(8, 5) * 5 - 99).to(torch.int8))
        self.register_buffer("scales", torch.arange(1, 9, dtype=torch.float32) / 16)

    def forward(self, index):
        return torch.ops.quantized_decomposed.embedding_byte.default(
            self.weight, self.scales, None, -128, 127, index
        )


@model("quantized_embedding", "An operator that only the quantized library has: embedding_byte.")
def _quantized_embedding():
    register_quantized_operators()
    needs = ["quantized_decomposed::embedding_byte.out"]
    return forward(
        EmbeddingByte(), (torch.tensor([6, 1, 4]),), needs=needs, edge={"_check_ir_validity": False}
    )


# ------------------------------------------------------------------------------------------------------
# Methods, and values that are one another
# ------------------------------------------------------------------------------------------------------


def multi(**rest) -> Recipe:
    both = Function(lambda x: (x * 2, x - 1))
    return Recipe(
        {
            "forward": Method(Add(), [add_inputs(), add_inputs(100)]),
            "scale": Method(both, [(values(3, 5),), (values(3, 5, start=60),)]),
            "cast": Method(
                Function(lambda x, y: x.to(torch.float32) * y), [(torch.tensor([3, -1, 7]), values(3))]
            ),
        },
        constants={"size": 5},
        **rest,
    )


@model("multi", "Four methods, each with its own signature; one is a constant.")
def _multi():
    return multi()


@model("multi_unplanned", "The same, unplanned.")
def _multi_unplanned():
    return multi(planned=False)


def shared_values(function: Callable) -> tuple[Callable, Callable]:
    """Recipes for one function, planned and unplanned."""

    def make(planned: bool):
        return forward(Function(function), (values(2, 3),), (values(2, 3, start=50),), planned=planned)

    return (lambda: make(True)), (lambda: make(False))


def two_forms(name: str, why: str, function: Callable) -> None:
    planned, unplanned = shared_values(function)
    model(name, why)(planned)
    model(name + "_unplanned", why[:-1] + "; unplanned.")(unplanned)


two_forms("identity_first", "The first output is the input.", lambda x: (x, x * 2 + 1))
two_forms("identity_last", "The last output is the input.", lambda x: (x * 2 + 1, x))
two_forms("identity_only", "The one output is the input; no kernel runs.", lambda x: x)
two_forms("same_twice", "One value returned as two outputs.", lambda x: (lambda y: (y, y))(x + 1))
two_forms(
    "view_of_input", "An output of another shape over the input's bytes.", lambda x: (x.view(3, 2), x * 2)
)
two_forms("view_of_output", "Two outputs that may share bytes.", lambda x: (lambda y: (y, y.view(6)))(x + 1))


@model("swap", "Two inputs come back the other way round; planned.")
def _swap():
    return forward(Function(lambda x, y: (y, x)), add_inputs(), add_inputs(100))


@model("swap_unplanned", "The same, unplanned.")
def _swap_unplanned():
    return forward(Function(lambda x, y: (y, x)), add_inputs(), add_inputs(100), planned=False)


class WritesInput(nn.Module):
    def forward(self, x, y):
        x.add_(1)
        return x * y


@model("writes_input", "The model writes its first input; planned, so the caller's memory stays as it was.")
def _writes_input():
    return forward(WritesInput(), add_inputs(), add_inputs(100))


@model("writes_input_unplanned", "The same, unplanned: the kernel writes to the caller's memory.")
def _writes_input_unplanned():
    return forward(WritesInput(), add_inputs(), add_inputs(100), planned=False)


# ------------------------------------------------------------------------------------------------------
# Values that are not tensors
# ------------------------------------------------------------------------------------------------------


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(values(2, 2, start=30))

    def forward(self, x):
        return x + self.weight, self.weight


@model("planned_output", "The caller's memory in, planned memory out: a result that is lent is no input.")
def _planned_output():
    planning = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=True)
    recipe = forward(Function(lambda x: torch.flip(x, [0])), (values(7),), (values(7, start=20),))
    recipe.config["memory_planning_pass"] = planning
    return recipe


@model("constant_output", "An output that is a constant of the file; it must not be written over.")
def _constant_output():
    return forward(Constant(), (values(2, 2),), (values(2, 2, start=60),))


@model("constant_output_unplanned", "The same, unplanned.")
def _constant_output_unplanned():
    return forward(Constant(), (values(2, 2),), (values(2, 2, start=60),), planned=False)


@model("attributes", "Constant methods of every kind, as language models carry them.")
def _attributes():
    constants = {
        "get_n": 3,
        "get_scale": 0.5,
        "get_flag": True,
        "get_name": "et_cffi",
        "get_list": [2, 3, 5],
        "get_tensor": values(2, 3, start=9),
    }
    return forward(Add(), add_inputs(), constants=constants)


class ScalarOutputs(nn.Module):
    def forward(self, x):
        return x + 1, 3, 2.5, True, None


@model("scalar_outputs", "A tensor and one constant of each kind as outputs.")
def _scalar_outputs():
    return forward(ScalarOutputs(), (values(2, 2),))


@model("size_output", "An integer output that depends on the input's shape.")
def _size_output():
    cases = [(values(n, 3, start=20 * n),) for n in (2, 5, 1)]
    dynamic = (({0: Dim("rows", min=1, max=5)},),)
    return forward(Function(lambda x: (x * 2, x.shape[0])), *cases, dynamic=dynamic)


@model("item_output", "A float output that depends on the input's numbers.")
def _item_output():
    return forward(Function(lambda x: (x * 2, x.sum().item())), (values(2, 2),))


class ScalarInputs(nn.Module):
    def forward(self, x, n: int, scale: float, flag: bool):
        return x * scale + n if flag else x


@model("scalar_inputs", "int, float and bool inputs; export fixes their values.")
def _scalar_inputs():
    return forward(ScalarInputs(), (values(2, 2), 3, 0.5, True))


@model("scalar_inputs_unplanned", "The same, unplanned: the runtime refuses a set half way through it.")
def _scalar_inputs_unplanned():
    recipe = _scalar_inputs()
    recipe.planned = False
    return recipe


@model("none_input", "An input that is None.")
def _none_input():
    return forward(Function(lambda x, mask: x + 1 if mask is None else x), (values(2, 2), None))


@model("int_input", "An int input that may change, which the exporter writes as None: no int is accepted.")
def _int_input():
    cases = [(values(2, 2), n) for n in (3, 5, 1)]
    recipe = forward(
        Function(lambda x, n: x + n),
        *cases,
        dynamic=((None, Dim.DYNAMIC),),
        expect="run fails",
        says="Input 1 was expected to have type None but was Int",
    )
    recipe.methods["forward"].fails = (0, 1, 2)
    return recipe


@model("no_inputs", "A method without inputs.")
def _no_inputs():
    class NoInputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(values(2, 2))

        def forward(self):
            return self.weight * 2

    return forward(NoInputs(), ())


@model("nested", "Inputs and outputs in lists and dicts: the runtime sees them flattened.")
def _nested():
    case = ({"a": values(2, 2), "b": [values(2, 2, start=10), values(2, 2, start=20)]},)
    return forward(Function(lambda d: {"sum": d["a"] + d["b"][0], "rest": [d["b"][1] * 2]}), case)


# ------------------------------------------------------------------------------------------------------
# State
# ------------------------------------------------------------------------------------------------------


class Accumulate(nn.Module):
    def __init__(self, total: torch.Tensor):
        super().__init__()
        self.register_buffer("total", total)

    def forward(self, x):
        self.total.add_(x)
        return self.total * 2


class Total(nn.Module):
    def __init__(self, total: torch.Tensor):
        super().__init__()
        self.register_buffer("total", total)

    def forward(self):
        return self.total + 1


def state(total: torch.Tensor, **rest) -> Recipe:
    return forward(Accumulate(total), *[(values(2, 2, start=s),) for s in (0, 30, 60)], **rest)


def initialised(name: str) -> dict:
    """The options that keep a buffer's first value in the file."""
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    return {"passes": [InitializedMutableBufferPass([name])]}


@model(
    "state", "A buffer that keeps a running sum from zero, which the file relies on the runtime to give it."
)
def _state():
    return state(torch.zeros(2, 2))


@model("state_unplanned", "The same, unplanned inputs and outputs.")
def _state_unplanned():
    return state(torch.zeros(2, 2), planned=False)


@model("state_initial", "A running sum whose first value is in the file.")
def _state_initial():
    return state(values(2, 2, start=90), config=initialised("total"))


@model("state_named", "The same with the buffer's name in the file, so that it is an attribute.")
def _state_named():
    recipe = _state_initial()
    recipe.config["emit_mutable_buffer_names"] = True
    return recipe


@model(
    "state_shared",
    "Two methods made to share a buffer; the stored answers are for methods that each have their own.",
)
def _state_shared():
    total = values(2, 2, start=90)
    recipe = state(total, config=initialised("total"))
    recipe.methods["read"] = Method(Total(total), [()])
    recipe.config["memory_planning_pass"] = MemoryPlanningPass(share_mutable_buffers=True)
    return recipe


# ------------------------------------------------------------------------------------------------------
# Many, and odd shapes
# ------------------------------------------------------------------------------------------------------


@model("twenty", "Twenty inputs and twenty outputs.")
def _twenty():
    case = tuple(values(2, start=10 * i) for i in range(20))
    return forward(Function(lambda *xs: tuple(x * (i + 1) for i, x in enumerate(xs))), case)


@model("twenty_unplanned", "The same, unplanned.")
def _twenty_unplanned():
    case = tuple(values(2, start=10 * i) for i in range(20))
    return forward(Function(lambda *xs: tuple(x * (i + 1) for i, x in enumerate(xs))), case, planned=False)


for _shape in ((), (1, 1, 3), (2, 3, 1, 2, 3), (0, 3), (1, 2, 1, 1, 3, 1, 1, 1, 2, 1, 1, 1, 1, 2, 1, 1)):

    def _ranks(shape=_shape):
        return forward(
            Function(lambda x: x * 2 + 1), (values(*shape),), (values(*shape, start=90),), planned=False
        )

    _what = "empty" if 0 in _shape else "size_one" if len(_shape) == 3 else f"rank{len(_shape)}"
    model(_what, f"A tensor of shape {_shape}, unplanned.")(_ranks)


# ------------------------------------------------------------------------------------------------------
# Programs that must fail, and how
# ------------------------------------------------------------------------------------------------------


def missing_library() -> torch.library.Library:
    """Two operators that no runtime has."""
    library = torch.library.Library("et_cffi_test", "FRAGMENT")
    for name in ("twice", "thrice"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.define(f"{name}.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
        factor = 2 if name == "twice" else 3
        library.impl(name, lambda x, factor=factor: x * factor, "CompositeExplicitAutograd")
        library.impl(
            f"{name}.out", lambda x, *, out, factor=factor: out.copy_(x * factor), "CompositeExplicitAutograd"
        )
    return library


@model("missing_operators", "Two operators that no library has: loading must name them.")
def _missing_operators():
    library = missing_library()
    recipe = forward(
        Function(lambda x: torch.ops.et_cffi_test.thrice(torch.ops.et_cffi_test.twice(x))),
        (values(2, 2),),
        expect="load fails",
        says="et_cffi_test::twice.out",
        needs=["et_cffi_test::twice.out", "et_cffi_test::thrice.out"],
        edge={"_check_ir_validity": False},
    )
    recipe.keep = library
    return recipe


@model("missing_backend", "Delegated to a backend that no library has.")
def _missing_backend():
    from executorch.exir.backend.test.device_util import CpuOnlyPartitioner

    return forward(
        Add(),
        add_inputs(),
        partitioner=[CpuOnlyPartitioner()],
        expect="load fails",
        says="BackendWithCompilerDemo",
        needs=["BackendWithCompilerDemo"],
    )


@model(
    "missing_backend_reached",
    "The same, unplanned: the delegate reads one input, one through a view, and one not at all.",
)
def _missing_backend_reached():
    from executorch.exir.backend.test.device_util import CpuOnlyPartitioner

    return forward(
        Function(lambda x, y, z: (x + y.reshape(2, 2), z * 2)),
        (values(2, 2), values(4, start=4), values(3, start=50)),
        partitioner=[CpuOnlyPartitioner()],
        planned=False,
        expect="load fails",
        says="BackendWithCompilerDemo",
        needs=["BackendWithCompilerDemo"],
    )


@model("aborts", "A maximum over no rows: the kernel answers with an ET_CHECK, not with an error.")
def _aborts():
    cases = [(values(n, 3, start=20 * n),) for n in (2, 0, 4)]
    dynamic = (({0: Dim("rows", min=0, max=4)},),)
    says = "Input tensor must be nonempty"
    recipe = forward(Function(lambda x: x.amax(0)), *cases, dynamic=dynamic, expect="aborts", says=says)
    recipe.methods["forward"].fails = (1,)
    return recipe


@model("aborts_unplanned", "The same, unplanned.")
def _aborts_unplanned():
    recipe = _aborts()
    recipe.planned = False
    return recipe


@model("aborts_quantized", "A quantized embedding's index out of range: an ET_CHECK on the numbers alone.")
def _aborts_quantized():
    recipe = _quantized_embedding()
    method = recipe.methods["forward"]
    method.cases, method.fails = [(torch.tensor(c),) for c in ([6, 1, 4], [6, 9, 4], [0, 7, 2])], (1,)
    recipe.expect, recipe.says = "aborts", "Index out of bounds for weight: index 9"
    return recipe


@model(
    "index_out_of_range", "An index out of range: an error at run time, after which the method runs again."
)
def _index_out_of_range():
    class Embedding(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(values(4, 3))

        def forward(self, index):
            return nn.functional.embedding(index, self.weight)

    cases = [(torch.tensor(c),) for c in ([3, 0, 1], [2, 9, 1], [1, 2, 0])]
    recipe = forward(Embedding(), *cases, expect="run fails", says="9 >= weight")
    recipe.methods["forward"].fails = (1,)
    return recipe


@model("run_fails", "A kernel that has no code for the dtype: an error at run time, not at load.")
def _run_fails():
    return forward(
        Function(lambda x: torch.cat([x, x])),
        bits(torch.uint16),
        expect="run fails",
        says="Unhandled dtype",
        edge={"_check_ir_validity": False},
    )


# ------------------------------------------------------------------------------------------------------
# Other kinds of file
# ------------------------------------------------------------------------------------------------------


def save_bundled(program, out: pathlib.Path, name: str) -> list[str]:
    from executorch.devtools import BundledProgram
    from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
    from executorch.devtools.bundled_program.serialize import serialize_from_bundled_program_to_flatbuffer

    inputs = add_inputs()
    cases = [MethodTestCase(inputs=list(inputs), expected_outputs=[inputs[0] + inputs[1]])]
    bundle = BundledProgram(program, [MethodTestSuite(method_name="forward", test_cases=cases)])
    (out / f"{name}.bpte").write_bytes(serialize_from_bundled_program_to_flatbuffer(bundle))
    return []


@model("add_bundled", "A bundled program, given where a program is expected.")
def _add_bundled():
    return forward(
        Add(), add_inputs(), finish=save_bundled, suffix=".bpte", expect="load fails", says="identifier"
    )


def save_constants(program, out: pathlib.Path, name: str) -> list[str]:
    program.write_tensor_data_to_file(str(out))
    return [f"{name}.ptd"]


@model("linear_external", "Weights in a .ptd file beside the program.")
def _linear_external():
    torch.manual_seed(1)
    return forward(
        nn.Linear(5, 3),
        (values(2, 5),),
        config={"external_constants": lambda node: "linear_external"},
        finish=save_constants,
        **CLOSE,
    )


# ------------------------------------------------------------------------------------------------------
# The README's model
# ------------------------------------------------------------------------------------------------------


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.scores = nn.Linear(12 * 4 * 4, 10)

    def forward(self, image):
        return self.scores(self.features(image).flatten(1))


@model("digits", "Reads a handwritten digit, 8x8, 0 to 1: what the README runs first.")
def _digits():
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(data.target)
    train, held = slice(0, 1400), slice(1400, None)
    network = Digits()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images[train]), labels[train]).backward()
        optimizer.step()
    with torch.no_grad():
        right = (network(images[held]).argmax(1) == labels[held]).float().mean().item()
    assert right > 0.9, f"only {right:.1%} of the held-out digits"
    cases = []
    for digit in (7, 3, 0):  # the first of each that training did not see
        number = 1400 + int((labels[held] == digit).nonzero()[0])
        cases.append((images[number : number + 1].clone(),))
    return forward(
        network,
        *cases,
        partitioner=[XnnpackPartitioner()],
        needs=["XnnpackBackend"],
        finish=lambda program, out, name: np.save(out / "digit.npy", cases[0][0].numpy()) or [],
        **CLOSE,
    )


# ------------------------------------------------------------------------------------------------------
# Memory on a device
# ------------------------------------------------------------------------------------------------------


def device_partitioner(*devices: str):
    """Gives each addition to a delegate for the device whose turn it is."""
    from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
    from executorch.exir.backend.test.device_util import DeviceAwarePartitioner
    from executorch.exir.dialects._ops import ops

    class InTurn(Partitioner):
        def partition(self, program):
            additions = [node for node in program.graph.nodes if node.target is ops.edge.aten.add.Tensor]
            tags = {}
            for number, node in enumerate(additions):
                spec = DeviceAwarePartitioner(devices[number % len(devices)]).delegation_spec
                node.meta["delegation_tag"] = tag = f"addition{number}"
                tags[tag] = DelegationSpec(spec.backend_id, spec.compile_specs)
            return PartitionResult(tagged_exported_program=program, partition_tags=tags)

    return InTurn()


def on_device(
    module: nn.Module, *cases: tuple, resident: bool, planned: bool, devices: Sequence[str] = ("cuda:0",)
) -> Recipe:
    """Additions go to delegates for `devices`; inputs and outputs stay there if `resident`."""
    from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig

    config = {
        "propagate_device_config": PropagateDeviceConfig(
            skip_h2d_for_method_inputs=resident, skip_d2h_for_method_outputs=resident
        ),
        "enable_non_cpu_memory_planning": True,
    }
    return forward(
        module,
        *cases,
        planned=planned,
        partitioner=[device_partitioner(*devices)],
        config=config,
        expect="load fails",
        says="BackendWithCompilerDemo|device",
        needs=["BackendWithCompilerDemo", "a DeviceAllocator for CUDA"],
    )


@model("device_add", "x + y on cuda:0, inputs and outputs resident there, the caller's memory.")
def _device_add():
    return on_device(Add(), add_inputs(), add_inputs(100), resident=True, planned=False)


@model("device_add_planned", "The same with planned memory: the arrangement that the runtime warns of.")
def _device_add_planned():
    return on_device(Add(), add_inputs(), add_inputs(100), resident=True, planned=True)


@model("device_add_planned_output", "The caller's memory in, planned memory out, all on cuda:0.")
def _device_add_planned_output():
    recipe = on_device(Add(), add_inputs(), add_inputs(100), resident=True, planned=False)
    recipe.config["memory_planning_pass"] = MemoryPlanningPass(alloc_graph_input=False)
    return recipe


@model("device_sum_planned", "(x + y) + z planned on cuda:0: the output stands where an input stood.")
def _device_sum_planned():
    cases = [(*add_inputs(start), add_inputs(start + 40)[0]) for start in (0, 100)]
    return on_device(Function(lambda x, y, z: x + y + z), *cases, resident=True, planned=True)


@model("device_add_copied", "x + y on cuda:0, copied there and back by the program.")
def _device_add_copied():
    return on_device(Add(), add_inputs(), add_inputs(100), resident=False, planned=True)


@model("device_add_copied_unplanned", "The same with the caller's host memory.")
def _device_add_copied_unplanned():
    return on_device(Add(), add_inputs(), add_inputs(100), resident=False, planned=False)


class Mixed(nn.Module):
    def forward(self, x, y, z):
        return x + y, z * 3


@model("device_mixed", "x and y stay on the device, z on the host; one output on each.")
def _device_mixed():
    cases = [(*add_inputs(start), values(3, 2, start=start + 50)) for start in (0, 100)]
    return on_device(Mixed(), *cases, resident=True, planned=False)


class ThereAndBack(nn.Module):
    def forward(self, x, y):
        return (x + y) * 3


@model("device_to_host", "x and y stay on the device; the output is made on the host, from a copy.")
def _device_to_host():
    return on_device(ThereAndBack(), add_inputs(), add_inputs(100), resident=True, planned=False)


@model("device_add_index1", "x + y on cuda:1, inputs and outputs resident there, the caller's memory.")
def _device_add_index1():
    return on_device(Add(), add_inputs(), add_inputs(100), resident=True, planned=False, devices=["cuda:1"])


class TwoAdditions(nn.Module):
    def forward(self, x, y, z, w):
        return x + y, z + w


def two_devices(**settings: bool) -> Recipe:
    cases = [(*add_inputs(start), *add_inputs(start + 40)) for start in (0, 100)]
    return on_device(TwoAdditions(), *cases, devices=["cuda:0", "cuda:1"], **settings)


@model("device_two", "One addition on cuda:0 and one on cuda:1, resident, in the caller's memory.")
def _device_two():
    return two_devices(resident=True, planned=False)


@model("device_two_planned", "The same with planned memory on each device, resident.")
def _device_two_planned():
    return two_devices(resident=True, planned=True)


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(values(2, 2, start=70))

    def forward(self, x):
        return x + self.weight


@model("device_weight", "A weight that the file puts on cuda:0, where the runtime does not bring it.")
def _device_weight():
    return on_device(Weighted(), (add_inputs()[0],), (add_inputs(100)[0],), resident=True, planned=False)


class Passing(nn.Module):
    def forward(self, x, y):
        total = x + y
        # The exporter refuses to keep an input on a device that is an output too: `edit` makes it one.
        return total if torch.compiler.is_exporting() else (x, total)


def pass_the_first_input(file: Any) -> None:
    plan = file.program.execution_plan[0]
    plan.outputs.insert(0, plan.inputs[0])


@model("device_identity", "An output that is an input, on cuda:0, beside x + y.")
def _device_identity():
    recipe = on_device(Passing(), add_inputs(), add_inputs(100), resident=True, planned=False)
    recipe.edit = pass_the_first_input
    return recipe


def let_outputs_vary(file: Any) -> None:
    for plan in file.program.execution_plan:
        inputs, outputs = ([plan.values[i].val for i in side] for side in (plan.inputs, plan.outputs))
        if any(value.shape_dynamism for value in inputs):
            for value in outputs:
                value.shape_dynamism = schema.TensorShapeDynamism.DYNAMIC_BOUND


@model("device_kinds", "Methods on cuda:0 for what is not float32, contiguous and of one shape.")
def _device_kinds():
    def method(*cases: tuple, dynamic: Any = None) -> Method:
        return Method(Add(), cases, dynamic)

    rows = {0: Dim("rows", min=0, max=4)}
    recipe = on_device(Add(), add_inputs(), resident=True, planned=False)
    recipe.methods = {
        "channels_last": method([channels_last(values(2, 3, 2, 2, start=24 * i)) for i in range(2)]),
        "int64": method([values(2, 2, start=4 * i, step=3, dtype=torch.int64) for i in range(2)]),
        "dynamic": method(
            *[[values(n, 3, start=20 * i + 7 * n) for i in range(2)] for n in (4, 1, 0, 3)],
            dynamic=((rows, rows)),
        ),
    }
    # The exporter lets a delegate's inputs vary and not what it gives.
    recipe.edit = let_outputs_vary
    return recipe


# ------------------------------------------------------------------------------------------------------
# Export
# ------------------------------------------------------------------------------------------------------


def copied(value: Any) -> Any:
    """A copy with the same layout."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.clone(memory_format=torch.preserve_format)


def to_numpy(tensor: torch.Tensor) -> tuple[np.ndarray, str | None]:
    """The tensor as a contiguous array, and the name of its dtype if numpy has none."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype in OPAQUE:
        return tensor.view(OPAQUE[tensor.dtype]).numpy(), str(tensor.dtype).removeprefix("torch.")
    return tensor.numpy(), None


def was_written(before: Any, after: Any) -> bool:
    return isinstance(before, torch.Tensor) and not np.array_equal(to_numpy(before)[0], to_numpy(after)[0])


def key_of(method: str, case: int, slot: str) -> str:
    return ("" if method == "forward" else method + "/") + (f"case{case}_" if case else "") + slot


class Store:
    """Collects what goes into one npz."""

    def __init__(self, dtype: str | None = None):
        self.dtype = dtype  # what to call every tensor's dtype, whatever it is
        self.arrays: dict[str, np.ndarray] = {}
        self.plain: dict[str, dict] = {}

    def put(self, key: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.arrays[key], dtype = to_numpy(value)
            if self.dtype:
                self.arrays[key] = self.arrays[key].view(f"uint{8 * value.element_size()}")
                dtype = self.dtype if self.dtype != self.arrays[key].dtype.name else None
            if dtype:
                self.arrays["dtype:" + key] = np.array(dtype)
        else:
            kind = {int: "int", float: "float", bool: "bool", str: "str", type(None): "none"}
            self.plain[key] = {"kind": kind[type(value)], "value": value}

    def save(self, path: pathlib.Path) -> None:
        if self.plain:
            self.arrays["json"] = np.array(json.dumps(self.plain))
        np.savez_compressed(path, **self.arrays)


def describe_value(plan: schema.ExecutionPlan, number: int) -> dict:
    """What the program file says of one input or output."""
    value = plan.values[number].val
    if isinstance(value, schema.Tensor):
        extra = value.extra_tensor_info
        device = extra.device_type.name.lower() if extra else "cpu"
        rank = len(value.sizes)
        order = list(value.dim_order)
        layout = "default" if order == list(range(rank)) else "other"
        if order == [0, 2, 3, 1]:
            layout = "channels_last"
        constant = value.data_buffer_idx > 0
        return {
            "kind": "tensor",
            "dtype": value.scalar_type.name.lower(),
            "shape": list(value.sizes),
            "dynamic": value.shape_dynamism != schema.TensorShapeDynamism.STATIC,
            "dim_order": order,
            "layout": layout,
            "planned": value.allocation_info is not None or constant,
            "constant": constant,
            "device": device if device == "cpu" else f"{device}:{extra.device_index}",
            "id": number,
        }
    if isinstance(value, schema.Double):
        return {"kind": "float", "value": float(value.double_val), "id": number}
    if isinstance(value, schema.Null):
        return {"kind": "none", "value": None, "id": number}
    fields = {schema.Int: "int_val", schema.Bool: "bool_val", schema.String: "string_val"}
    plain = getattr(value, fields[type(value)])
    return {"kind": type(plain).__name__, "value": plain, "id": number}


# The names that torch and numpy use, for the names in the file's schema.
DTYPES = {
    "byte": "uint8",
    "char": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "float8e5m2": "float8_e5m2",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e4m3fnuz": "float8_e4m3fnuz",
}


def describe(program: bytes) -> dict:
    """The methods of a program, as index.json has them."""
    methods = {}
    for plan in deserialize_pte_binary(program).program.execution_plan:
        entry = {}
        for side, numbers in (("inputs", plan.inputs), ("outputs", plan.outputs)):
            entry[side] = [describe_value(plan, number) for number in numbers]
            for value in entry[side]:
                if "dtype" in value:
                    value["dtype"] = DTYPES.get(value["dtype"], value["dtype"])
        methods[plan.name] = entry
    return methods


def edited(program: bytes, edit: Callable) -> bytes:
    """The program, with whatever `edit` changes in it."""
    file = deserialize_pte_binary(program)
    edit(file)
    return bytes(serialize_pte_binary(file))


def renamed(program: bytes, scalar_type: schema.ScalarType) -> bytes:
    """The program with every tensor's dtype replaced by another of the same width."""

    def rename(file: Any) -> None:
        for plan in file.program.execution_plan:
            for value in plan.values:
                if isinstance(value.val, schema.Tensor):
                    value.val.scalar_type = scalar_type

    return edited(program, rename)


def export(name: str, out: pathlib.Path) -> dict:
    """Writes one model's files and returns its entry for index.json."""
    why, make = REGISTRY[name]
    torch.manual_seed(0)
    recipe = make()

    exported = {}
    store = Store(recipe.rename[0] if recipe.rename else None)
    for method_name, method in recipe.methods.items():
        module = method.module.eval()
        if recipe.transform:
            module = recipe.transform(module, method.cases[0])
        eager = copy.deepcopy(module)
        exported[method_name] = torch.export.export(
            module, tuple(copied(v) for v in method.cases[0]), dynamic_shapes=method.dynamic, strict=False
        )
        for number, case in enumerate(method.cases):
            flat = [copied(v) for v in pytree.tree_leaves(case)]
            for i, value in enumerate(flat):
                store.put(key_of(method_name, number, f"input_{i}"), value)
            if number in method.fails:
                continue
            given = [copied(v) for v in flat]
            with torch.no_grad():
                result = eager(*pytree.tree_unflatten(given, pytree.tree_structure(case)))
            written = [i for i, (before, after) in enumerate(zip(flat, given)) if was_written(before, after)]
            # The exporter puts an input that the model writes before the model's own outputs.
            for i, value in enumerate([*(given[i] for i in written), *pytree.tree_leaves(result)]):
                store.put(key_of(method_name, number, f"output_{i}"), copied(value))
            for i in () if recipe.planned else written:
                store.put(key_of(method_name, number, f"input_{i}_after"), given[i])

    edge = to_edge_transform_and_lower(
        exported,
        partitioner=recipe.partitioner or None,
        constant_methods=recipe.constants,
        compile_config=EdgeCompileConfig(**recipe.edge) if recipe.edge else None,
    )
    planning = MemoryPlanningPass(alloc_graph_input=recipe.planned, alloc_graph_output=recipe.planned)
    config = {"memory_planning_pass": planning, "extract_delegate_segments": True, **recipe.config}
    program = edge.to_executorch(ExecutorchBackendConfig(**config))

    buffer = renamed(program.buffer, recipe.rename[1]) if recipe.rename else program.buffer
    buffer = edited(buffer, recipe.edit) if recipe.edit else buffer
    data = recipe.finish(program, out, name) if recipe.finish else []
    if recipe.suffix == ".pte":
        (out / f"{name}.pte").write_bytes(buffer)
    store.save(out / f"{name}.npz")

    methods = describe(buffer)
    for method_name, entry in methods.items():
        method = recipe.methods.get(method_name)  # a constant has none
        entry["cases"] = len(method.cases) if method else 0
        entry["fails"] = list(method.fails) if method else []
    return {
        "file": name + recipe.suffix,
        "npz": f"{name}.npz",
        "data": data,
        "why": why,
        "expect": recipe.expect,
        "says": recipe.says,
        "needs": list(recipe.needs),
        "official": "",
        "rtol": recipe.rtol,
        "atol": recipe.atol,
        "methods": methods,
    }


# ------------------------------------------------------------------------------------------------------
# What the official runtime does with each
# ------------------------------------------------------------------------------------------------------


def from_numpy(data: dict, plain: dict, key: str, layout: str = "default") -> Any:
    """The value stored under `key`, as what executorch.runtime takes and returns."""
    if key in plain:
        return plain[key]["value"]
    tensor = torch.from_numpy(np.ascontiguousarray(data[key]).copy()).reshape(data[key].shape)
    if "dtype:" + key in data:
        tensor = tensor.view(getattr(torch, str(data["dtype:" + key])))
    return channels_last(tensor) if layout == "channels_last" else tensor


def differs(actual: Any, expected: Any, rtol: float, atol: float) -> str:
    """Empty if the two agree, else how they do not."""
    if not isinstance(expected, torch.Tensor):
        return "" if type(actual) is type(expected) and actual == expected else f"{actual!r} for {expected!r}"
    if not isinstance(actual, torch.Tensor):
        return f"a {type(actual).__name__} for a tensor"
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"{actual.dtype} {tuple(actual.shape)} for {expected.dtype} {tuple(expected.shape)}"
    a, b = (to_numpy(t)[0] for t in (actual, expected))
    if np.array_equal(a, b):
        return ""
    if expected.dtype in OPAQUE or not np.allclose(a, b, rtol=rtol, atol=atol):
        return "wrong numbers"
    return ""


def run_officially(name: str, entry: dict, out: pathlib.Path) -> str:
    """Runs every case of one model through executorch.runtime; says what happened."""
    from executorch.runtime import Runtime

    dtypes = {v.get("dtype", "") for m in entry["methods"].values() for v in m["inputs"]}
    if any(dtype.startswith(("q", "bits")) for dtype in dtypes):
        return "not asked: torch cannot make such a tensor out of bytes"
    with np.load(out / entry["npz"]) as archive:
        data = {key: archive[key] for key in archive.files}
    plain = json.loads(str(data["json"])) if "json" in data else {}
    try:
        program = Runtime.get().load_program(
            out / entry["file"], data_path=out / entry["data"][0] if entry["data"] else None
        )
        methods = {m: program.load_method(m) for m in entry["methods"]}
    except Exception as error:
        return f"load: {type(error).__name__}: {str(error).splitlines()[0]}"
    faults = []
    for method_name, info in entry["methods"].items():
        for case in range(max(info["cases"], 1)):
            layouts = [value.get("layout", "default") for value in info["inputs"]]
            keys = [key_of(method_name, case, f"input_{i}") for i in range(len(layouts))]
            try:
                inputs = [from_numpy(data, plain, k, layout) for k, layout in zip(keys, layouts)]
            except KeyError as error:
                return f"no stored value for {error}"
            try:
                outputs = methods[method_name].execute(inputs)
            except Exception as error:
                return f"{method_name}, case {case}: {type(error).__name__}: {str(error).splitlines()[0]}"
            if case in info["fails"]:
                faults.append(f"{method_name}, case {case} runs")
                continue
            for i, actual in enumerate(outputs):
                key = key_of(method_name, case, f"output_{i}")
                if key not in data and key not in plain:
                    if info["cases"]:
                        faults.append(f"{key} has no stored value")
                    continue
                fault = differs(actual, from_numpy(data, plain, key), entry["rtol"], entry["atol"])
                if fault:
                    faults.append(f"{key}: {fault}")
            for key in keys:
                if key + "_after" in data:
                    i = keys.index(key)
                    fault = differs(inputs[i], from_numpy(data, plain, key + "_after"), 0, 0)
                    if fault:
                        faults.append(f"{key} afterwards: {fault}")
    return "; ".join(faults) or "runs"


def check(names: Sequence[str], out: pathlib.Path) -> None:
    """Fills in "official" for each model. Each runs in a process of its own: some end theirs."""
    importlib.import_module("executorch.kernels.quantized")
    importlib.import_module("executorch.runtime")

    index = read_index(out)
    for name in names:
        entry = index["models"][name]
        read_end, write_end = os.pipe()
        log_path = out / f".{name}.log"
        pid = os.fork()
        if pid == 0:
            log = os.open(log_path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            try:
                said = run_officially(name, entry, out)
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(write_end, said.encode())
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            said = pipe.read()
        status = os.waitpid(pid, 0)[1]
        # Lines of the runtime's log look like "[file:line] text"; cpuinfo's, about /sys, are not news.
        lines = log_path.read_text(errors="replace").splitlines()
        log_lines = [line for line in lines if "] " in line and "/sys/" not in line]
        log_path.unlink()
        if status:
            said = f"ends the process (signal {os.WTERMSIG(status)})"
        if said != "runs" and log_lines:
            said += " | " + log_lines[-1 if status else 0].split("] ", 1)[-1]
        entry["official"] = said
        agreed = (said == "runs") == (entry["expect"] == "runs")
        print(f"{'  ' if agreed else '! '}{name}: {said}", flush=True)
    write_index(out, index)


# ------------------------------------------------------------------------------------------------------


def read_index(out: pathlib.Path) -> dict:
    path = out / "index.json"
    return json.loads(path.read_text()) if path.exists() else {"format": 1, "models": {}}


def write_index(out: pathlib.Path, index: dict) -> None:
    from executorch import version

    models = {name: index["models"][name] for name in REGISTRY if name in index["models"]}
    index = {
        "format": 1,
        "executorch": version.__version__.split("+")[0],
        "torch": torch.__version__.split("+")[0],
        "models": models,
    }
    text = json.dumps(index, indent=1)
    for innermost in (r"\[[^][{}]*\]", r"\{[^{}]*\}"):  # each list and each VALUE on a line of its own
        text = re.sub(innermost, lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text)
    (out / "index.json").write_text(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    parser.add_argument("--only", action="append", help="a name or a pattern; may be given more than once")
    parser.add_argument("--check", action="store_true", help="only ask the official runtime")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)

    patterns = options.only or ["*"]
    names = [name for name in REGISTRY if any(fnmatch.fnmatch(name, p) for p in patterns)]
    if not names:
        parser.error(f"no such model: {patterns}")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.check:
        check(names, options.out)
        return

    failed = []
    for name in names:
        try:
            entry = export(name, options.out)
        except Exception as error:
            failed.append(name)
            print(f"! {name}: export failed: {type(error).__name__}: {str(error).strip()[:400]}", flush=True)
            if options.only:
                traceback.print_exc()
            continue
        index = read_index(options.out)
        index["models"][name] = entry
        write_index(options.out, index)
    done = [argument for name in names if name not in failed for argument in ("--only", name)]
    if done:
        command = [sys.executable, __file__, "--check", "--out", str(options.out), *done]
        subprocess.run(command, check=True)
    if failed:
        sys.exit(f"not exported: {', '.join(failed)}")


if __name__ == "__main__":
    main()

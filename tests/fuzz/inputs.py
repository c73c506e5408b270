"""Any object as an input: none may end the process, and none may come out as wrong numbers.

    python tests/fuzz/inputs.py --cases 100000 [--seed N] [--first N]
    python tests/fuzz/inputs.py --case N                 # one case, in this process
    python tests/fuzz/inputs.py --torch ...              # with torch in the process, and its tensors

A case is a few calls of one method with what a caller might pass, or pass by mistake, or to deceive: arrays
of any dtype, rank, layout and origin, values that are no arrays, containers of them, and objects that lie
about themselves. Each call runs or raises an ordinary exception. Where it runs and everything it was given
stands for certain values, the outputs must be those that numpy or eager mode computes of them. Each case ends
with a call that is in order and must succeed, and every DLPack capsule must have been given back once.

What a case never does is state an address or an extent of memory that is not there: nothing can see that.
"""

from __future__ import annotations

import argparse
import array
import collections
import ctypes
import datetime
import decimal
import functools
import gc
import importlib
import itertools
import json
import mmap
import pathlib
import random
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import children  # noqa: E402
import dlpack_producer  # noqa: E402
import model_index  # noqa: E402
import numpy  # noqa: E402

import et_cffi  # noqa: E402
from et_cffi import ScalarType  # noqa: E402

# What each model computes, of arrays of any of its shapes; of the others, the committed cases say it.
_COMPUTES: dict[str, Callable[..., list[Any]]] = {
    "add": lambda x, y: [x + y],
    "add_unplanned": lambda x, y: [x + y],
    "big_bound": lambda x: [x * 2 + 1],
    "dynamic_with_zero": lambda x: [x * 2 + 1],
    "identity_only": lambda x: [x],
    "identity_only_unplanned": lambda x: [x],
    "swap_unplanned": lambda x, y: [y, x],
    "two_dynamic": lambda x: [x * 2 + 1],
    "two_dynamic_unplanned": lambda x: [x * 2 + 1],
    "writes_input": lambda x, y: [x + 1, (x + 1) * y],
    "writes_input_unplanned": lambda x, y: [x + 1, (x + 1) * y],
}
_MODELS = [
    *_COMPUTES,
    "channel1_channels_last_unplanned",
    "conv_channels_last_unplanned",
    "conv_xnnpack",
    "conv_xnnpack_unplanned",
    "dtype_bfloat16_unplanned",
    "dtype_bits16_unplanned",
    "dtype_bool_unplanned",
    "dtype_complex64",
    "dtype_int64_unplanned",
    "empty",
    "mlp_dynamic_xnnpack",
    "mlp_dynamic_xnnpack_unplanned",
    "none_input",
    "rank0",
    "rank16",
    "scalar_inputs",
    "view_of_input_unplanned",
]


# What numpy says to a conversion that it does not know.
_CANNOT = (BufferError, NotImplementedError, TypeError, ValueError, et_cffi.ExecuTorchError)


class Stop(BaseException):
    """What an object raises that wants more than an Exception's attention, like KeyboardInterrupt."""


class Given(NamedTuple):
    """An input: what it is, the object, and the value it stands for, or UNKNOWN."""

    what: str
    source: Any
    value: Any


class _Unknown:
    pass


UNKNOWN = _Unknown()
Random = random.Random


# ---- arrays that are what they say ---------------------------------------------------------------------


class _Subclass(numpy.ndarray):
    pass


class _BufferStruct(ctypes.Structure):
    _fields_ = [("a", ctypes.c_float), ("b", ctypes.c_int32)]


def _laid_out(rng: Random, values: Any) -> tuple[str, Any]:
    """The same values in another place or layout of memory."""
    ndim = values.ndim
    choice = rng.randrange(11)
    if choice == 0 or ndim == 0 or values.size == 0:
        return "packed", values.copy()
    if choice == 1:
        return "Fortran order", numpy.asfortranarray(values)
    if choice == 2:
        order = list(range(ndim))
        rng.shuffle(order)
        packed = numpy.ascontiguousarray(values.transpose(order))
        return f"packed as {order}", packed.transpose(numpy.argsort(order))
    if choice == 3:
        steps = [rng.choice((1, 1, 2, 3)) for _ in range(ndim)]
        room = numpy.zeros([size * step for size, step in zip(values.shape, steps)], values.dtype)
        part = room[tuple(slice(None, None, step) for step in steps)]
        part[...] = values
        return f"every {steps}th", part
    if choice == 4:
        flips = tuple(slice(None, None, rng.choice((1, -1))) for _ in range(ndim))
        return f"reversed {flips}", values[flips].copy()[flips]
    if choice == 5:
        offset = rng.randrange(1, 17)
        room = bytearray(values.nbytes + offset)
        part = numpy.frombuffer(room, numpy.uint8)[offset:].view(values.dtype).reshape(values.shape)
        part[...] = values
        return f"{offset} bytes from an even address", part
    if choice == 6:
        room = numpy.zeros([size + 2 for size in values.shape], values.dtype)
        part = room[tuple(slice(1, -1) for _ in range(ndim))]
        part[...] = values
        return "inside of a larger one", part
    if choice == 7:
        first = values.copy()
        first[...] = values.flat[0]
        return "one element, broadcast", numpy.broadcast_to(first.flat[0], values.shape)
    if choice == 8:
        copy = values.copy()
        copy.flags.writeable = False
        return "read-only", copy
    if choice == 9:
        at = rng.randrange(ndim)
        order = [at, *(axis for axis in range(ndim) if axis != at)]
        return f"axis {at} first", numpy.ascontiguousarray(values.transpose(order)).transpose(
            numpy.argsort(order)
        )
    return "overlapping", numpy.lib.stride_tricks.sliding_window_view(
        numpy.concatenate([values.ravel(), values.ravel()]), values.size
    )[0].reshape(values.shape)


def _wrapped(rng: Random, values: Any) -> tuple[str, Any]:
    """The same memory, handed over as something else than a plain array."""
    choice = rng.randrange(18)
    builtin = values.dtype.isbuiltin == 1 and values.dtype.kind in "biuf" and values.dtype.itemsize <= 8
    plain = values.flags.c_contiguous
    named = values.dtype.name in dlpack_producer.CODES and values.dtype.isnative
    if choice == 0 and builtin:
        return "memoryview", memoryview(values)
    if choice == 1:
        return "a subclass", values.view(_Subclass)
    if choice == 2 and values.ndim == 2:
        return "a matrix", numpy.asmatrix(values)
    if choice == 3 and builtin:
        return "a masked array without a mask", numpy.ma.masked_array(values)
    if choice == 4 and plain and values.ndim == 1 and builtin and values.dtype.char in "bBhHiIlLqQfd":
        return "array.array", array.array(values.dtype.char, values.tobytes())
    if choice == 5 and plain and builtin and values.size:
        kind: Any = numpy.ctypeslib.as_ctypes_type(values.dtype)
        for size in reversed(values.shape):
            kind = kind * size
        return "a ctypes array", kind.from_buffer_copy(values.tobytes())
    if choice == 6 and plain and values.nbytes and builtin:
        pages = mmap.mmap(-1, values.nbytes)
        pages.write(values.tobytes())
        return "a view of an mmap", memoryview(pages).cast("B").cast(values.dtype.char, values.shape)
    if choice == 7 and builtin:
        return "through numpy's DLPack", _Lends(values)
    if choice == 8 and named:
        return "through DLPack", dlpack_producer.Producer(values, versioned=rng.random() < 0.5)
    if choice == 9 and named:
        return "through old DLPack", dlpack_producer.OldProducer(values)
    if choice == 10 and named and plain:
        return "through DLPack without strides", dlpack_producer.Producer(values, strides=None)
    if choice == 11 and plain and builtin and values.nbytes:
        return "a bytearray's view", memoryview(bytearray(values.tobytes())).cast(
            values.dtype.char, values.shape
        )
    if choice == 12 and values.dtype.itemsize > 1:
        return "with a swapped dtype and back", values.byteswap().view(values.dtype.newbyteorder()).astype(
            values.dtype
        )
    if choice == 13 and builtin:
        return "a memoryview of a memoryview", memoryview(memoryview(values))
    if choice == 14 and named:
        flags = rng.choice((0, dlpack_producer.READ_ONLY, dlpack_producer.IS_COPIED, 3, 1 << 40))
        return f"through DLPack with the flags {flags}", dlpack_producer.Producer(
            values, versioned=True, flags=flags
        )
    if choice == 15 and values.dtype == numpy.float32 and values.shape == (2, 3):
        return "a result", _identity().execute([values])[0]
    if "torch" in sys.modules and values.dtype.isnative:
        return _as_torch(rng, values)
    return "", values


def _as_torch(rng: Random, values: Any) -> tuple[str, Any]:
    torch = sys.modules["torch"]
    lent = torch.from_numpy(values)
    choice = rng.randrange(6)
    if choice == 0:
        return "a torch tensor over an array", lent
    if choice == 1 and lent.dim() == 4:
        return "a torch tensor, channels last", lent.clone(memory_format=torch.channels_last)
    if choice == 2:
        return "a torch parameter", torch.nn.Parameter(lent.clone(), requires_grad=lent.is_floating_point())
    if choice == 3:
        inside = torch.zeros([size + 1 for size in lent.shape], dtype=lent.dtype)
        part = inside[tuple(slice(1, None) for _ in lent.shape)]
        part.copy_(lent)
        return "a torch tensor inside of a larger one", part
    if choice == 4:
        return "a torch tensor of a subclass", lent.clone().as_subclass(_torch_subclass())
    return "a torch tensor", lent.clone()


@functools.lru_cache(maxsize=1)
def _torch_subclass() -> Any:
    return type("Sub", (sys.modules["torch"].Tensor,), {"shape": (1,), "data_ptr": lambda self: 1})


def _strange_torch(rng: Random) -> Any:
    """A torch tensor whose memory is not what it shows, or that has none."""
    torch = sys.modules["torch"]
    plain = torch.ones(2, 2)
    makes = (
        lambda: plain.to_sparse(),
        lambda: torch.empty(2, 2, device="meta"),
        lambda: torch.quantize_per_tensor(plain, 0.5, 0, torch.quint8),
        lambda: torch.complex(plain, plain).conj(),
        lambda: torch.complex(plain, plain).conj().imag,
        lambda: torch.zeros(()).expand(2, 2),
        lambda: torch.empty(0, 1 << 40),
        lambda: plain.to(torch.bfloat16),
        lambda: plain.numpy(),
        lambda: torch.nested.nested_tensor([plain, plain]),
        lambda: torch._subclasses.FakeTensorMode().from_tensor(plain),
        lambda: _emptied(plain),
        lambda: plain.as_strided((2, 2), (1, 1)),
        lambda: torch.Size((2, 2)),
        lambda: torch.float32,
        lambda: plain.untyped_storage(),
    )
    return rng.choice(makes)()


def _emptied(tensor: Any) -> Any:
    tensor.untyped_storage().resize_(0)
    return tensor


class _Lends:
    """A producer that forwards to an array's own methods."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.values.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


@functools.lru_cache(maxsize=1)
def _identity() -> Any:
    return _program("identity_only").load_method("forward")


def _as_given(rng: Random, what: str, values: Any) -> Given:
    try:
        layout, laid_out = _laid_out(rng, values)
    except (MemoryError, *_CANNOT):  # of many dimensions, each a little larger; or of Python objects
        layout, laid_out = "packed", values.copy()
    # A broadcast array stands for other values than those it was made of; the copy is from before the call.
    stands_for = numpy.array(laid_out, subok=False)
    try:
        wrapping, source = _wrapped(rng, laid_out)
    except _CANNOT:
        wrapping, source = "", laid_out
    return Given(f"{what}, {layout} {wrapping}", source, stands_for)


def _honest(rng: Random, values: Any, info: Any) -> Given:
    """The values that the method is to get, in some form."""
    if info is not None and rng.random() < 0.4:
        # As the method wants them, so that a good part of the cases runs.
        source = et_cffi.lay_out(values, info)
        if rng.random() < 0.5:
            return Given("laid out", source, values.copy())
        try:
            wrapping, wrapped = _wrapped(rng, source)
        except _CANNOT:
            wrapping, wrapped = "", source
        return Given(f"laid out, {wrapping}", wrapped, values.copy())
    return _as_given(rng, "the values", values)


# ---- arrays of another kind ----------------------------------------------------------------------------

_DTYPES = [*"?bBhHiIlLqQefdgFDG", "S4", "U3", "V5", "O", "M8[s]", "m8[ns]", ">f4", ">i8", ">u2", "f4,i4"]


def _other_array(rng: Random, values: Any, info: Any) -> Given:
    choice = rng.randrange(9)
    if choice == 0:
        dtype = numpy.dtype(rng.choice(_DTYPES))
        try:
            return _as_given(rng, f"as {dtype}", values.astype(dtype))
        except (TypeError, ValueError):
            return _as_given(rng, f"zeros of {dtype}", numpy.zeros(values.shape, dtype))
    if choice == 1:
        shape = [rng.randrange(4) for _ in range(rng.randrange(21))]
        while numpy.prod(shape, dtype=object) > 1 << 16:
            shape[rng.randrange(len(shape))] = 1
        return _as_given(rng, f"of shape {shape}", numpy.ones(shape, values.dtype))
    if choice == 2:
        shape = list(values.shape)
        shape.insert(rng.randrange(len(shape) + 1), 1)
        return _as_given(rng, f"of shape {shape}", values.reshape(shape))
    if choice == 3 and values.ndim:
        shape = list(values.shape)
        shape[rng.randrange(len(shape))] += rng.choice((-1, 1, 3))
        return _as_given(rng, f"of shape {shape}", numpy.ones([max(0, size) for size in shape], values.dtype))
    if choice == 4:
        # No elements, and sizes without end.
        shape = [
            rng.choice((0, 1, 3, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40))
            for _ in range(max(1, values.ndim))
        ]
        shape[rng.randrange(len(shape))] = 0
        try:
            empty = numpy.empty(shape, values.dtype)
        except (ValueError, MemoryError):
            empty = numpy.empty(0, values.dtype)
        return Given(f"nothing of shape {shape}", empty, empty.copy())
    if choice == 5 and values.ndim and values.size:
        return _as_given(rng, "its bytes", values.copy().view(numpy.uint8))
    if choice == 6 and values.ndim > 1:
        return _as_given(rng, "transposed", values.transpose())
    if choice == 7:
        inner = numpy.lib.stride_tricks.as_strided(
            numpy.zeros(4096, values.dtype)[2048:],
            [rng.randrange(1, 4) for _ in range(values.ndim)],
            [rng.randrange(-9, 10) * rng.choice((1, values.itemsize)) for _ in range(values.ndim)],
        )
        return Given("strides without sense", inner, numpy.array(inner))
    raw = values.tobytes()
    return Given("bytes", rng.choice((bytes, bytearray, memoryview))(raw), UNKNOWN)


# ---- what is no array ----------------------------------------------------------------------------------


def _self_referential() -> list[Any]:
    made: list[Any] = [1.0]
    made.append(made)
    return made


def _released() -> memoryview:
    view = memoryview(bytearray(16))
    view.release()
    return view


def _strange_view(rng: Random) -> Any:
    view = memoryview(bytearray(48))
    return rng.choice(
        (
            lambda: view.cast(rng.choice("bBchHiIlLqQnNfd?P")),
            lambda: view[rng.randrange(48) :: rng.choice((1, 2, -1, -3))],
            lambda: view.cast("f", (3, 4))[rng.randrange(3) :],
            lambda: view.cast("B", (1,) * 40 + (48,)),
            lambda: memoryview(array.array("u", "abc")),
            lambda: memoryview(numpy.zeros((2, 2), "f4,i4")),
            lambda: memoryview(numpy.zeros((2, 2), numpy.longdouble)),
            lambda: memoryview((ctypes.c_float * 4)()),
            lambda: memoryview(_BufferStruct()),
            lambda: memoryview(b""),
        )
    )()


def _strange(rng: Random) -> Given:
    if "torch" in sys.modules and rng.random() < 0.3:
        tensor = _strange_torch(rng)
        return Given(f"{type(tensor).__name__} of torch", tensor, UNKNOWN)
    made: Any = rng.choice(
        (
            lambda: None,
            lambda: rng.choice(
                (True, False, 0, 1, 3, -1, 2**63, -(2**70), 0.5, float("nan"), float("inf"), 1j)
            ),
            lambda: rng.choice(("", "x", "\0", "\ud800", "é" * 1000, b"", b"x" * 16, bytearray(b"abcd"))),
            lambda: rng.choice(
                (numpy.float32(1), numpy.int64(3), numpy.bool_(True), numpy.str_("x"), numpy.void(b"a"))
            ),
            lambda: numpy.array(rng.choice((1.0, None, "x", {}))),
            lambda: {"x": 1},
            lambda: {1.0, 2.0},
            lambda: (n for n in range(4)),
            lambda: range(4),
            lambda: [[1.0, 2.0], [3.0, 4.0]],
            lambda: [1.0, [2.0]],
            lambda: _self_referential(),
            lambda: numpy.array([[1, None], [2, 3]], object),
            lambda: numpy.zeros((2, 2), "f4,i4"),
            lambda: numpy.zeros((2, 2), "V4"),
            lambda: numpy.zeros((2, 2), "M8[D]"),
            lambda: numpy.zeros((2, 2), "f4,i4")["f0"],
            lambda: numpy.ma.masked_array(numpy.ones((2, 2), "f4"), [[True, False], [False, True]]),
            lambda: numpy.rec.array(numpy.zeros(4, "f4,i4")),
            lambda: numpy.array([], "U0"),
            lambda: array.array("f", [1, 2, 3, 4]),
            lambda: (ctypes.c_float * 4)(),
            lambda: (ctypes.c_int16 * 2 * 2)(),
            lambda: ctypes.c_double(1),
            lambda: _BufferStruct(),
            lambda: (_BufferStruct * 2)(),
            lambda: ctypes.pointer(ctypes.c_float(1)),
            lambda: mmap.mmap(-1, 16),
            lambda: _released(),
            lambda: _strange_view(rng),
            lambda: object(),
            lambda: int,
            lambda: numpy,
            lambda: len,
            lambda: slice(1),
            lambda: Ellipsis,
            lambda: NotImplemented,
            lambda: decimal.Decimal(1),
            lambda: datetime.datetime(2020, 1, 1),
            lambda: ValueError("x"),
            lambda: collections.deque([1.0, 2.0]),
            lambda: types.SimpleNamespace(shape=(2, 2), dtype="float32"),
        )
    )()
    return Given(f"{type(made).__name__} {_shown(made)}", made, UNKNOWN)


def _shown(value: Any) -> str:
    if isinstance(value, (bool, int, float, str, bytes)):
        return ascii(value)[:60]
    return ""


# ---- objects that lie ----------------------------------------------------------------------------------


def _lying_dlpack(rng: Random, values: Any) -> Any:
    """A capsule whose tensor is not what it says, over memory large enough for whatever is accepted."""
    room = numpy.zeros(1 << 16, numpy.uint8)
    ndim = values.ndim
    stated: dict[str, Any] = {
        "shape": list(values.shape),
        "strides": [stride // values.itemsize for stride in numpy.ascontiguousarray(values).strides],
        "data": room.ctypes.data,
    }
    for _ in range(rng.choice((1, 1, 2, 3))):
        key, choices = rng.choice(
            (
                ("ndim", (-1, -(1 << 31), (1 << 31) - 1, 17, 64, 1000, 0, max(0, ndim - 1))),
                ("shape", (None, [-1] * ndim, [1 << 62] * ndim, [0] * ndim, [1 << 40, 0][:ndim], [1] * ndim)),
                ("shape", ([(1 << 63) - 1] * ndim, [2] * ndim, [1 << 31] * ndim, [3] * ndim)),
                (
                    "strides",
                    (None, [0] * ndim, [-1] * ndim, [(1 << 63) - 1] * ndim, [-(1 << 63)] * ndim, [7] * ndim),
                ),
                ("code", (0, 1, 2, 3, 4, 5, 6, 7, 10, 17, 255)),
                ("bits", (0, 1, 4, 8, 16, 32, 64, 128, 255)),
                ("lanes", (0, 1, 2, 4, 65535)),
                ("byte_offset", (0, 1, 4, 64, 1024)),
                ("device", ((0, 0), (2, 0), (3, 0), (8, 0), (13, 5), (-1, -1), ((1 << 31) - 1, 0), (1, 7))),
                (
                    "claimed_device",
                    ((2, 0), (0, 0), (8, 0), (1, 99), (-5, 0), (1 << 70, 0), (), "x", None, 1.5),
                ),
                ("version", ((2, 0), (0, 0), (1, 99), ((1 << 32) - 1, 0))),
                ("flags", (0, 1, 2, 3, (1 << 64) - 1)),
                ("has_deleter", (False,)),
                ("data", (0,)),
            )
        )
        stated[key] = rng.choice(choices)
    shape, ndim = stated["shape"], stated.get("ndim", ndim)
    if 0 <= ndim <= 16 and shape is not None:
        # Not further than the lists of sizes and strides go, which would be an extent that is not there.
        stated["ndim"] = min(ndim, len(shape), len(stated["strides"] or shape))
    name = values.dtype.name if values.dtype.name in dlpack_producer.CODES else "float32"
    producer = dlpack_producer.Producer(values, name, versioned=rng.random() < 0.5, **stated)
    producer.room = room
    return producer


class _Hook:
    """An object with any methods, each of which does what it was given."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()


def _object_with(**methods: Any) -> Any:
    return type("Hook", (_Hook,), methods)()


def _raises(kind: Any) -> Any:
    def call(*arguments: Any, **keywords: Any) -> Any:
        raise kind("no")

    return call


def _gives(*answers: Any) -> Any:
    rest = list(answers)

    def call(*arguments: Any, **keywords: Any) -> Any:
        return rest.pop(0) if len(rest) > 1 else rest[0]

    return call


def _used_capsule(values: Any) -> Any:
    capsule = values.__dlpack__()
    numpy.from_dlpack(_object_with(__dlpack__=_gives(capsule), __dlpack_device__=_gives((1, 0))))
    return capsule


def _lying(rng: Random, values: Any) -> Given:
    dlpackable = (
        values if values.dtype.kind in "biuf" and values.dtype.isbuiltin == 1 else numpy.ones((2, 2), "f4")
    )
    dlpackable = numpy.array(dlpackable)
    host = _gives((1, 0))
    interface = dict(dlpackable.__array_interface__)
    other = numpy.zeros(1, "u1").__array_interface__

    class LyingArray(numpy.ndarray):
        """Reports anything; its buffer is what counts."""

        dtype = property(lambda self: rng.choice((numpy.dtype("f8"), numpy.dtype("V2"), None)))
        shape = property(lambda self: (1 << 40,))
        itemsize = 3
        nbytes = -1

        def view(self, *arguments: Any) -> Any:
            return numpy.zeros(3, "u2")

    class Tensor:
        """Not torch's."""

        __module__ = "torch"
        is_cuda, requires_grad, layout, is_quantized = False, False, "torch.strided", False
        shape, dtype, device = (2, 2), "torch.float32", "cpu"

        def data_ptr(self) -> int:
            return 0

        def stride(self) -> tuple[int, ...]:
            return (2, 1)

    class ChangesItself(numpy.ndarray):
        @property
        def __array_interface__(self) -> Any:
            return rng.choice((interface, other))

    what, make = rng.choice(
        (
            ("a capsule", lambda: _lying_dlpack(rng, values)),
            ("a capsule", lambda: _lying_dlpack(rng, values)),
            ("a capsule", lambda: _lying_dlpack(rng, values)),
            ("a capsule itself", lambda: dlpackable.__dlpack__()),
            ("None for a capsule", lambda: _object_with(__dlpack__=_gives(None), __dlpack_device__=host)),
            ("an int for a capsule", lambda: _object_with(__dlpack__=_gives(1), __dlpack_device__=host)),
            (
                "an array for a capsule",
                lambda: _object_with(__dlpack__=_gives(dlpackable), __dlpack_device__=host),
            ),
            (
                "a used capsule",
                lambda: _object_with(__dlpack__=_gives(_used_capsule(dlpackable)), __dlpack_device__=host),
            ),
            (
                "another module's capsule",
                lambda: _object_with(__dlpack__=_gives(datetime.datetime_CAPI), __dlpack_device__=host),
            ),
            (
                "__dlpack__ raises",
                lambda: _object_with(__dlpack__=_raises(ValueError), __dlpack_device__=host),
            ),
            ("__dlpack__ stops", lambda: _object_with(__dlpack__=_raises(Stop), __dlpack_device__=host)),
            (
                "__dlpack__ has no type",
                lambda: _object_with(__dlpack__=_raises(TypeError), __dlpack_device__=host),
            ),
            ("__dlpack__ is no function", lambda: _object_with(__dlpack__=3, __dlpack_device__=host)),
            (
                "__dlpack_device__ lies",
                lambda: _object_with(
                    __dlpack__=lambda self, **keywords: dlpackable.__dlpack__(**keywords),
                    __dlpack_device__=_gives(
                        rng.choice(
                            ((2, 0), (8, 0), (1 << 80, 0), None, (), "ab", (None, None), 1, [1.0, 2], {0: 1})
                        )
                    ),
                ),
            ),
            (
                "__dlpack_device__ raises",
                lambda: _object_with(
                    __dlpack__=lambda self, **keywords: dlpackable.__dlpack__(**keywords),
                    __dlpack_device__=_raises(rng.choice((RuntimeError, Stop, AttributeError))),
                ),
            ),
            (
                "another capsule each time",
                lambda: _object_with(
                    __dlpack__=lambda self, **keywords: rng.choice((dlpackable, values[:0])).__dlpack__(
                        **keywords
                    ),
                    __dlpack_device__=host,
                ),
            ),
            ("torch.Tensor by name", lambda: Tensor()),
            ("an array that lies", lambda: numpy.ones((2, 2), "f4").view(LyingArray)),
            ("__array_interface__ changes", lambda: numpy.array(dlpackable).view(ChangesItself)),
            ("__array_interface__ only", lambda: _object_with(__array_interface__=interface)),
            ("__array__ only", lambda: _object_with(__array__=lambda self, *rest, **keywords: dlpackable)),
            (
                "__buffer__ of another",
                lambda: _object_with(__buffer__=lambda self, flags: memoryview(dlpackable)),
            ),
            (
                "__buffer__ of bytes",
                lambda: _object_with(__buffer__=lambda self, flags: memoryview(bytes(16))),
            ),
            ("__buffer__ of nothing", lambda: _object_with(__buffer__=_gives(None))),
            ("__buffer__ raises", lambda: _object_with(__buffer__=_raises(rng.choice((ValueError, Stop))))),
            (
                "__buffer__ changes",
                lambda: _object_with(
                    __buffer__=lambda self, flags: memoryview(numpy.ones(rng.randrange(9), "f4"))
                ),
            ),
            ("__float__", lambda: _object_with(__float__=_gives(1.0), __index__=_gives(1))),
            ("__class__ lies", lambda: _object_with(__class__=rng.choice((numpy.ndarray, list, int, str)))),
            ("every attribute", lambda: _object_with(__getattr__=lambda self, name: lambda *a, **k: self)),
            (
                "attributes raise",
                lambda: _object_with(__getattribute__=_raises(rng.choice((KeyError, Stop)))),
            ),
        )
    )
    try:
        return Given(what, make(), UNKNOWN)
    except (BufferError, TypeError, ValueError, AttributeError):
        return Given("None", None, UNKNOWN)


# ---- all inputs of a call ------------------------------------------------------------------------------


class _LyingList(list):
    """Says that it is of another length than it is, or gives other items than it has."""

    says: Any = None
    gives: Any = None

    def __len__(self) -> int:
        return super().__len__() if self.says is None else self.says

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__() if self.gives is None else iter(self.gives)


class _LyingSequence(Sequence):
    def __init__(self, items: list[Any], length: int, ends: bool, fails: Any) -> None:
        self.items, self.length, self.ends, self.fails = items, length, ends, fails

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        if self.fails is not None:
            raise self.fails("no")
        if index < len(self.items):
            return self.items[index]
        if self.ends:
            raise IndexError(index)
        return 1.0


class _Shrinks(dlpack_producer.Producer):
    """Empties the list that it is in while it is asked for its memory."""

    list_it_is_in: Any = None

    def __dlpack__(self, **keywords: Any) -> Any:
        if self.list_it_is_in is not None:
            self.list_it_is_in.clear()
        return super().__dlpack__(**keywords)


def _container(rng: Random, sources: list[Any]) -> tuple[str, Any, bool]:
    """The sources in a container, and whether they are still what the method gets."""
    choice = rng.randrange(30)
    if choice < 12:
        return "list", list(sources), True
    if choice < 17:
        return "tuple", tuple(sources), True
    if choice == 17 and len(sources) == 1:
        return "alone", sources[0], not issubclass(type(sources[0]), Sequence)
    if choice == 18:
        return "deque", collections.deque(sources), True
    if choice == 19:
        return "one more", [*sources, rng.choice((None, 1.0, sources))], False
    if choice == 20:
        return "one less", sources[:-1], not sources
    if choice == 21:
        return "generator", (source for source in sources), False
    if choice == 22:
        return "dict", dict(enumerate(sources)), False
    if choice == 23:
        made = _LyingList(sources)
        made.says = rng.choice((None, 0, 1, 2, 3, 1 << 40))
        made.gives = rng.choice((None, [], sources[:-1], sources * 2, itertools.repeat(sources[0])))
        return "a list that lies", made, False
    if choice == 24:
        length, ends = rng.choice((0, 1, 2, 3, 1 << 40)), rng.random() < 0.7
        return "a sequence that lies", _LyingSequence(sources, length, ends, None), False
    if choice == 25:
        return "a sequence that fails", _LyingSequence(sources, 2, True, rng.choice((KeyError, Stop))), False
    if choice == 26:
        wrapped = [_Shrinks(source.copy()) if type(source) is numpy.ndarray else source for source in sources]
        for source in wrapped:
            if type(source) is _Shrinks:
                source.list_it_is_in = wrapped
        return "a list that is emptied meanwhile", wrapped, False
    if choice == 27:
        objects = numpy.empty(len(sources), object)
        for index, source in enumerate(sources):
            objects[index] = [source]
        return "in an array of objects", objects, False
    if choice == 28:
        return "nested", [sources], False
    return "not there", rng.choice((None, (), [], "", 1, {}, object())), False


# ---- a case --------------------------------------------------------------------------------------------


@functools.cache
def _program(name: str) -> Any:
    return et_cffi.Runtime.get().load_program(model_index.path(name))


def _wanted(rng: Random, case: Any) -> tuple[list[Any], list[Any] | None]:
    """Inputs that are in order, as the values that they stand for, and the outputs (None: not known)."""
    inputs = [_typed(value, info) for value, info in zip(case.inputs, case.inputs_info)]
    computes = _COMPUTES.get(case.model)
    if computes is not None and rng.random() < 0.7:
        inputs = [
            (numpy.frombuffer(rng.randbytes(value.size), numpy.int8) / 16)
            .astype(value.dtype)
            .reshape(value.shape)
            for value in inputs
        ]
        return inputs, computes(*inputs)
    return inputs, case.outputs


def _typed(value: Any, info: Any) -> Any:
    """An array of the dtype that the method takes, where there is one to be had."""
    if info["kind"] != "tensor" or value.dtype.name == info["dtype"]:
        return value
    try:
        import ml_dtypes
    except ImportError:  # PyPy
        return value
    named = getattr(ml_dtypes, info["dtype"], None)
    return value if named is None else value.view(named)


def _expected(case: Any, given: list[Given], wanted: list[Any], outputs: Any, meta: Any) -> Any:
    """The outputs that a call with these inputs must give; UNKNOWN where they are not known; or None where
    the call must be refused, since an input stands for something else than the method takes."""
    values = []
    for index, (one, value) in enumerate(zip(given, wanted)):
        if one.value is UNKNOWN:
            return UNKNOWN
        if meta.input_kind(index) != "Tensor":
            if type(one.value) is not type(value) or one.value != value:
                return None
            continue
        info, array_given = meta.input_tensor_meta(index), one.value
        if str(ScalarType(info.dtype())) != array_given.dtype.name:
            # Raw bytes stand for a dtype that no format code names.
            raw = array_given.dtype == numpy.uint8 and array_given.ndim == 1
            return UNKNOWN if raw else None
        fits = len(array_given.shape) == len(info.sizes()) and all(
            size <= most if info.is_dynamic() else size == most
            for size, most in zip(array_given.shape, info.sizes())
        )
        if not fits:
            return None
        values.append(array_given)
    same = all(
        numpy.array_equal(one.value, value) if isinstance(value, numpy.ndarray) else True
        for one, value in zip(given, wanted)
    )
    if same:
        return outputs
    computes = _COMPUTES.get(case.model)
    return UNKNOWN if computes is None else computes(*values)


def _read(result: Any) -> Any:
    if isinstance(result, et_cffi.TensorBuffer):
        return numpy.asarray(result)
    torch = sys.modules["torch"]
    return (result.view(torch.int16) if result.dtype is torch.bfloat16 else result).numpy()


def _compare(results: list[Any], outputs: list[Any], case: Any, told: str) -> None:
    assert len(results) == len(outputs), told
    for result, output in zip(results, outputs):
        if isinstance(output, numpy.ndarray):
            read = _read(result)
            assert read.shape == output.shape, f"{told}: shape {read.shape}, not {output.shape}"
            if read.dtype.name != output.dtype.name:
                output = output.view(read.dtype)
            if read.dtype.kind in "biu":
                equal = numpy.array_equal(read, output)
            else:
                equal = numpy.allclose(
                    read, output, rtol=max(case.rtol, 1e-5), atol=max(case.atol, 1e-6), equal_nan=True
                )
            assert equal, f"{told}: {read.ravel()[:8]}, not {output.ravel()[:8]}"
        else:
            assert result == output, f"{told}: {result!r}, not {output!r}"


def _call(rng: Random, method: Any, argument: Any, sources: list[Any]) -> list[Any] | None:
    """The outputs, or None where something was refused."""
    try:
        if rng.random() < 0.6:
            return list(method.execute(argument, clone_outputs=rng.random() < 0.7))
        method.set_inputs(argument)
    except (Exception, Stop):
        _refused(method)
        return None
    del argument
    # Between the two calls the sources belong to their caller, who may do with them what he likes.
    mischief = rng.randrange(4)
    if mischief == 0:
        sources.clear()
        gc.collect()
    elif mischief == 1:
        for source in sources:
            if type(source) is numpy.ndarray and source.flags.owndata and source.flags.writeable:
                try:
                    source.resize(rng.choice((1, source.size * 4 + 1)), refcheck=False)
                except ValueError:
                    continue
                _attempt(method.execute)
                _attempt(method.get_outputs)
                return None
    elif mischief == 2:
        for source in sources:
            if type(source) is memoryview:
                _attempt(source.release)
            elif _is_torch(source):
                # Under the tensor, its storage goes.
                _attempt(lambda source=source: source.untyped_storage().resize_(0))
                _attempt(method.execute)
                _attempt(method.get_outputs)
                return None
    return _attempt(method.execute)


def _is_torch(source: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(source) is torch.Tensor


def _refused(method: Any) -> None:
    """After a refusal, or a run that failed, nothing is read; and nothing runs, or else fails again."""
    for call in (method.execute, method.get_outputs):
        try:
            call()
        except et_cffi.ExecuTorchError:
            continue
        raise AssertionError("a refused set of inputs was used")


def _attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (Exception, Stop):
        return None


def one_case(rng: Random) -> collections.Counter[str]:
    """Does one case; how many calls it made, how many ran, and of how many the numbers were known.

    Raises:
        AssertionError: something came out wrong.
    """
    counts: collections.Counter[str] = collections.Counter()
    name = rng.choice(_MODELS)
    case = rng.choice(model_index.cases(name, "forward"))
    method = _program(name).load_method("forward")
    meta = method.metadata
    leases = len(dlpack_producer._LEASES)
    told = [name]
    for _ in range(rng.choice((1, 1, 2, 3))):
        wanted, outputs = _wanted(rng, case)
        all_honest = rng.random() < 0.4
        given = []
        for index, value in enumerate(wanted):
            info = meta.input_tensor_meta(index) if meta.input_kind(index) == "Tensor" else None
            given.append(_choose(rng, value, info, all_honest))
        container, argument, same = _container(rng, [one.source for one in given])
        told.append(f"{container}: " + ", ".join(one.what for one in given))
        expected = _expected(case, given, wanted, outputs, meta) if same else UNKNOWN
        sources = [one.source for one in given]
        given = [one._replace(source=None) for one in given]
        results = _call(rng, method, argument, sources)
        del argument
        counts["calls"] += 1
        counts["ran"] += results is not None
        if results is not None and expected is not UNKNOWN:
            assert expected is not None, f"{told}: it ran"
            _compare(results, expected, case, str(told))
            counts["compared"] += 1
        results = None
        sources.clear()
    # Whatever there was, the method goes on.
    wanted, outputs = _wanted(rng, case)
    plain = [
        _plain(value, meta.input_tensor_meta(index)) if isinstance(value, numpy.ndarray) else value
        for index, value in enumerate(wanted)
    ]
    _compare(method.execute(plain), outputs, case, f"{told}, and then a plain call")
    method.close()
    del method
    for lease in list(dlpack_producer._LEASES.values())[leases:]:
        if lease.calls != 1:
            gc.collect()
        released = lease.calls == (1 if lease.managed.deleter else 0)
        assert released, f"{told}: a capsule was given back {lease.calls} times"
    return counts


def _plain(value: Any, info: Any) -> Any:
    if value.dtype.name != str(ScalarType(info.dtype())):
        return value.tobytes()  # of a dtype that has no format code
    return et_cffi.lay_out(value, info)


def _choose(rng: Random, value: Any, info: Any, honest: bool) -> Given:
    choice = rng.random()
    if info is None:
        if honest or choice < 0.5:
            return Given(f"{value!r}", value, value)
        return _strange(rng) if choice < 0.9 else _lying(rng, numpy.ones((2, 2), "f4"))
    if honest or choice < 0.25:
        return _honest(rng, value, info)
    if choice < 0.5:
        return _other_array(rng, value, info)
    return _strange(rng) if choice < 0.7 else _lying(rng, value)


# ---- the command ---------------------------------------------------------------------------------------


def work(seed: int, case: int) -> tuple[str, str]:
    warnings.simplefilter("ignore")
    return "passed", json.dumps(one_case(Random(f"{seed}:{case}")))


def run(seed: int, cases: range, *, seconds: float = 20.0) -> Iterator[children.Result]:
    et_cffi.Runtime.get()  # before the fork, so that it is paid once
    for name in _MODELS:
        _program(name)
    return children.run(functools.partial(work, seed), cases, seconds=seconds, address_space=4 << 30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seconds", type=float, default=20.0, help="the most that a case may take")
    parser.add_argument("--torch", action="store_true", help="import torch first")
    parser.add_argument("--case", type=int, help="do this one here, and nothing else")
    options = parser.parse_args()
    if options.torch:
        importlib.import_module("torch")
    if options.case is not None:
        print(work(options.seed, options.case))
        return 0
    counts: collections.Counter[str] = collections.Counter()
    calls: collections.Counter[str] = collections.Counter()
    for result in run(
        options.seed, range(options.first, options.first + options.cases), seconds=options.seconds
    ):
        counts[result.outcome] += 1
        if result.outcome == "passed":
            calls.update(json.loads(result.detail))
        else:
            print(f"case {result.case}: {result.outcome}: {result.detail}", flush=True)
    print(f"seed {options.seed}, {options.cases} cases: {dict(counts)}, {dict(calls)}")
    return 0 if counts["passed"] == options.cases else 1


if __name__ == "__main__":
    sys.exit(main())

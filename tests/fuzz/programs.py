"""Damaged programs: none may end the process.

    python tests/fuzz/programs.py --cases 20000 [--seed N] [--first N]
    python tests/fuzz/programs.py --file FILE...        # load and run these files, in this process

A case is one of the test models with something changed: bits, bytes and words anywhere, the header, the
length of the file, pieces of another model, the numbers and offsets of the flatbuffer (by its schema), or the
delegate's blob. It is loaded in both verifications (from memory, and from a file); every method is described,
loaded and run on the model's own inputs and on zeros; every output and attribute is read. The outcomes:

    runs        every method of it ran
    refused     something was refused, with an ExecuTorchError
    exception   something else was raised: a mistake in et_cffi
    crash       the process ended
    hang        it took too long

Files that crash or hang are kept under build/fuzz/. The exit status is 1 if any case crashed or raised
something else.
"""

from __future__ import annotations

import argparse
import collections
import functools
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, Callable

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import children  # noqa: E402
import flatbuffer  # noqa: E402
import model_index  # noqa: E402
import numpy  # noqa: E402

import et_cffi  # noqa: E402
from et_cffi import ScalarType, Verification  # noqa: E402

KEPT = HERE.parents[1] / "build" / "fuzz"
OF: pathlib.Path | None = None

# Inputs beyond this are not made: what a case tests is the program, not how much memory there is.
_MOST_INPUT_BYTES = 1 << 26


# ---- making a case ------------------------------------------------------------------------------------

_EDGES = (0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 64, 127, 128, 255, 256, 1 << 15, (1 << 31) - 1, 1 << 31)


def _near(rng: random.Random, value: int, format: str) -> int:
    """Another number of this format: an edge, close by, one bit off, or any."""
    bits = 8 * struct.calcsize(format)
    choice = rng.randrange(6)
    if choice == 0:
        other = rng.choice(_EDGES) * rng.choice((1, -1))
    elif choice == 1:
        other = value + rng.choice((-4, -3, -2, -1, 1, 2, 3, 4))
    elif choice == 2:
        other = value ^ 1 << rng.randrange(bits)
    elif choice == 3:
        other = rng.choice(((1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1))
    elif choice == 4:
        other = rng.randrange(24)
    else:
        other = rng.getrandbits(bits)
    return other & ((1 << bits) - 1)


def _edit_site(
    rng: random.Random, data: bytearray, site: flatbuffer.Site, targets: dict[str, list[int]]
) -> str:
    unsigned = {1: "B", 2: "H", 4: "I", 8: "Q"}[struct.calcsize(site.format)]
    (old,) = struct.unpack_from("<" + unsigned, data, site.offset)
    if site.kind == "offset" and rng.random() < 0.6:
        # To another object of its type: what a verifier of offsets cannot object to.
        new = (rng.choice(targets[site.type]) - site.offset) & 0xFFFFFFFF
    elif site.kind == "vtable" and rng.random() < 0.6:
        new = (site.offset - rng.choice(targets[site.type])) & 0xFFFFFFFF
    elif site.kind == "field" and rng.random() < 0.6:
        new = 0  # the field is absent
    elif site.kind == "length" and rng.random() < 0.5:
        new = rng.choice((0, max(0, old - 1), old + 1))
    else:
        new = _near(rng, old, unsigned)
    struct.pack_into("<" + unsigned, data, site.offset, new)
    return f"{site.kind} {site.path} at {site.offset}: {old} -> {new}"


@functools.cache
def _sites(name: str) -> tuple[dict[str, list[flatbuffer.Site]], dict[str, list[int]]]:
    sites, targets = flatbuffer.walk(_bytes(name))
    by_path = collections.defaultdict(list)
    for site in sites:
        by_path[f"{site.kind} {site.path}"].append(site)
    return dict(by_path), targets


def _edit_fields(rng: random.Random, data: bytearray, name: str) -> str:
    by_path, targets = _sites(name)
    paths = list(by_path)
    if rng.random() < 0.7:
        # The numbers, rather than how they are stored.
        paths = [path for path in paths if path.startswith("scalar")]
    return "; ".join(
        _edit_site(rng, data, rng.choice(by_path[rng.choice(paths)]), targets)
        for _ in range(rng.choice((1, 1, 1, 2, 3)))
    )


def _edit_instruction(rng: random.Random, data: bytearray, name: str) -> str:
    """A kernel call becomes a move, a jump or a free, whose operands are where its own were."""
    by_path, _ = _sites(name)
    chain = "Program.execution_plan[].chains[].instructions[].instr_args"
    calls = by_path.get(f"offset {chain}(KernelCall).args", [])
    kinds = by_path.get(f"scalar {chain}_type", [])
    if not calls or len(calls) != len(kinds):  # one of them is a call of a delegate
        return _edit_fields(rng, data, name)
    at = rng.randrange(len(calls))
    kind, operand = rng.choice((3, 4, 5)), rng.randrange(8)
    data[kinds[at].offset] = kind
    struct.pack_into("<I", data, calls[at].offset, operand)
    indices = by_path.get(f"scalar {chain}(KernelCall).op_index", [])
    if indices and rng.random() < 0.7:
        struct.pack_into("<I", data, rng.choice(indices).offset, rng.randrange(8))
    return f"instruction {at} becomes one of type {kind}, with the operand {operand}"


def _edit_bits(rng: random.Random, data: bytearray, name: str) -> str:
    places = [rng.randrange(8 * len(data)) for _ in range(rng.choice((1, 1, 2, 4, 8, 32)))]
    for place in places:
        data[place // 8] ^= 1 << place % 8
    return f"bits {places}"


def _edit_bytes(rng: random.Random, data: bytearray, name: str) -> str:
    at, size = rng.randrange(len(data)), rng.choice((1, 2, 4, 8, 16, 64))
    new = rng.choice((rng.randbytes(size), bytes(size), b"\xff" * size))
    new = new[: len(data) - at]
    data[at : at + len(new)] = new
    return f"bytes {new.hex()} at {at}"


def _edit_words(rng: random.Random, data: bytearray, name: str) -> str:
    edits = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) // 4) * 4
        (old,) = struct.unpack_from("<I", data, at)
        new = _near(rng, old, "I")
        struct.pack_into("<I", data, at, new)
        edits.append(f"word at {at}: {old} -> {new}")
    return "; ".join(edits)


def _edit_header(rng: random.Random, data: bytearray, name: str) -> str:
    at, size = rng.choice(((0, 4), (4, 4), (8, 4), (12, 4), (16, 8), (24, 8), (32, 8)))
    format = {4: "I", 8: "Q"}[size]
    (old,) = struct.unpack_from("<" + format, data, at)
    new = _near(rng, old, format)
    struct.pack_into("<" + format, data, at, new)
    return f"header field at {at}: {old} -> {new}"


def _edit_length(rng: random.Random, data: bytearray, name: str) -> str:
    size = rng.choice(
        (rng.randrange(len(data)), rng.randrange(min(len(data), 80)), len(data) - rng.randrange(64))
    )
    del data[size:]
    if rng.random() < 0.3 and size >= 40:
        # The header says that this is all.
        struct.pack_into("<Q", data, 16, size)
        struct.pack_into("<QQ", data, 24, 0, 0)
        return f"cut to {size} bytes, and the header with it"
    return f"cut to {size} bytes"


def _edit_splice(rng: random.Random, data: bytearray, name: str) -> str:
    other_name = rng.choice(_names())
    other = _bytes(other_name)
    choice = rng.randrange(3)
    if choice == 0:
        size = rng.choice((8, 16, 40, 64))
        data[:size] = other[:size]
        return f"the first {size} bytes of {other_name}"
    at = rng.randrange(min(len(data), len(other)))
    if choice == 1:
        data[at:] = other[at:]
        return f"{other_name} from {at} on"
    size, place = rng.choice((16, 64, 256, 1024)), rng.randrange(len(other))
    piece = other[place : place + size][: len(data) - at]
    data[at : at + len(piece)] = piece
    return f"{len(piece)} bytes of {other_name} from {place} at {at}"


def _edit_blob(rng: random.Random, data: bytearray, name: str) -> str:
    """Something behind the flatbuffer: weights, and what a delegate parses by itself."""
    (size,) = struct.unpack_from("<Q", data, 16)
    if size >= len(data):
        return _edit_fields(rng, data, name)
    edits = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        if rng.random() < 0.5:
            at = rng.randrange(size, len(data) - 3) & ~3
            (old,) = struct.unpack_from("<I", data, at)
            new = _near(rng, old, "I")
            struct.pack_into("<I", data, at, new)
            edits.append(f"blob word at {at}: {old} -> {new}")
        else:
            place = rng.randrange(8 * size, 8 * len(data))
            data[place // 8] ^= 1 << place % 8
            edits.append(f"blob bit {place}")
    return "; ".join(edits)


_EDITS: list[tuple[int, Callable[[random.Random, bytearray, str], str]]] = [
    (52, _edit_fields),
    (4, _edit_instruction),
    (10, _edit_bits),
    (8, _edit_bytes),
    (8, _edit_words),
    (3, _edit_header),
    (5, _edit_length),
    (5, _edit_splice),
    (5, _edit_blob),
]


@functools.lru_cache(maxsize=1)
def _names() -> list[str]:
    """The test models; with --of, the files of that directory, which are named by their paths."""
    if OF is not None:
        return [str(path) for path in sorted(OF.glob("*.pte"))]
    return [name for name, model in model_index.models().items() if model["file"].endswith(".pte")]


def _bytes(name: str) -> bytes:
    return (pathlib.Path(name) if name.endswith(".pte") else model_index.path(name)).read_bytes()


def make(seed: int, case: int) -> tuple[str, bytes, str]:
    """The model, the file's bytes and what was changed."""
    rng = random.Random(f"{seed}:{case}")
    name = rng.choice(_names())
    data = bytearray(_bytes(name))
    weights, edits = zip(*_EDITS)
    (edit,) = rng.choices(edits, weights)
    changed = edit(rng, data, name)
    return name, bytes(data), f"{name}: {changed}"


# ---- running one --------------------------------------------------------------------------------------


def exercise(data: bytes, name: str | None) -> str:
    """Loads a program in both ways, and does with it whatever can be done; "runs" or "refused: ..."."""
    refusals = []
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "damaged.pte")
        path.write_bytes(data)
        for source, verification in ((data, Verification.InternalConsistency), (path, Verification.Minimal)):
            try:
                program = et_cffi.Runtime.get().load_program(source, verification=verification)
            except et_cffi.ExecuTorchError as error:
                refusals.append(f"load: {type(error).__name__}: {error}")
                continue
            for method_name in sorted(program.method_names):
                try:
                    _exercise_method(program, method_name, name)
                except et_cffi.ExecuTorchError as error:
                    refusals.append(f"{method_name}: {type(error).__name__}: {error}")
    return "refused: " + " | ".join(refusals) if refusals else "runs"


def _exercise_method(program: Any, method_name: str, name: str | None) -> None:
    meta = program.metadata(method_name)
    repr(meta)
    for info in _tensors(meta):
        str(ScalarType(info.dtype())), info.strides(), info.device, info.name
    method = program.load_method(method_name)
    refused = None
    for inputs in (
        _inputs(meta, name, method_name),
        _inputs(meta, None, method_name),
        _inputs(meta, None, method_name, smallest=True),
    ):
        try:
            _read(method.execute(inputs))
            _read(method.get_outputs(clone_outputs=False))
        except et_cffi.ExecuTorchError as error:
            refused = error
            if isinstance(error, et_cffi.errors.RuntimeCheckError):
                method = program.load_method(method_name)
    for index in range(meta.num_attributes()):
        attribute = method.get_attribute(meta.attribute_tensor_meta(index).name)
        _read([attribute])
    if refused is not None:
        raise refused


def _tensors(meta: Any) -> Iterator[Any]:
    for index in range(meta.num_inputs()):
        if meta.input_kind(index) == "Tensor":
            yield meta.input_tensor_meta(index)
    for index in range(meta.num_outputs()):
        if meta.output_kind(index) == "Tensor":
            yield meta.output_tensor_meta(index)
    for index in range(meta.num_attributes()):
        yield meta.attribute_tensor_meta(index)


@functools.cache
def _case(name: str, method: str) -> list[Any] | None:
    described = model_index.models().get(name, {"methods": {}})["methods"].get(method)
    return model_index.cases(name, method)[0].inputs if described and described["cases"] else None


def _inputs(meta: Any, name: str | None, method: str, smallest: bool = False) -> list[Any]:
    """The model's own inputs where they still fit, and otherwise zeros: as large as the file allows, or with
    ones for all sizes that may be smaller."""
    known = (_case(name, method) if name is not None else None) or []
    return [
        _input(meta, index, known[index] if index < len(known) else None, smallest)
        for index in range(meta.num_inputs())
    ]


def _input(meta: Any, index: int, known: Any, smallest: bool) -> Any:
    kind = meta.input_kind(index)
    if kind != "Tensor":
        scalar = {"Int": 0, "Double": 0.0, "Bool": False, "String": ""}.get(kind)
        return scalar if known is None or isinstance(known, numpy.ndarray) else known
    info = meta.input_tensor_meta(index)
    sizes = tuple(min(size, 1) for size in info.sizes()) if smallest and info.is_dynamic() else info.sizes()
    dtype = _numpy_dtype(ScalarType(info.dtype()))
    if info.nbytes() > _MOST_INPUT_BYTES and sizes == info.sizes():
        return numpy.zeros(0, numpy.uint8)
    if dtype is None:
        return numpy.zeros(info.nbytes(), numpy.uint8)  # raw bytes stand for a dtype that has no format code
    array = numpy.zeros(sizes, dtype)
    if isinstance(known, numpy.ndarray) and known.itemsize == dtype.itemsize and known.shape == sizes:
        array = known.view(dtype)
    return et_cffi.lay_out(array, info)


def _numpy_dtype(scalar_type: ScalarType) -> Any:
    try:
        return numpy.dtype(str(scalar_type))
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:  # PyPy
        return None
    named = getattr(ml_dtypes, str(scalar_type), None)
    return None if named is None else numpy.dtype(named)


def _read(results: list[Any]) -> None:
    for result in results:
        if isinstance(result, list):
            _read(result)
        elif isinstance(result, et_cffi.TensorBuffer):
            repr(result)
            numpy.asarray(result).tobytes()


# ---- the command --------------------------------------------------------------------------------------


def work(seed: int, case: int) -> tuple[str, str]:
    name, data, changed = make(seed, case)
    outcome, _, detail = exercise(data, name).partition(": ")
    return outcome, f"{changed}\n{detail}"


def run(seed: int, cases: range, *, seconds: float = 20.0) -> Iterator[children.Result]:
    # What every child needs, before the fork, so that it is paid once.
    et_cffi.Runtime.get()
    for name in _names():
        _sites(name)
    return children.run(functools.partial(work, seed), cases, seconds=seconds, address_space=4 << 30)


def _stage(detail: str) -> str:
    """Where a case was refused first, and with what."""
    refusal = detail.partition("\n")[2].partition(" | ")[0]
    where, _, what = refusal.partition(": ")
    return f"{'load' if where == 'load' else 'method'}, {what.partition(':')[0]}"


def backtrace(path: pathlib.Path, name: str) -> str:
    """The native stack of a crash, where there is a gdb to ask."""
    command = ["gdb", "-q", "-batch", "-ex", "run", "-ex", "bt 14", "--args", sys.executable, __file__]
    try:
        done = subprocess.run(
            [*command, "--model", name, "--file", str(path)], capture_output=True, text=True, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no backtrace: {error}"
    return "\n".join(line[:160] for line in done.stdout.splitlines() if line.startswith(("#", "Program")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seconds", type=float, default=20.0, help="the most that a case may take")
    parser.add_argument("--of", type=pathlib.Path, help="change the .pte files of this directory instead")
    parser.add_argument("--backtraces", action="store_true", help="run what crashed again, under gdb")
    parser.add_argument("--file", type=pathlib.Path, nargs="+", help="run these files here, and nothing else")
    parser.add_argument("--model", help="the model that the files were made of, for its inputs")
    options = parser.parse_args()
    global OF
    OF = options.of
    if options.file:
        for path in options.file:
            print(path, exercise(path.read_bytes(), options.model))
        return 0

    counts: collections.Counter[str] = collections.Counter()
    stages: collections.Counter[str] = collections.Counter()
    for result in run(
        options.seed, range(options.first, options.first + options.cases), seconds=options.seconds
    ):
        counts[result.outcome] += 1
        if result.outcome == "refused":
            stages[_stage(result.detail)] += 1
        elif result.outcome != "runs":
            name, data, changed = make(options.seed, result.case)
            KEPT.mkdir(parents=True, exist_ok=True)
            path = KEPT / f"{result.outcome}-{options.seed}-{result.case}.pte"
            path.write_bytes(data)
            print(
                f"case {result.case}: {result.outcome}: {changed}\n{result.detail}\nkept as {path}",
                flush=True,
            )
            if options.backtraces and result.outcome == "crash":
                print(backtrace(path, name), flush=True)
    print(f"seed {options.seed}, {options.cases} cases: {dict(counts.most_common())}")
    for stage, count in stages.most_common():
        print(f"  refused: {stage}: {count}")
    return 1 if counts["crash"] or counts["exception"] or counts["exit"] else 0


if __name__ == "__main__":
    sys.exit(main())

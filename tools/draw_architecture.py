"""Draws docs/architecture.svg: how a tensor travels in and out.

`python tools/draw_architecture.py` writes it. What stands between backticks is code, and has to exist:
tests/test_architecture.py looks for it in the sources, and compares the picture with what is drawn here.
"""

# ruff: noqa: E501
# A box is a line, so that it reads as a table.

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

TARGET = Path(__file__).resolve().parent.parent / "docs" / "architecture.svg"
WIDTH, HEIGHT = 1000, 940
LINE = 17

STYLE = """
  text { font: 13px sans-serif; fill: #1b1f24 }
  .code { font: 10.5px monospace; fill: #0b4f8a }
  .layer { font-weight: bold; fill: #57606a }
  .band { fill: #f6f8fa; stroke: #d0d7de }
  .in { fill: #ddf4ff; stroke: #54aeff }
  .out { fill: #dafbe1; stroke: #4ac26b }
  .arrow { stroke: #57606a; stroke-width: 1.5; fill: none; marker-end: url(#head) }
  .short { stroke-dasharray: 5 4 }
"""

# The layers: top, height, name.
BANDS = [
    (8, 92, "Your program"),
    (108, 340, "et_cffi/: Python"),
    (456, 380, "csrc/: C++ behind a C API"),
    (844, 88, "ExecuTorch"),
]

# Class, left, top, width, lines.
BOXES: list[tuple[str, int, int, int, list[str]]] = [
    ("in", 24, 34, 473, ["An input: whatever holds memory", "numpy, bytes, memoryview, CuPy, torch, a result"]),
    ("in", 24, 134, 473, ["`execute()` in `et_cffi/method.py`", "`as_inputs()` in `et_cffi/_inputs.py`: one by one"]),
    ("in", 24, 220, 116, ["a result", "`describe_result()`", "`tensor_buffer.py`"]),
    ("in", 143, 220, 116, ["torch", "`describe_torch()`", "`_torch.py`"]),
    ("in", 262, 220, 116, ["a buffer", "`describe_buffer()`", "`_buffer.py`"]),
    ("in", 381, 220, 116, ["DLPack", "`describe_dlpack()`", "`_dlpack.py`"]),
    ("in", 24, 318, 473, ["`Memory` in `et_cffi/_memory.py`: address, bytes, dtype, shape,", "strides, device, and what keeps it in place"]),
    ("in", 24, 396, 473, ["`write_memory()` in `et_cffi/_inputs.py` fills an `etcffi_value`"]),
    ("in", 24, 482, 473, ["`etcffi_method_run()`, `set_inputs()` in `csrc/method.cpp`"]),
    ("in", 24, 546, 473, ["`check_input()` in `csrc/input.cpp`: kind, dtype, shape, strides,", "device, bytes. What does not fit is an error with words"]),
    ("in", 24, 628, 473, ["`install()` in `csrc/method.cpp` asks `may_point_at()`"]),
    ("in", 24, 704, 151, ["planned input:", "the runtime copies", "it to planned", "memory"]),
    ("in", 185, 704, 151, ["it may be pointed", "at: no copy; held", "until it is", "replaced"]),
    ("in", 346, 704, 151, ["it may not:", "`copy_of()` into", "a block of the", "method's own"]),
    ("in", 24, 872, 473, ["The runtime is given one input after the other, by `give()`"]),
    ("out", 520, 872, 456, ["The runtime runs kernels and delegates,", "which write the outputs"]),
    ("out", 520, 482, 418, ["What is handed over: an `etcffi_tensor` (`csrc/tensor.h`). It", "refers to a block (`csrc/block.h`) and to no Python object"]),
    ("out", 520, 564, 146, ["planned: a copy,", "unless it is lent", "(clone_outputs", "=False)"]),
    ("out", 675, 564, 146, ["not planned: the", "block that the run", "wrote to, no copy", ""]),
    ("out", 830, 564, 146, ["out=: copied by", "`place()`, unless", "the run wrote", "there itself"]),
    ("out", 520, 674, 301, ["`make_result()` in `csrc/method.cpp`, for each"]),
    ("out", 520, 738, 456, ["`execute()` in `csrc/method.cpp`: before the run, an output that is not", "planned gets memory: `take_memory()`, or that of out= if", "`may_write_to()` says so"]),
    ("out", 520, 220, 220, ["`to_torch()` in", "`et_cffi/_torch.py`, where the", "process had torch"]),
    ("out", 752, 220, 186, ["`__dlpack__()`: a capsule by", "`wrap()` in", "`csrc/capsule.c`"]),
    ("out", 520, 318, 418, ["`TensorBuffer` in `et_cffi/tensor_buffer.py`: shape, dtype,", "strides, and one reference to the tensor in C"]),
    ("out", 520, 34, 456, ["A result, for numpy.asarray, memoryview, DLPack or torch;", "or the memory that was passed as out="]),
]  # fmt: skip

# Points, and whether it is the short way.
ARROWS: list[tuple[str, bool]] = [
    ("M260 84 V130", False),
    *((f"M260 184 V200 H{x} V216", False) for x in (82, 201, 320, 439)),
    *((f"M{x} 287 V314", False) for x in (82, 201, 320, 439)),
    ("M260 368 V392", False),
    ("M260 429 V478", False),
    ("M260 515 V542", False),
    ("M260 596 V624", False),
    *((f"M260 661 V682 H{x} V700", False) for x in (130, 260, 421)),
    *((f"M{x} 788 V868", False) for x in (130, 260, 421)),
    ("M497 890 H516", False),
    ("M748 872 V808", False),
    ("M670 738 V711", False),
    ("M903 738 V652", False),
    *((f"M{x} 674 V652", False) for x in (593, 748)),
    *((f"M{x} 564 V536", False) for x in (593, 748)),
    ("M958 564 V88", False),
    ("M729 482 V372", False),
    *((f"M{x} 318 V291", False) for x in (630, 845)),
    *((f"M{x} 220 V88", False) for x in (630, 845)),
    ("M746 318 V88", False),
    ("M24 168 H6 V498 H20", True),
]

NOTE = (276, 444, ["Dashed: a plain call on CPython, by `runner_run()` in `csrc/cpython.c`"])


def text(x: int, y: int, line: str, kind: str = "") -> str:
    parts = [
        f'<tspan class="code">{escape(part)}</tspan>' if i % 2 else escape(part)
        for i, part in enumerate(line.split("`"))
    ]
    return f'<text x="{x}" y="{y}"{kind}>{"".join(parts)}</text>'


def draw() -> str:
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>How a tensor travels in and out of et_cffi</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#57606a"/></marker></defs>',
        # Its own background: the page behind it may be dark.
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
    ]
    for top, height, name in BANDS:
        out.append(f'<rect class="band" x="14" y="{top}" width="972" height="{height}" rx="6"/>')
        out.append(text(24, top + 18, name, ' class="layer"'))
    out += [f'<path class="arrow{" short" * short}" d="{points}"/>' for points, short in ARROWS]
    for kind, x, y, width, lines in BOXES:
        height = LINE * len(lines) + 16
        out.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>')
        out += [text(x + 7, y + 20 + LINE * i, line) for i, line in enumerate(lines)]
    left, top, lines = NOTE
    out += [text(left, top + LINE * i, line) for i, line in enumerate(lines)]
    return "\n".join(out) + "\n</svg>\n"


if __name__ == "__main__":
    TARGET.write_text(draw(), encoding="utf-8")

"""A cffi app with memory and C code of its own, which reads handwritten digits with et_cffi.

python app.py MODEL IMAGE.npy...    # float32, 1x1x8x8

Prints what each image is, with its score, and what the C code makes of all of them.
"""

from __future__ import annotations

import sys

import numpy
from _counter import ffi, lib

import et_cffi


def load_page(paths: list[str]) -> ffi.CData:
    page = ffi.gc(lib.page_new(len(paths)), lib.page_free)
    for index, path in enumerate(paths):
        image = numpy.load(path).astype("float32")
        ffi.memmove(page.digits[index], image.tobytes(), ffi.sizeof("float[64]"))
    return page


def main(model: str, paths: list[str]) -> None:
    page = load_page(paths)
    program = et_cffi.Runtime.get().load_program(model)
    method = program.load_method("forward")
    for index, path in enumerate(paths):
        # The page's own memory goes in. The pointer does not own it, so the page is named as its owner.
        image = et_cffi.from_cdata(page.digits[index], (1, 1, 8, 8), owner=page)
        (result,) = method.execute([image])
        # A float * over the result's own memory, which it keeps: the result may be dropped.
        scores, count = result.cdata(), result.nbytes // ffi.sizeof("float")
        best = lib.best_of(scores, count)
        print(f"{path}: {best} with {scores[best]:.6f}")

    # The same in C, where a method is loaded of the same program.
    digits = ffi.new("int32_t[]", page.count)
    if lib.read_page(program.cdata(), page, digits):
        raise RuntimeError(ffi.string(lib.etcffi_last_message()).decode())
    print("in C:", *digits)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

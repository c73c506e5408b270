"""The round trip on a real NVIDIA GPU, with real CuPy and torch; the suite has a device of its own instead.

    ET_CFFI_SDK=... python tests/device/real_gpu.py

Needs CuPy, a torch with CUDA, a C++ compiler and the SDK that et_cffi was built against. Prints what it
checked, and exits with 1 if anything differs. `real_gpu.py PLUGIN` takes a plug-in that was built before.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import cupy  # noqa: E402
import device_plugin  # noqa: E402
import model_index  # noqa: E402
import numpy  # noqa: E402

from et_cffi import Runtime, TensorBuffer  # noqa: E402

failed = []


def check(what: str, holds: Any) -> None:
    print("ok    " if holds else "FAILED", what, flush=True)
    if not holds:
        failed.append(what)


def main() -> None:
    built = (
        sys.argv[1]
        if len(sys.argv) > 1
        else str(device_plugin.build(Path(tempfile.mkdtemp()), "cuda_device"))
    )
    runtime = Runtime.get()
    runtime.load_library(built)
    # The backend reads what it is given and no byte more.
    runtime.backend_registry.set_input_needs("BackendWithCompilerDemo", padding=0, alignment=4)
    plugin = ctypes.CDLL(built)
    plugin.test_device_copies.restype = ctypes.c_int64
    plugin.test_backend_seen.restype = ctypes.c_void_p

    def seen() -> list[int]:
        return [plugin.test_backend_seen(argument) for argument in range(3)]

    def same(found: Any, wanted: Any) -> bool:
        return numpy.array_equal(numpy.asarray(found), wanted)

    def copies() -> int:
        return int(plugin.test_device_copies())

    program = runtime.load_program(model_index.path("device_add"))
    case = model_index.cases("device_add", "forward")[0]
    (x, y), (expected,) = case.inputs, case.outputs

    print("-- CuPy, and results as TensorBuffers")
    method = program.load_method("forward")
    (result,) = method.execute([x, y])
    check("host inputs are copied over, one copy each", copies() == 2)
    check("a result is a TensorBuffer", type(result) is TensorBuffer)
    check("it is on cuda:0", str(result.device) == "cuda:0")
    check("to_host() gives eager mode's numbers", same(result.to_host(), expected))
    before = copies()
    a, b = cupy.asarray(x), cupy.asarray(y)
    (result,) = method.execute([a, b])
    array = cupy.from_dlpack(result)
    check("all is read and written where it is", seen() == [a.data.ptr, b.data.ptr, array.data.ptr])
    (total,) = method.execute([result, array])
    check("a result goes straight back in, whoever lends it", seen()[:2] == [array.data.ptr] * 2)
    check("nothing was copied", copies() == before)
    check("CuPy reads eager mode's numbers", same(cupy.asnumpy(array), expected))
    check("and their sum", same(cupy.asnumpy(cupy.from_dlpack(total)), expected * 2))
    del method, result
    check("a result outlives its method", same(cupy.asnumpy(array), expected))
    with cupy.cuda.using_allocator(None):
        a = cupy.asarray(x)
    (result,) = program.load_method("forward").execute([a, b])
    check("memory that is not of CuPy's pool is copied, by two copies", copies() == before + 2)
    check("and gives the same", same(result.to_host(), expected))

    print("-- torch, and results as torch tensors")
    import torch

    method = program.load_method("forward")
    before = copies()
    t, u = torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda()
    (result,) = method.execute([t, u])
    check("a result is a torch tensor", type(result) is torch.Tensor)
    check("it is on cuda:0", str(result.device) == "cuda:0")
    check("all is read and written where it is", seen() == [t.data_ptr(), u.data_ptr(), result.data_ptr()])
    (total,) = method.execute([result, result])
    check("a result goes straight back in", seen()[:2] == [result.data_ptr()] * 2)
    check("nothing was copied", copies() == before)
    check("torch reads eager mode's numbers", same(result.cpu().numpy(), expected))
    check("and their sum", same(total.cpu().numpy(), expected * 2))
    method.set_inputs([t, u])
    t.set_(torch.from_numpy(y).cuda())
    try:
        method.execute()
        noticed = False
    except BufferError:
        noticed = True
    check("a storage that is replaced is noticed before the run", noticed)


if __name__ == "__main__":
    main()
    print(f"{len(failed)} failed" if failed else "all of it holds")
    sys.exit(1 if failed else 0)

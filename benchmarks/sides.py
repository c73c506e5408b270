"""How each side is asked for the same thing: the code that loads a program, makes inputs and runs it.

Every setup leaves `execute` and `inputs`, and inputs hold 1, 2, 3, ... on all sides. A result is compared across the
sides by CHECK before anything is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_LOAD = {
    "et_cffi": "from et_cffi import Runtime\n"
    "execute = Runtime.get().load_program({path!r}).load_method('forward').execute",
    "executorch.runtime": "import torch\nfrom executorch.runtime import Runtime\n"
    "execute = Runtime.get().load_program({path!r}).load_method('forward').execute",
    "executorch-numpy-runtime": "from executorch_numpy_runtime import Runtime\n"
    "execute = Runtime.get().load_program({path!r}).load_method('forward')",
    "onnxruntime": "import onnxruntime\nsession = onnxruntime.InferenceSession({path!r})\n"
    "name = session.get_inputs()[0].name\n"
    "execute = lambda inputs: session.run(None, dict(zip([name], inputs)))",
}
_KINDS = {
    "numpy": "import numpy\ndef tensor(shape):\n"
    "    return numpy.arange(1, 1 + numpy.prod(shape), dtype='f4').reshape(shape)",
    "torch": "import torch\ndef tensor(shape):\n"
    "    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)",
    # Nothing but DLPack's two methods: an array of a library that this one does not know.
    "DLPack": "import numpy\n"
    "class Producer:\n"
    "    def __init__(self, array):\n"
    "        self.array = array\n"
    "    def __dlpack__(self, **keywords):\n"
    "        return self.array.__dlpack__(**keywords)\n"
    "    def __dlpack_device__(self):\n"
    "        return self.array.__dlpack_device__()\n"
    "def tensor(shape):\n"
    "    return Producer(numpy.arange(1, 1 + numpy.prod(shape), dtype='f4').reshape(shape))",
    "array.array": "import array\ndef tensor(shape):\n"
    "    (size,) = shape\n"
    "    return array.array('f', range(1, 1 + size))",
    "memoryview": "import array, functools, operator\ndef tensor(shape):\n"
    "    size = functools.reduce(operator.mul, shape)\n"
    "    return memoryview(array.array('f', range(1, 1 + size))).cast('B').cast('f', shape)",
}


def setup(side: str, path: Path, kind: str, inputs: Sequence[object]) -> str:
    """Code that loads the program and makes its inputs: a tuple stands for a tensor of that shape, and anything
    else for itself. With torch tensors torch comes first, so that et_cffi returns them too."""
    made = ", ".join(f"tensor({item})" if isinstance(item, tuple) else repr(item) for item in inputs)
    return "\n".join([_KINDS[kind], _LOAD[side].format(path=str(path)), f"inputs = [{made}]"])


CHECK = "[float(x) for x in memoryview(execute(inputs)[0]).cast('B').cast('f')]"
"""The first result's elements, where it lends its memory."""
CHECK_TORCH = "execute(inputs)[0].flatten().tolist()"

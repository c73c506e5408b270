"""How each side is asked for the same thing: the code that loads a program, makes inputs and runs it.

Every setup leaves `execute` and `inputs`, and inputs hold 1, 2, 3, ... on all sides (to 2**20, and from 1
again); and `numbers`, which gives the elements of a result, to be compared across the sides before anything
is timed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from measure import Worker
from peers import Peers

OWN, OFFICIAL, NUMPY_RUNTIME = "et_cffi", "executorch.runtime", "executorch-numpy-runtime"
CALL = "execute(inputs)"

_LOAD = {
    OWN: "from et_cffi import Runtime\n"
    "execute = Runtime.get().load_program({path!r}).load_method('forward').execute",
    OFFICIAL: "import torch\nfrom executorch.runtime import Runtime\n"
    "execute = Runtime.get().load_program({path!r}).load_method('forward').execute",
    NUMPY_RUNTIME: "from executorch_numpy_runtime import Runtime\n"
    "execute = Runtime.get().load_program({path!r}).load_method('forward')",
    "onnxruntime": "import onnxruntime\nsession = onnxruntime.InferenceSession({path!r})\n"
    "name = session.get_inputs()[0].name\n"
    "execute = lambda inputs: session.run(None, dict(zip([name], inputs)))",
}
_KINDS = {
    "numpy": "import numpy\ndef tensor(shape):\n"
    "    values = numpy.arange(1, 1 + min(2**20, int(numpy.prod(shape))), dtype='f4')\n"
    "    return numpy.resize(values, shape).copy()",
    "torch": "import torch\ndef tensor(shape):\n"
    "    size = torch.Size(shape).numel()\n"
    "    values = torch.arange(1.0, 1 + min(2**20, size))\n"
    "    return values.repeat(1 + size // len(values))[:size].reshape(shape).clone()",
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
# Without numpy for a TensorBuffer: a process that has imported it is another one.
_NUMBERS = """
def numbers(result, step=1):
    import array, ctypes
    first = result[0] if isinstance(result, list) else result
    if hasattr(first, "tolist"):
        return first.reshape(-1)[::step].tolist()
    address = first.__array_interface__["data"][0]
    return array.array("f", ctypes.string_at(address, first.nbytes))[::step].tolist()
"""


def setup(side: str, path: Path, kind: str, inputs: Sequence[object]) -> str:
    """Code that loads the program and makes its inputs: a tuple stands for a tensor of that shape, and
    anything else for itself. With torch tensors torch comes first, so that et_cffi returns them too."""
    made = ", ".join(f"tensor({item})" if isinstance(item, tuple) else repr(item) for item in inputs)
    return "\n".join([_KINDS[kind], _NUMBERS, _LOAD[side].format(path=str(path)), f"inputs = [{made}]"])


class Side(NamedTuple):
    """One side of a case: which Python runs which package on which kind of inputs."""

    name: str
    peer: str  # a field of Peers
    package: str
    kind: str
    statement: str = CALL


ARRAYS = Side("et_cffi, arrays", "own", OWN, "numpy")
TENSORS = Side("et_cffi, torch tensors in and out", "official", OWN, "torch")
TORCH = Side("executorch.runtime, torch tensors", "official", OFFICIAL, "torch")
NUMPY = Side("executorch-numpy-runtime, arrays", "numpy_runtime", NUMPY_RUNTIME, "numpy")


class Workers:
    """A process for each side's Python, package and kind, started when it is first needed: what one kind of
    input brings into a process (torch, numpy) changes what another costs."""

    def __init__(self, peers: Peers, **variables: str) -> None:
        self._peers = peers
        self._variables = variables
        self._stack = contextlib.ExitStack()
        self._started: dict[tuple[str, str, str], Worker] = {}

    def of(self, side: Side) -> Worker:
        key = side.peer, side.package, side.kind
        if key not in self._started:
            self._started[key] = self._stack.enter_context(
                Worker(getattr(self._peers, side.peer), **self._variables)
            )
        return self._started[key]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

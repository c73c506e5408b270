"""The end-to-end proof that torch is absent, in child processes that cannot have it.

This process may have anything; a child blocks torch, imports the package, runs models, compares them with
eager outputs and lists the shared libraries that it has mapped, which no import hook can fake.
"""

from __future__ import annotations

import json
import sys

import model_index
import pytest
from support import child

_BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "executorch", "torchgen", "functorch"}:
            raise ModuleNotFoundError(f"{name} is blocked here", name=name)
        return None

sys.meta_path.insert(0, Blocked())
if {how}:
    sys.modules["torch"] = sys.modules["executorch"] = None
try:
    import torch
except ImportError:
    pass
else:
    raise SystemExit("torch could be imported")
"""


def block(how: str = "None in sys.modules") -> str:
    """Code after which nothing imports torch, whatever is installed."""
    return _BLOCK.replace("{how}", str(how == "None in sys.modules"))


RUN = """
import json
import et_cffi
assert type(et_cffi._links_torch) is bool
from support import BUNDLED, case_of, check_outputs, host_inputs, load, runnable
import model_index

ran = []
for name in runnable():
    for method in model_index.models()[name]["methods"]:
        loaded = load(name, method)
        for case in model_index.cases(name, method):
            outputs = loaded.execute(host_inputs(case))
            check_outputs(outputs, case)
            ran.append(str(case))
print(json.dumps({
    "links_torch": et_cffi._links_torch,
    "ran": len(ran),
    "torch": sorted(name for name, module in sys.modules.items()
                    if name.partition(".")[0] in {"torch", "executorch"} and module is not None),
    "numpy": "numpy" in sys.modules,
}))
"""

MAPPED = """
with open("/proc/self/maps") as file:
    mapped = sorted({line.split(None, 5)[5].strip() for line in file if line.count(" ") >= 5 and "/" in line})
print(json.dumps(mapped))
"""


@pytest.mark.parametrize("how", ["None in sys.modules", "import hook alone"])
def test_every_model_runs_where_torch_cannot_be_imported(how):
    done = child(block(how) + RUN)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["links_torch"] is False
    assert said["ran"] > 100
    assert said["torch"] == []


@pytest.mark.linux
def test_no_library_of_torch_is_mapped():
    done = child(block() + RUN + MAPPED)
    assert done.returncode == 0, done.stderr
    libraries = json.loads(done.stdout.splitlines()[1])
    names = {path.rpartition("/")[2] for path in libraries}
    # The list is a real one: what is known to be loaded is in it.
    for known in ("libexecutorch.so", "libet_cffi.so", "libexecutorch_kernels_quantized.so",
                  "libexecutorch_kernels_optimized.so", "libexecutorch_backend_xnnpack.so"):  # fmt: skip
        assert known in names
    forbidden = ("libtorch", "libc10", "libshm", "libcaffe2", "libaten", "_C.cpython", "libgomp", "libomp")
    assert [path for path in libraries if path.rpartition("/")[2].startswith(forbidden)] == []
    assert [path for path in libraries if "/torch/" in path] == []


@pytest.mark.linux
def test_the_runtime_comes_from_the_package():
    """Not from an executorch package that happens to be installed."""
    done = child("import json, et_cffi; et_cffi.Runtime.get()\n" + MAPPED + "print(et_cffi.__file__)")
    assert done.returncode == 0, done.stderr
    mapped, file = done.stdout.splitlines()
    directory = file.rpartition("/")[0]
    runtime = [path for path in json.loads(mapped) if "libexecutorch" in path]
    assert len(runtime) >= 4
    assert [path for path in runtime if not path.startswith(directory + "/lib/")] == []


def test_importing_needs_neither_numpy_nor_torch():
    """And the first load of a program does not either: only a result that is read as an array does."""
    done = child(
        "import sys, et_cffi, et_cffi.errors\n"
        "import et_cffi.method, et_cffi.layout\n"
        "assert not {'numpy', 'torch', 'executorch', 'logging'} & set(sys.modules), sorted(sys.modules)\n"
        "from pathlib import Path\n"
        "import array\n"
        "method = et_cffi.Runtime.get().load_program(Path(sys.argv[1])).load_method('forward')\n"
        "x = memoryview(array.array('f', [1, 2, 3, 4])).cast('B').cast('f', [2, 2])\n"
        "y = memoryview(array.array('f', [50, 60, 70, 80])).cast('B').cast('f', [2, 2])\n"
        "(out,) = method.execute([x, y])\n"
        "assert out.shape == (2, 2) and not {'numpy', 'torch'} & set(sys.modules)\n"
        "values = array.array('f', out.tobytes())\n"
        "print(values.tolist())\n",
        str(model_index.path("add")),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[51.0, 62.0, 73.0, 84.0]"


def test_a_result_is_a_tensor_buffer():
    done = child(
        block()
        + "from support import load, case_of\n"
        + "(out,) = load('add').execute(case_of('add').inputs)\n"
        + "print(type(out).__module__, type(out).__name__, out)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        "et_cffi.tensor_buffer TensorBuffer TensorBuffer(shape=(2, 2), dtype=float32)"
    )


@pytest.mark.parametrize("module", ["torch", "executorch"])
def test_an_unfinished_or_foreign_module_of_that_name_is_no_torch(module):
    """Something else under the name (a stub, an import that failed half way) changes nothing."""
    done = child(
        "import sys, types\n"
        f"sys.modules[{module!r}] = types.ModuleType({module!r})\n"
        "from support import load, case_of, check_outputs\n"
        "check_outputs(load('add').execute(case_of('add').inputs), case_of('add'))\n"
        "print('ran')\n"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ran"), done.stderr


def test_this_suite_runs_without_torch_itself():
    """The tests that need it are a job of their own; here its presence would change what comes back."""
    assert "torch" not in sys.modules
    assert "executorch" not in sys.modules

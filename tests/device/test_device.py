"""Memory on a device: tests/device/inside_*.py, each in a process of its own, and what needs one anyway.

A device's allocator and a backend cannot be taken out of the registry again, and a device model that loads is
not what other tests expect.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import device_plugin
import model_index
import pytest

HERE = Path(__file__).resolve().parent
INSIDE = sorted(path.name for path in HERE.glob("inside_*.py"))
DOCUMENTED = (HERE.parent.parent / "docs" / "device.md").read_text(encoding="utf-8")
DEVICE_MODELS = sorted(name for name in model_index.models() if name.startswith("device_"))

# The test device is memory that Linux maps twice.
pytestmark = pytest.mark.linux


def python(*arguments: object, plugin: str | None = None, path: tuple[Path, ...] = ()):
    variables = dict(os.environ)
    if plugin is not None:
        variables[device_plugin.VARIABLE] = plugin
    found = [*map(str, (*path, HERE, HERE.parent)), os.environ.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, found))
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=600, env=variables
    )


@pytest.mark.parametrize("name", INSIDE)
def test_inside(name, plugin_path):
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / name, plugin=plugin_path)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    # None was left out.
    assert re.fullmatch(r"\d+ passed in .*", done.stdout.strip().splitlines()[-1])


def test_the_host_cannot_touch_the_device(plugin_path):
    """That is what makes the others prove anything: a read on the host ends the process."""
    code = (
        "import ctypes, sys, device_plugin as plugin\n"
        "block = plugin.load(sys.argv[1]).foreign(16)\n"
        "assert block.device.read(block.address, 16)\n"
        "print('mapped', flush=True)\n"
        "ctypes.string_at(block.address, 1)\n"
    )
    done = python("-c", code, plugin_path)
    assert done.stdout == "mapped\n"
    assert done.returncode == -signal.SIGSEGV


def test_without_an_allocator(plugin_path):
    """The load fails, naming the device and what to load. What is loaded goes on working, and what is loaded
    after the library works too."""
    code = (
        "import sys, numpy, model_index, device_plugin\n"
        "from et_cffi import Runtime\n"
        "from et_cffi.errors import DeviceError\n"
        "runtime = Runtime.get()\n"
        "case, = model_index.cases('add', 'forward')[:1]\n"
        "add = runtime.load_program(model_index.path('add')).load_method('forward')\n"
        "programs = {n: runtime.load_program(model_index.path(n)) for n in sys.argv[2:]}\n"
        "for name, program in programs.items():\n"
        "    for method in sorted(program.method_names):\n"
        "        program.metadata(method)\n"
        "        try:\n"
        "            program.load_method(method)\n"
        "        except DeviceError as error:\n"
        "            print(name, error)\n"
        "        result, = add.execute(case.inputs)\n"
        "        assert numpy.array_equal(result, case.outputs[0])\n"
        "device_plugin.load(sys.argv[1])\n"
        "case, = model_index.cases('device_add', 'forward')[:1]\n"
        "result, = programs['device_add'].load_method('forward').execute(case.inputs)\n"
        "assert numpy.array_equal(result.to_host(), case.outputs[0])\n"
        "assert 'torch' not in sys.modules and 'cupy' not in sys.modules\n"
    )
    done = python("-c", code, plugin_path, *DEVICE_MODELS)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == sum(len(model_index.models()[name]["methods"]) for name in DEVICE_MODELS)
    for line in said:
        name, message = line.split(" ", 1)
        where = "cuda:1" if name == "device_add_index1" else "cuda:0"
        assert re.match(r"loading the method '\w+' failed: ", message)
        assert f"memory on device {where}" in message
        assert "no DeviceAllocator is registered" in message
        assert "Runtime.load_library" in message


def test_the_script_for_a_real_gpu(plugin_path):
    """Its logic, with the stand-ins: the GPU, and CuPy and torch themselves, are what it is there for."""
    done = python(HERE / "real_gpu.py", plugin_path, plugin=plugin_path, path=(HERE / "fakes",))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "all of it holds"
    assert sum(line.startswith("ok ") for line in lines) == 20


def test_the_script_for_a_real_gpu_can_fail(plugin_path, tmp_path):
    """It exits with 1 where numbers differ, and at once where there is nothing to run on."""
    spoilt = tmp_path / "spoilt"
    spoilt.mkdir()
    (spoilt / "sitecustomize.py").write_text(
        "import cupy\nread = cupy.asnumpy\ncupy.asnumpy = lambda array: read(array) + 1\n"
    )
    done = python(HERE / "real_gpu.py", plugin_path, plugin=plugin_path, path=(spoilt, HERE / "fakes"))
    assert done.returncode == 1
    assert "FAILED CuPy reads eager mode's numbers" in done.stdout
    assert done.stdout.splitlines()[-1] == "3 failed"


def test_what_the_documentation_says_to_type(plugin_path, tmp_path):
    """Its blocks one after the other, with the test device for a backend of one's own."""
    blocks = re.findall(r"^```python device\n(.*?)^```$", DOCUMENTED, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    code = "\n".join(blocks)
    for written, meant in (
        ("model.pte", str(model_index.path("device_add"))),
        ("libmy_backend.so", plugin_path),
        ("MyBackend", "BackendWithCompilerDemo"),
    ):
        assert written in code
        code = code.replace(written, meant)
    code += (
        "from device_plugin import current\n"
        "assert (values == 4).all() and (result.to_host().shape == (2, 2))\n"
        "assert numpy.array_equal(numpy.asarray(result.to_host()), numpy.full((2, 2), 3, numpy.float32))\n"
        "assert current().copies() == (1, 3), current().copies()\n"
    )
    done = python("-c", code, plugin=plugin_path, path=(HERE / "fakes",))
    assert done.returncode == 0, done.stderr
    for printed in re.findall(r"print\(.*\)  # (cuda:\d)$", code, re.MULTILINE):
        assert printed in done.stdout.splitlines()


def test_the_plugin_for_a_real_gpu_is_built_and_says_that_there_is_none(tmp_path):
    built = device_plugin.build(tmp_path, "cuda_device")
    code = (
        "import sys, model_index\n"
        "from et_cffi import Runtime\n"
        "Runtime.get().load_library(sys.argv[1])\n"
        "method = Runtime.get().load_program(model_index.path('device_add')).load_method('forward')\n"
        "try:\n"
        "    method.execute(model_index.cases('device_add', 'forward')[0].inputs)\n"
        "except MemoryError as error:\n"
        "    print(error)\n"
    )
    # Where there is a GPU after all, CUDA is told to see none.
    done = python("-c", f"import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''\n{code}", built)
    assert done.returncode == 0, done.stderr
    assert "allocating 16 bytes on cuda:0 failed" in done.stdout


@pytest.mark.torch
def test_a_torch_without_the_device(plugin_path):
    """The real one, which was built for the CPU: it cannot take the memory, so results stay TensorBuffers."""
    code = (
        "import sys, numpy, torch, model_index, device_plugin\n"
        "from et_cffi import Runtime, TensorBuffer\n"
        "assert not torch.cuda.is_available()\n"
        "device_plugin.load(sys.argv[1])\n"
        "case = model_index.cases('device_mixed', 'forward')[0]\n"
        "method = Runtime.get().load_program(model_index.path('device_mixed')).load_method('forward')\n"
        "inputs = [torch.from_numpy(value) for value in case.inputs]\n"
        "there, here = method.execute(inputs)\n"
        "assert type(there) is TensorBuffer and type(here) is torch.Tensor\n"
        "assert numpy.array_equal(there.to_host(), case.outputs[0])\n"
        "assert numpy.array_equal(here, case.outputs[1])\n"
        "there, here = method.execute([there, there, inputs[2]])\n"
        "assert numpy.array_equal(there.to_host(), case.outputs[0] * 2)\n"
    )
    done = python("-c", code, plugin_path)
    assert done.returncode == 0, done.stderr


# What the stand-in for torch has for itself or for the tests, and torch has not.
OWN = {"address", "available", "backend", "block", "idx", "index", "negated", "owner", "pool", "streams"}
# Of a torch with CUDA: the streams of one that was built for the CPU have nothing.
OWN |= {"cuda_stream"}


def names_in(node: ast.AST) -> set[str]:
    """The methods that a class defines and the attributes that it sets, without what is private to it."""
    found = {inner.name for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            found.add(inner.attr)
    return {name for name in found - OWN if not name.startswith("_") or name.startswith("__dlpack")}


@pytest.mark.torch
def test_the_stand_in_has_torchs_names():
    import torch

    modules = {
        "__init__": torch,
        "cuda/__init__": torch.cuda,
        "cuda/memory": torch.cuda.memory,
        "utils/dlpack": torch.utils.dlpack,
    }
    compared = 0
    for file, module in modules.items():
        for node in ast.parse((HERE / f"fakes/torch/{file}.py").read_text()).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
                real = getattr(module, node.name)
                inner = names_in(node) if isinstance(node, ast.ClassDef) else set()
                assert [name for name in sorted(inner) if not hasattr(real, name)] == [], node.name
                compared += 1 + len(inner)
    assert compared > 30
    assert hasattr(torch.version, "hip")

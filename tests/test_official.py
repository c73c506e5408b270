"""Everything that needs the official package and torch, each in a process of its own."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import model_index
import pytest

import et_cffi
from et_cffi import portable_lib

pytestmark = pytest.mark.torch

HERE = Path(__file__).resolve().parent


def official(name: str) -> Path:
    spec = importlib.util.find_spec("executorch")
    assert spec is not None and spec.submodule_search_locations, "the wheel executorch==1.5.1 is needed"
    paths = [Path(location) / name for location in spec.submodule_search_locations]
    return next(path for path in paths if path.is_file())


def child(*arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


@pytest.mark.parametrize(
    ("option", "says"),
    [((), "55 passed, 1 skipped, 2 deselected"), (("--quantized",), "2 passed, 56 deselected")],
    ids=["plain", "quantized"],
)
def test_the_official_tests_pass_unmodified(option, says):
    directory = HERE / "official"
    path = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH", "")]))
    files = child(directory / "official_tests.py").split()
    assert len(files) == 5
    command = ["-m", "pytest", "-q", "-c", directory / "pytest.ini", "--import-mode=importlib"]
    command += ["-p", "no:cacheprovider", "-p", "official_tests", *option, *files]
    said = child(*command, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1")
    assert says in said and "OFFICIAL TESTS" not in said


# ---- names, signatures, defaults ---------------------------------------------------------------------------


def declared(path: Path) -> dict[str, ast.AST]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}


def parameters(function: ast.FunctionDef) -> list[tuple[str, str]]:
    """Names, and defaults as source; "..." stands for one that the stub leaves open."""
    spec = function.args
    given = [None] * (len(spec.args) - len(spec.defaults)) + list(spec.defaults)
    pairs = [*zip(spec.args, given), *zip(spec.kwonlyargs, spec.kw_defaults)]
    return [
        (arg.arg, "" if default is None else ast.unparse(default))
        for arg, default in pairs
        if arg.arg != "self"
    ]


def value_of(source: str) -> object:
    if source.startswith("Verification."):
        return portable_lib.Verification[source.partition(".")[2]]
    return ast.literal_eval(source)


def assert_takes_the_same(ours: object, theirs: ast.FunctionDef) -> None:
    """Every call that the official declaration allows is one that ours allows, and means the same."""
    own = [p for p in inspect.signature(ours).parameters.values() if p.name != "self"]
    wanted = parameters(theirs)
    assert [p.name for p in own[: len(wanted)]] == [name for name, _ in wanted], theirs.name
    for parameter, (name, default) in zip(own, wanted):
        if default == "...":
            assert parameter.default is not inspect.Parameter.empty, (theirs.name, name)
        elif default:
            assert parameter.default == value_of(default), (theirs.name, name)
            assert type(parameter.default) is type(value_of(default)), (theirs.name, name)
    for parameter in own[len(wanted) :]:
        assert parameter.default is not inspect.Parameter.empty, (theirs.name, parameter.name)


def test_portable_lib_has_every_name_with_its_signature():
    stub = declared(official("extension/pybindings/pybindings.pyi"))
    module = ast.parse(official("extension/pybindings/portable_lib.py").read_text(encoding="utf-8"))
    imported = {
        alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and node.module == "executorch.extension.pybindings._C"
        for alias in node.names
    }
    assert len(imported) == 22 and set(stub) | {"PyDataLoader"} >= imported
    assert imported | set(stub) | {"PyDataLoader"} == set(portable_lib.__all__)
    for name, node in stub.items():
        ours = getattr(portable_lib, name)
        if isinstance(node, ast.FunctionDef):
            assert_takes_the_same(ours, node)
            continue
        for member in node.body:
            if isinstance(member, ast.FunctionDef):
                assert_takes_the_same(getattr(ours, member.name), member)
            elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                assert hasattr(ours, member.target.id)


def test_the_wheels_extension_agrees():
    """Its docstrings state names and defaults too, among them of what the stub leaves out."""
    script = """
import json, warnings
warnings.simplefilter("ignore")
from executorch.extension.pybindings import portable_lib as p
found = {}
for name, value in vars(p).items():
    if callable(value) and not isinstance(value, type):
        found[name] = value.__doc__
classes = "ExecuTorchModule ExecuTorchProgram ExecuTorchMethod BundledModule MethodMeta TensorInfo"
for name in classes.split():
    for member, value in vars(getattr(p, name)).items():
        if callable(value) and not member.startswith("_") or member == "__call__":
            found[f"{name}.{member}"] = value.__doc__
print("JSON" + json.dumps(found))
"""
    found = json.loads(child("-c", script).partition("JSON")[2])
    assert len(found) > 40
    for name, text in found.items():
        ours = portable_lib
        for part in name.split("."):
            ours = getattr(ours, part)
        own = {p.name: p for p in inspect.signature(ours).parameters.values()}
        for stated, default in re.findall(
            r"(\w+): [^,=]*(?:\[[^\]]*\][^,=]*)*(?: = ([^,()]+))?(?=[,)])", text
        ):
            if stated in {"self", "arg0", "ptr"} or stated not in own or not default:
                assert stated in {"self", "arg0", "ptr"} or stated in own, (name, stated)
                continue
            plain = {"[]": (), "None": None, "True": True, "False": False}
            expected = plain.get(default, default)
            if isinstance(expected, str) and expected.startswith("<Verification."):
                expected = portable_lib.Verification(int(expected.rpartition(":")[2].strip(" >")))
            elif isinstance(expected, str):
                expected = float(expected)
            assert own[stated].default == expected, (name, stated, default)


def test_et_cffi_has_every_name_of_executorch_runtime():
    path = official("runtime/__init__.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and "pybindings" in (node.module or "")
        for alias in node.names
    }
    classes = {name: node for name, node in declared(path).items() if isinstance(node, ast.ClassDef)}
    assert names and len(classes) == 5
    for name in names | set(classes):
        assert name in et_cffi.__all__, name
    for name, node in classes.items():
        ours = getattr(et_cffi, name)
        for member in node.body:
            if not isinstance(member, ast.FunctionDef) or member.name == "__init__":
                continue
            attribute = inspect.getattr_static(ours, member.name)
            if isinstance(attribute, property):
                continue
            if isinstance(attribute, staticmethod):
                assert callable(getattr(ours, member.name))
                continue
            assert_takes_the_same(attribute, member)
    assert {"backend_registry", "operator_registry"} <= set(vars(et_cffi.Runtime.get()))


# ---- the documentation's examples --------------------------------------------------------------------------


def test_the_docstring_examples_run_with_the_import_changed(tmp_path):
    text = ast.get_docstring(ast.parse(official("runtime/__init__.py").read_text(encoding="utf-8")))
    assert text is not None
    blocks = re.findall(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", text + "\n")
    assert len(blocks) == 3
    (tmp_path / "program.pte").write_bytes(model_index.path("add").read_bytes())
    said = []
    for block in blocks:
        script = re.sub(r"^    ", "", block, flags=re.MULTILINE).replace("executorch.runtime", "et_cffi")
        said.append(child("-c", script.replace("/tmp", str(tmp_path))))
    assert (
        "Program methods: {'forward'}" in said[0]
        and "outputs: [tensor([[2., 2.],\n        [2., 2.]])]" in said[0]
    )
    assert "ETDump file created: True\nDebug file created: True" in said[1]
    assert "XNNPACK backend is available" in said[2] and "Number of registered operators: " in said[2]


# ---- ETDump ------------------------------------------------------------------------------------------------


def test_the_official_inspector_reads_an_etdump(tmp_path):
    script = """
import sys, warnings
warnings.simplefilter("ignore")
import et_cffi, model_index
from et_cffi import etdump
for name in ("two_dynamic", "conv_xnnpack"):
    program = et_cffi.Runtime.get().load_program(
        model_index.path(name), enable_etdump=True, debug_buffer_size=100000
    )
    method = program.load_method("forward")
    case = model_index.cases(name, "forward")[0]
    for _ in range(3):
        method.execute(case.inputs)
    program.write_etdump_result_to_file(f"{sys.argv[1]}/{name}.etdp", f"{sys.argv[1]}/{name}.bin")
from executorch.devtools import Inspector
from executorch.devtools.etdump.serialize import deserialize_from_etdump_flatcc, serialize_to_etdump_flatcc
for name in ("two_dynamic", "conv_xnnpack"):
    path = f"{sys.argv[1]}/{name}.etdp"
    content = open(path, "rb").read()
    theirs, ours = deserialize_from_etdump_flatcc(content), etdump.read(content)
    assert theirs.version == ours.version and len(theirs.run_data) == len(ours.runs) == 4
    for run, own in zip(theirs.run_data, ours.runs):
        events = [e.profile_event for e in run.events if e.profile_event]
        assert [(e.start_time, e.end_time) for e in events] == [(e.start, e.end) for e in own.events]
        assert [e.name or e.delegate_debug_id_str for e in events] == [e.name for e in own.events]
    inspector = Inspector(etdump_path=path, debug_buffer_path=f"{sys.argv[1]}/{name}.bin")
    blocks = {block.name: block for block in inspector.event_blocks}
    names = [event.name for event in blocks["Execute"].events]
    wanted = {e.name for run in ours.runs for e in run.events if run.name == "Execute"}
    assert wanted <= set(names), (wanted, names)
    assert all(event.perf_data is None or len(event.perf_data.raw) == 3 for event in blocks["Execute"].events)
    print(name, "read")
"""
    said = child("-c", script, tmp_path, PYTHONPATH=with_tests())
    assert "two_dynamic read" in said and "conv_xnnpack read" in said


def with_tests() -> str:
    return os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))


# ---- one process -------------------------------------------------------------------------------------------

PARTS = {
    "torch": "import torch",
    "official": "from executorch.runtime import Runtime as Official; Official.get()",
    "et_cffi": "import et_cffi; et_cffi.Runtime.get()",
    "plug-in": "import executorch.kernels.quantized",
}
ORDERS = [
    ("torch", "official", "et_cffi", "plug-in"),
    ("et_cffi", "official", "plug-in", "torch"),
    ("et_cffi", "torch", "plug-in", "official"),
    ("plug-in", "et_cffi", "official", "torch"),
    ("plug-in", "official", "et_cffi", "torch"),
    ("official", "plug-in", "et_cffi", "torch"),
]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_one_process_holds_everything(order):
    script = (
        "import warnings; warnings.simplefilter('ignore')\n"
        + "\n".join(PARTS[part] for part in order)
        + """
import numpy, torch, model_index
from executorch.runtime import Runtime as Official
import et_cffi
for name in ("add", "conv_xnnpack", "quantized_portable", "quantized_xnnpack", "quantized_embedding"):
    (case, *_) = model_index.cases(name, "forward")
    inputs = [torch.from_numpy(x) for x in case.inputs]
    for runtime in (Official.get(), et_cffi.Runtime.get()):
        for _ in range(2):
            method = runtime.load_program(str(model_index.path(name))).load_method("forward")
            result = method.execute(inputs)[0]
            assert type(result) is torch.Tensor
            assert numpy.allclose(result.numpy(), case.outputs[0], case.rtol, case.atol), (name, runtime)
with open("/proc/self/maps") as maps:
    found = {line.split()[-1] for line in maps if line.rstrip().endswith("/libexecutorch.so")}
assert len(found) == 1, found
print("everything ran")
"""
    )
    assert "everything ran" in child("-c", script, PYTHONPATH=with_tests())

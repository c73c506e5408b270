"""What the build promises: the generated header, the bundled libraries, the choice of an SDK."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import et_cffi

TREE = Path(__file__).resolve().parent.parent
PACKAGE = Path(et_cffi.__file__).parent
LIB = PACKAGE / "lib"
GENERATED = ["build_ffi.py", "sdk.py", "csrc/et_cffi.h.in", "csrc/tables.inc", "include/et_cffi.h"]

linux_only = pytest.mark.linux


@pytest.fixture
def sdk(monkeypatch):
    """The module sdk.py of this tree, which is not installed."""
    monkeypatch.syspath_prepend(str(TREE))
    sys.modules.pop("sdk", None)
    import sdk

    yield sdk
    del sys.modules["sdk"]


@pytest.fixture
def sdk_root(sdk):
    # The one that this tree was built with; fetched again where the package came as a wheel.
    return sdk.find().root


@pytest.fixture
def tree(tmp_path):
    """A copy of what build_ffi.py reads and writes."""
    for name in GENERATED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(TREE / name, tmp_path / name)
    return tmp_path


def build_ffi(tree: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / "build_ffi.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=tree)


# ---- the generated header ---------------------------------------------------------------------------------


def test_header_is_current(sdk_root):
    done = build_ffi(TREE, "--sdk", sdk_root, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_check_shows_what_was_edited(tree, sdk_root):
    header = tree / "include" / "et_cffi.h"
    header.write_text(header.read_text().replace("ETCFFI_Error_NotFound = 32", "ETCFFI_Error_NotFound = 33"))
    done = build_ffi(tree, "--sdk", sdk_root, "--check")
    assert done.returncode == 1
    assert "-  ETCFFI_Error_NotFound = 33" in done.stdout
    assert "+  ETCFFI_Error_NotFound = 32" in done.stdout
    assert build_ffi(tree, "--sdk", sdk_root).returncode == 0
    assert header.read_text() == (TREE / "include" / "et_cffi.h").read_text()


def changed_sdk(sdk_root: Path, target: Path, header: str, old: str, new: str) -> Path:
    root = target / "executorch"
    shutil.copytree(sdk_root / "include", root / "include")
    (root / "lib").symlink_to(sdk_root / "lib")
    shutil.copy(sdk_root / "version.py", root)
    path = root / "include" / "executorch" / "runtime" / "core" / header
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return root


@pytest.mark.parametrize(
    ("header", "old", "new", "shown"),
    [
        ("error.h", "NotFound = 0x20,", "NotFound = 0x20, Novel = 0x77,", "ETCFFI_Error_Novel = 119"),
        ("tag.h", "_(ListScalar)", "_(Novel) _(ListScalar)", "ETCFFI_Tag_Novel = 10"),
        ("portable_type/device.h", "CUDA = 1,", "CUDA = 1, Novel,", "ETCFFI_DeviceType_Novel = 2"),
        (
            "portable_type/scalar_type.h",
            "_(bool, Bool)",
            "_(bool, New) _(bool, Bool)",
            "ETCFFI_ScalarType_New = 11",
        ),
    ],
)
def test_a_change_in_the_sdk_is_noticed(tree, tmp_path, sdk_root, header, old, new, shown):
    changed = changed_sdk(sdk_root, tmp_path / "changed", header, old, new)
    done = build_ffi(tree, "--sdk", changed, "--check")
    assert done.returncode == 1
    assert f"+  {shown}" in done.stdout


@pytest.mark.parametrize("new", ["CUDA = CPU + 1,", "CUDA = sizeof(int),"])
def test_what_cannot_be_read_is_an_error(tree, tmp_path, sdk_root, new):
    changed = changed_sdk(sdk_root, tmp_path / "changed", "portable_type/device.h", "CUDA = 1,", new)
    done = build_ffi(tree, "--sdk", changed)
    assert done.returncode == 1
    assert "cannot read" in done.stderr and new.rstrip(",") in done.stderr


def test_an_edited_template_is_not_built_silently(tree):
    template = tree / "csrc" / "et_cffi.h.in"
    template.write_text(template.read_text().replace("ETCFFI_PINNED = 1", "ETCFFI_PINNED = 2"))
    done = subprocess.run(
        [sys.executable, "-c", "import build_ffi"], capture_output=True, text=True, cwd=tree
    )
    assert done.returncode == 1
    assert "python build_ffi.py" in done.stderr and "Traceback" not in done.stderr


def test_the_installed_header_is_that_of_the_tree():
    installed = Path(et_cffi.get_include(), "et_cffi.h")
    assert installed.read_text() == (TREE / "include" / "et_cffi.h").read_text()


def test_the_installed_header_is_c99_and_cxx(tmp_path):
    source = tmp_path / "use.c"
    source.write_text('#include "et_cffi.h"\nint main(void) { return ETCFFI_Error_Ok; }\n')
    for flags in (["-std=c99"], ["-xc++", "-std=c++17"]):
        command = ["cc", *flags, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
        done = subprocess.run(
            [*command, "-I", et_cffi.get_include(), str(source)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


# ---- DLPack -----------------------------------------------------------------------------------------------

DLPACK = [
    "DLDevice",
    "DLDataType",
    "DLTensor",
    "DLManagedTensor",
    "DLPackVersion",
    "DLManagedTensorVersioned",
]


def canonical_dlpack() -> Path:
    spec = importlib.util.find_spec("tvm_ffi")
    assert spec is not None and spec.submodule_search_locations, "no apache-tvm-ffi"
    return Path(next(iter(spec.submodule_search_locations)), "include")


@pytest.mark.cpython  # apache-tvm-ffi has no wheel for PyPy
def test_dlpack_structures_are_the_canonical_ones(tmp_path):
    include = canonical_dlpack()
    fields = [(struct, name) for struct in DLPACK for name, _ in et_cffi.ffi.typeof(struct).fields]
    lines = [f'  printf("{s} %zu\\n", sizeof({s}));' for s in DLPACK]
    lines += [
        f'  printf("{s}.{f} %zu %zu\\n", offsetof({s}, {f}), sizeof((({s} *)0)->{f}));' for s, f in fields
    ]
    lines += ['  printf("flags %lu %lu\\n", DLPACK_FLAG_BITMASK_READ_ONLY, DLPACK_FLAG_BITMASK_IS_COPIED);']
    lines += ['  printf("major %d\\n", DLPACK_MAJOR_VERSION);']
    source = tmp_path / "sizes.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <dlpack/dlpack.h>\n"
        "int main(void) {\n" + "\n".join(lines) + "\n  return 0;\n}\n"
    )
    subprocess.run(["cc", "-I", str(include), "-o", str(tmp_path / "sizes"), str(source)], check=True)
    theirs = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True).stdout

    ffi, lib = et_cffi.ffi, et_cffi.lib
    ours = [f"{s} {ffi.sizeof(s)}" for s in DLPACK]
    ours += [
        f"{s}.{f} {ffi.offsetof(s, f)} {ffi.sizeof(dict(ffi.typeof(s).fields)[f].type)}" for s, f in fields
    ]
    ours += [f"flags {lib.ETCFFI_DLPACK_READ_ONLY} {lib.ETCFFI_DLPACK_IS_COPIED}"]
    ours += [f"major {lib.ETCFFI_DLPACK_MAJOR}"]
    assert ours == theirs.splitlines()


# ---- the bundled libraries --------------------------------------------------------------------------------


def dynamic_section(path: Path) -> list[tuple[str, str]]:
    text = subprocess.run(["readelf", "-dW", str(path)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\((NEEDED|RUNPATH|RPATH|SONAME)\).*\[(.*)\]", text)


def shared_objects() -> list[Path]:
    return sorted(PACKAGE.rglob("*.so"))


@linux_only
def test_everything_that_is_bundled_is_there(sdk):
    names = {path.name for path in LIB.iterdir() if not path.name.startswith("LICENSE.")}
    assert names == {*sdk.LIBRARIES, "libet_cffi.so", "EXECUTORCH_VERSION"}
    assert (LIB / "EXECUTORCH_VERSION").read_text() == f"{sdk.VERSION}\n"


def test_the_licenses_are_beside_the_libraries():
    """And each is explained: what it is the license of, and where that is."""
    licenses = {path.parent.name: path.read_bytes() for path in TREE.glob("third_party/*/LICENSE")}
    assert {"executorch", "xnnpack", "cpuinfo", "pthreadpool", "fxdiv", "eigen", "flatcc"} < set(licenses)
    assert set(licenses) == {path.name for path in (TREE / "third_party").iterdir() if path.is_dir()}
    installed = {path.suffix[1:]: path.read_bytes() for path in LIB.glob("LICENSE.*")}
    assert installed == licenses
    rows = re.findall(r"^\| ([a-z0-9, ]+) \|", (TREE / "third_party/README.md").read_text(), re.MULTILINE)
    assert {name for row in rows for name in row.split(", ")} == set(licenses)


@linux_only
def test_nothing_links_torch_or_python():
    found = shared_objects()
    needed = {path.name: [value for tag, value in dynamic_section(path) if tag == "NEEDED"] for path in found}
    # What is known to be there, so that a parser that finds nothing does not pass.
    assert "libexecutorch.so" in needed["libet_cffi.so"]
    assert any("libet_cffi.so" in libraries for libraries in needed.values())
    bad = re.compile(r"lib(torch|c10|python|pypy|shm|gomp)")
    assert [(name, each) for name, libraries in needed.items() for each in libraries if bad.match(each)] == []


@linux_only
def test_libraries_find_each_other_first():
    for path in LIB.glob("*.so"):
        runpath = [value for tag, value in dynamic_section(path) if tag in ("RUNPATH", "RPATH")]
        assert len(runpath) == 1 and runpath[0].split(":")[0] == "$ORIGIN", path
        assert ("SONAME", path.name) in dynamic_section(path)


@linux_only
def test_the_wrapper_exports_only_its_own_names():
    command = ["nm", "-D", "--defined-only", "--format=posix", str(LIB / "libet_cffi.so")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    exported = {line.split()[0] for line in text.splitlines()}
    header = (TREE / "include" / "et_cffi.h").read_text()
    assert exported == set(re.findall(r"^ETCFFI_API [^;(]*?\b(etcffi_\w+)\(", header, re.MULTILINE))


# ---- another libexecutorch in the process -----------------------------------------------------------------


def child(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.fixture
def other(tmp_path):
    """A package directory with a libexecutorch.so of its own, one byte longer than the bundled one."""
    library = tmp_path / "other" / "lib" / "libexecutorch.so"
    library.parent.mkdir(parents=True)
    library.write_bytes((LIB / "libexecutorch.so").read_bytes() + b"\0")
    return library


@linux_only
@pytest.mark.parametrize("states", ["version.py", "EXECUTORCH_VERSION"])
def test_another_version_already_loaded_is_refused(other, states, sdk):
    if states == "version.py":
        (other.parent.parent / states).write_text('__version__ = "1.4.0+cpu"\n')
    else:
        (other.parent / states).write_text("1.4.0\n")
    done = child(f"import ctypes; ctypes.CDLL({str(other)!r}); import et_cffi")
    assert done.returncode == 1
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith("ImportError: ")
    assert "ExecuTorch 1.4.0 " in message and f"ExecuTorch {sdk.VERSION}" in message
    assert str(other) in message and str(LIB / "libexecutorch.so") in message


@linux_only
def test_another_library_of_unknown_version_is_refused(other):
    done = child(f"import ctypes; ctypes.CDLL({str(other)!r}); import et_cffi")
    assert done.returncode == 1
    assert "ImportError" in done.stderr and "unknown version" in done.stderr


@linux_only
def test_a_deleted_library_is_refused_by_name(other):
    done = child(f"import ctypes, os; ctypes.CDLL({str(other)!r}); os.unlink({str(other)!r}); import et_cffi")
    assert done.returncode == 1
    assert "ImportError" in done.stderr and "unknown version" in done.stderr
    assert f"{other} (deleted)" in done.stderr


@linux_only
def test_a_library_beside_the_same_libexecutorch_is_looked_at_too(other):
    """1.5.0 and 1.5.1 have the same libexecutorch, and other libraries beside it."""
    shutil.copy(LIB / "libexecutorch.so", other)
    beside = other.with_name("libexecutorch_threadpool.so")
    beside.write_bytes((LIB / beside.name).read_bytes() + b"\0")
    load = f"import ctypes; ctypes.CDLL({str(other)!r}); ctypes.CDLL({str(beside)!r})"
    done = child(f"{load}; import et_cffi")
    assert done.returncode == 1
    assert "unknown version" in done.stderr and str(beside) in done.stderr and str(LIB) in done.stderr
    # What is not brought along is not looked at.
    beside.rename(beside.with_name("libexecutorch_of_somebody.so"))
    done = child(f"{load.replace(beside.name, 'libexecutorch_of_somebody.so')}; import et_cffi")
    assert done.returncode == 0, done.stderr


@linux_only
@pytest.mark.parametrize("states", ["version.py", "content"])
def test_the_same_version_is_shared(other, states, sdk):
    if states == "version.py":
        (other.parent.parent / states).write_text(f'__version__ = "{sdk.VERSION}+cpu"\n')
    else:
        shutil.copy(LIB / "libexecutorch.so", other)
    done = child(
        f"import ctypes; ctypes.CDLL({str(other)!r}); import et_cffi\n"
        "maps = open('/proc/self/maps').read()\n"
        "print({line.split()[-1] for line in maps.splitlines() if line.endswith('/libexecutorch.so')})"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str({str(other)})


# ---- the choice of an SDK ---------------------------------------------------------------------------------


def fake_sdk(root: Path, sdk, version: str) -> Path:
    (root / "include" / "executorch").mkdir(parents=True)
    (root / "lib").mkdir()
    for name in sdk.LIBRARIES:
        (root / "lib" / name).touch()
    (root / "version.py").write_text(f'__version__ = "{version}"\n')
    return root


@pytest.mark.parametrize("below", ["", "executorch"])
def test_sdk_from_the_environment(sdk, tmp_path, monkeypatch, below):
    root = fake_sdk(tmp_path / below, sdk, f"{sdk.VERSION}+cpu")
    monkeypatch.setenv("ET_CFFI_SDK", str(tmp_path))
    assert sdk.find(fetch=False).root == root


def test_sdk_of_another_version_is_refused(sdk, tmp_path, monkeypatch):
    fake_sdk(tmp_path, sdk, "1.4.0")
    monkeypatch.setenv("ET_CFFI_SDK", str(tmp_path))
    with pytest.raises(sdk.SDKError, match=rf"1\.4\.0.* {re.escape(sdk.VERSION)} is needed"):
        sdk.find(fetch=False)


def test_sdk_that_is_none(sdk, tmp_path, monkeypatch):
    monkeypatch.setenv("ET_CFFI_SDK", str(tmp_path))
    with pytest.raises(sdk.SDKError, match="neither it nor its executorch/ holds both"):
        sdk.find(fetch=False)


def test_a_relative_sdk_is_said_to_be_one(sdk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ET_CFFI_SDK", "unpacked")
    with pytest.raises(sdk.SDKError, match=rf"is unpacked, taken from {re.escape(str(tmp_path))} where"):
        sdk.find(fetch=False)
    fake_sdk(tmp_path / "unpacked", sdk, sdk.VERSION)
    assert sdk.find(fetch=False).root == tmp_path / "unpacked"


def test_sdk_that_lacks_a_library(sdk, tmp_path, monkeypatch):
    root = fake_sdk(tmp_path, sdk, sdk.VERSION)
    (root / "lib" / sdk.LIBRARIES[-1]).unlink()
    monkeypatch.setenv("ET_CFFI_SDK", str(tmp_path))
    with pytest.raises(sdk.SDKError, match=sdk.LIBRARIES[-1]):
        sdk.find(fetch=False)


def test_installed_sdk_of_another_version_is_left_aside(sdk, tmp_path, monkeypatch, capsys):
    fake_sdk(tmp_path / "executorch", sdk, "1.4.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert sdk.from_installed() is None
    assert "1.4.0" in capsys.readouterr().err


def test_installed_sdk_is_found_and_not_imported(sdk, tmp_path, monkeypatch):
    root = fake_sdk(tmp_path / "executorch", sdk, sdk.VERSION)
    (root / "__init__.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert sdk.from_installed().root == root


@pytest.fixture
def no_sdk(sdk, tmp_path, monkeypatch):
    """Neither the variable, nor an installed one, nor a cached one; the index is what the test makes it."""
    monkeypatch.delenv("ET_CFFI_SDK", raising=False)
    monkeypatch.setattr(sdk, "from_installed", lambda: None)
    monkeypatch.setattr(sdk, "HERE", tmp_path)
    monkeypatch.setattr(sdk.sysconfig, "get_platform", lambda: "linux-x86_64")
    return sdk


def fake_wheel(sdk, path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("executorch/include/executorch/x.h", "")
        archive.writestr("executorch/schema/program.fbs", "")
        archive.writestr("executorch/exir/junk.py", "")
        archive.writestr("executorch/version.py", f'__version__ = "{sdk.VERSION}"\n')
        for name in sdk.LIBRARIES:
            archive.writestr(f"executorch/lib/{name}", "")
    return path


def test_fetched_sdk_is_checked_unpacked_and_kept(no_sdk, tmp_path, monkeypatch):
    wheel = fake_wheel(no_sdk, tmp_path / "executorch-x.whl")
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    fetched = []
    monkeypatch.setattr(no_sdk, "download", lambda tag, scratch: fetched.append(tag) or wheel)
    monkeypatch.setitem(no_sdk.WHEELS, "linux-x86_64", ("sometag", right))
    root = no_sdk.find().root
    assert (root / "include/executorch/x.h").exists() and not (root / "exir").exists()
    assert no_sdk.find().root == root
    assert fetched == ["sometag"]
    assert [path.name for path in (tmp_path / "build").iterdir()] == [root.parent.name]


def test_fetched_sdk_with_the_wrong_hash_is_refused(no_sdk, tmp_path, monkeypatch):
    wheel = fake_wheel(no_sdk, tmp_path / "executorch-x.whl")
    monkeypatch.setattr(no_sdk, "download", lambda tag, scratch: wheel)
    found, wanted = hashlib.sha256(wheel.read_bytes()).hexdigest(), no_sdk.WHEELS["linux-x86_64"][1]
    with pytest.raises(no_sdk.SDKError) as caught:
        no_sdk.find()
    assert found in str(caught.value) and wanted in str(caught.value)
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize("platform", ["linux-x86_64", "linux-riscv64"])
def test_no_sdk_is_one_message_that_says_what_to_do(no_sdk, monkeypatch, platform):
    monkeypatch.setattr(no_sdk.sysconfig, "get_platform", lambda: platform)
    monkeypatch.setattr(
        no_sdk.subprocess,
        "run",
        lambda command, **_: subprocess.CompletedProcess(command, 1, "", "ERROR: no network\n"),
    )
    with pytest.raises(no_sdk.SDKError) as caught:
        no_sdk.find()
    said = str(caught.value)
    assert platform.replace("linux-x86_64", "no network") in said
    for way in ("ET_CFFI_SDK", f"executorch=={no_sdk.VERSION}", "package index"):
        assert way in said

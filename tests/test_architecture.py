"""docs/architecture.md and its picture name what is there: files, functions, and who imports whom."""

from __future__ import annotations

import ast
import html
import re
import runpy

import pytest
from doc_blocks import ROOT

PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PICTURE = ROOT / "docs/architecture.svg"
PYTHON = {path.name for path in (ROOT / "et_cffi").glob("*.py")}


def code_in_picture():
    return html.unescape(
        "\n".join(re.findall(r'<tspan class="code">(.*?)</tspan>', PICTURE.read_text("utf-8")))
    )


def file_of(name):
    """A file by its path, or a Python module by its name."""
    path = ROOT / name
    return path if path.is_file() or "/" in name else ROOT / "et_cffi" / name


def source(name):
    path = file_of(name)
    text = path.read_text(encoding="utf-8")
    return ast.dump(ast.parse(text)) if path.suffix == ".py" else re.sub(r"//.*|/\*.*?\*/", "", text)


def defines(name, file):
    text = source(file)
    if file.endswith(".py"):
        return re.search(rf"(?:FunctionDef|ClassDef)\(name='{name}'", text) is not None
    before = r"^ *(?!return\b)[\w:<>\[]+[\w \[\]<>:&*]*[ *&:]"
    return re.search(rf"{before}{name}(?:\(|\b[^;()]*\{{)", text, re.MULTILINE) is not None


# A name, and the file that the words behind it say it is in.
NAMED = re.findall(r"`(\w+)(?:\(\))?`,?\s+(?:in\s+|\()`([\w/]+\.\w+)`", PAGE + PICTURE.read_text("utf-8"))
NAMED += re.findall(
    r'>(\w+)(?:\(\))?</tspan>(?: in |<[^>]*>| \()*<tspan class="code">([\w/]+\.\w+)<',
    PICTURE.read_text("utf-8"),
)


@pytest.mark.parametrize(("name", "file"), sorted(set(NAMED)))
def test_a_name_is_defined_in_its_file(name, file):
    assert defines(name, file)


def test_every_function_of_the_picture_is_defined_somewhere():
    files = [*(ROOT / "et_cffi").glob("*.py"), *(ROOT / "csrc").glob("*.*")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    names = set(re.findall(r"^(\w+)\(\)$", code_in_picture(), re.MULTILINE))
    assert len(names) > 15
    for name in names:
        assert re.search(rf"(?:def |[\w>] \*?(?:\w+::)*){name}\(", text), name
    for struct in ("etcffi_value", "etcffi_tensor"):
        assert struct in code_in_picture()
        assert f"struct {struct}" in text


def test_every_file_that_is_named_is_there():
    named = set(re.findall(r"`([\w/]+\.(?:py|cpp|c|h|inc|map|in|h\.in))`", PAGE + code_in_picture()))
    named |= set(re.findall(r"^([\w/]+\.\w+)$", code_in_picture(), re.MULTILINE))
    assert len(named) > 40
    assert [name for name in sorted(named) if not file_of(name).is_file()] == []


def test_every_file_is_named():
    python, native = [
        part.partition("\n\n## ")[0] for part in re.split(r"^## Files: .*$", PAGE, flags=re.M)[1:]
    ]
    assert set(re.findall(r"`(\w+\.py)`", python)) - {"_lib.py"} == PYTHON - {"_lib.py"}
    own = {path.name for path in (ROOT / "csrc").iterdir() if path.is_file()}
    assert set(re.findall(r"`csrc/([\w.]+)`", native)) == own


def imported_by(path):
    """The modules of the package that a file imports, at its top or within its functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "et_cffi":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("et_cffi."):
            yield node.module.split(".")[1]


def test_who_imports_whom():
    """A file imports from rows above its own only."""
    rows = re.findall(r"^\| ((?:`(?:\w+\.py|cli/)` ?)+) \|", PAGE, re.MULTILINE)
    row_of = {name: i for i, row in enumerate(rows) for name in re.findall(r"`([\w.]+)", row)}
    assert set(row_of) == PYTHON | {"cli"}
    for path in (ROOT / "et_cffi").glob("*.py"):
        for module in imported_by(path):
            name = f"{module}.py"
            if name in row_of:
                assert row_of[name] < row_of[path.name], f"{path.name} imports {name}"
    for path in (ROOT / "et_cffi").rglob("*.py"):
        native = {"_et_cffi", "_capsule", "_cpython"} & set(imported_by(path))
        assert not native or path.name == "_lib.py", path


def test_the_picture_is_what_its_script_draws(monkeypatch):
    drawn = runpy.run_path(str(ROOT / "tools/draw_architecture.py"))["draw"]()
    assert PICTURE.read_text(encoding="utf-8") == drawn
    # It is read on dark pages too.
    assert '<rect width="1000" height="940" rx="8" fill="#ffffff"/>' in drawn


def test_a_name_that_is_not_there_is_noticed():
    assert defines("check_input", "csrc/input.cpp")
    assert not defines("check_input", "csrc/method.cpp")
    assert not defines("no_such_function", "csrc/input.cpp")
    assert defines("as_inputs", "et_cffi/_inputs.py")
    assert not defines("as_inputs", "et_cffi/method.py")

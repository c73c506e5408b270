"""docs/errors.md: every message of the sources, with its cause and its cure, and no other."""

from __future__ import annotations

import builtins
import re

import error_messages
import pytest
from error_messages import ROOT, c_messages, messages, python_messages

from et_cffi import errors, ffi, lib
from et_cffi.cli.failure import UsageError

PAGE = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
OTHERS = {"SDKError", "UsageError", "ArgumentTypeError"}  # of the build and of the command line


def sections():
    """What stands under each heading that names an exception."""
    parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    return {heading: text for heading, text in zip(parts[1::2], parts[2::2]) if heading.endswith("Error")}


def entries(text):
    """Messages, and the paragraph that follows them."""
    for block in re.finditer(r"((?:^- `.+`\n)+)\n((?:(?!- `|#).+\n|\n)*)", text, re.MULTILINE):
        yield re.findall(r"^- `(.+)`$", block[1], re.MULTILINE), block[2]


def documented():
    return [
        (kind, message) for kind, text in sections().items() for said, _ in entries(text) for message in said
    ]


def test_every_message_has_its_entry():
    written = set(documented())
    missing = [
        f"{said[0]}: {said[1]}  [{place}]" for said, place in messages().items() if said not in written
    ]
    assert not missing, "write these into docs/errors.md:\n" + "\n".join(sorted(missing))


def test_every_entry_is_a_message():
    gone = set(documented()) - set(messages())
    assert not gone, "these are in docs/errors.md, and nothing says them:\n" + "\n".join(
        map(str, sorted(gone))
    )


def test_no_message_has_two_entries():
    assert len(documented()) == len(set(documented()))


@pytest.mark.parametrize("kind", sections())
def test_every_entry_has_a_cause_and_a_cure(kind):
    for said, text in entries(sections()[kind]):
        assert re.search(r"\*Cause:\*\s+[\w`]", text), said
        assert re.search(r"\*Cure:\*\s+[\w`]", text), said


@pytest.mark.parametrize("kind", sections())
def test_the_builtin_that_an_exception_is_too(kind):
    also = re.findall(r"^(?:Also an? |A )`(\w+)`", sections()[kind], re.MULTILINE)
    if kind in OTHERS:
        assert not also
        return
    known = getattr(errors, kind, None) or getattr(builtins, kind)
    if not issubclass(known, errors.ExecuTorchError):
        assert not also
        return
    own = {base.__name__ for base in known.__bases__ if base is not errors.ExecuTorchError}
    assert set(also) == own - {"RuntimeError"}


def test_every_exception_has_its_section():
    own = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ExecuTorchError)
    }
    assert own | OTHERS <= set(sections())
    assert UsageError.__name__ in sections()


def test_every_answer_of_the_runtime_is_in_the_table():
    table = dict(re.findall(r"^\| `(\w+)` \| (0x[0-9a-f]+) \|", PAGE, re.MULTILINE))
    header = (ROOT / "include/et_cffi.h").read_text(encoding="utf-8")
    numbers = {name: int(value) for name, value in re.findall(r"ETCFFI_Error_(\w+) = (\d+)", header)}
    del numbers["Ok"]
    assert {name: int(value, 16) for name, value in table.items()} == numbers
    for name, number in numbers.items():
        assert ffi.string(lib.etcffi_status_name(number)).decode() == name


# ---- the reading of the sources, which the tests above rest on ---------------------------------------------


def test_python_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(error_messages, "ROOT", tmp_path)
    source = tmp_path / "x.py"
    source.write_text(
        "W = 'a constant'\n"
        "V = 'the method {} is {:x}'\n"
        "def f(x):\n"
        "    raise ShapeError(f'it has {len(x)} and {x!r}' + ('; turn it round' if x else '; leave it be'))\n"
        "    raise errors.DtypeError(W) from None\n"
        "    raise ThreadError(V.format(x.name(), 1))\n"
        "    raise failure(status)\n"
    )
    assert {(kind, text) for kind, text, _ in python_messages(source)} == {
        ("ShapeError", "it has … and …; turn it round"),
        ("ShapeError", "it has … and …; leave it be"),
        ("DtypeError", "a constant"),
        ("ThreadError", "the method … is …"),
    }
    source.write_text("raise whatever\n")
    with pytest.raises(AssertionError, match="what are the words"):
        list(python_messages(source))


def test_cpp_is_read(tmp_path):
    source = tmp_path / "x.cpp"
    source.write_text(
        "void f() {\n"
        '  const std::string what = std::string("loading \'") + name + "\'";\n'
        '  // fail(ETCFFI_BadShape, "in a comment");\n'
        '  fail(ETCFFI_BadShape, what + " has " + std::to_string(n) + (n == 1 ? " part" : " parts") + "; "\n'
        '       "split" + (odd ? " for the odd ones" : " for the even ones: " + list(a, b)));\n'
        '  check(result.error(), "reading " + what);\n'
        '  PyErr_Format(PyExc_TypeError, "not %R, \\"%.*s\\"", x);\n'
        "}\n"
    )
    assert {(kind, text) for kind, text, _ in c_messages(source)} == {
        ("ShapeError", "loading '…' has …; split for the odd ones"),
        ("ShapeError", "loading '…' has …; split for the even ones: …"),
        ("ExecuTorchError", "reading loading '…' failed with … (…)"),
        ("TypeError", 'not …, "…"'),
    }

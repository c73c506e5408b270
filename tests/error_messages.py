"""The messages of all errors, as the sources have them: what varies in one is written as `…`.

A message that is made of several parts is put together. The ways of a conditional are messages of their own,
unless they differ in a word only. A variable that was made of words in the same function stands for these.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from pathlib import Path

from et_cffi import errors, lib

ROOT = Path(__file__).resolve().parent.parent
HOLE = "…"
A_WORD = 9  # characters: a conditional between shorter texts is a plural, or "at most "

# Raised with no words of their own there: a C call's message, an exception that is handed on, and what is
# found by its type only.
WORDLESS = re.compile(
    r"failure\(.*\)|self\._error|NotImplementedError|"
    r"ImportError\('et_cffi: ' \+ ffi\.string\(lib\.etcffi_last_message\(\)\)\.decode\(\)\)"
)


def squeezed(text):
    """What varies may be several things side by side."""
    return re.sub(f"{HOLE}(\\s*{HOLE})+", HOLE, text)


def joined(parts):
    """Every way to put together parts, each of which is a list of texts."""
    return [squeezed("".join(way)) for way in itertools.product(*parts)]


def either(ways):
    return [HOLE] if all(len(way) <= A_WORD for way in ways) else ways


# ---- Python ------------------------------------------------------------------------------------------------


def python_texts(node, constants):
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return joined([python_texts(value, constants) for value in node.values])
    if isinstance(node, ast.FormattedValue):
        return python_texts(node.value, constants) if isinstance(node.value, ast.IfExp) else [HOLE]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return joined([python_texts(node.left, constants), python_texts(node.right, constants)])
    if isinstance(node, ast.IfExp):
        return either(python_texts(node.body, constants) + python_texts(node.orelse, constants))
    if isinstance(node, ast.Name):
        return constants.get(node.id, [HOLE])
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".format"):
        return [re.sub(r"\{.*?\}", HOLE, text) for text in python_texts(node.func.value, constants)]
    return [HOLE]


def python_messages(path):
    """Class and text of all that a file raises. (`missing` is how sdk.py raises.)"""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = {
        node.targets[0].id: python_texts(node.value, {})
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            if WORDLESS.fullmatch(ast.unparse(node.exc)):
                continue
            called = node.exc
            if isinstance(called, ast.Name) and called.id == "AssertionError":
                continue
            assert isinstance(called, ast.Call), f"{path.name}:{node.lineno}: what are the words of this?"
            kind, before = ast.unparse(called.func).rpartition(".")[2], ""
            if kind == "SystemExit" or "WHAT_TO_DO" in ast.unparse(called):
                continue  # sdk.py: the words are those of an error, and those of missing()
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "missing":
            called, kind, before = node, "SDKError", "No ExecuTorch SDK: "
        else:
            continue
        for text in python_texts(called.args[0], constants):
            yield kind, before + " ".join(text.split()), f"{path.relative_to(ROOT)}:{node.lineno}"


# ---- C and C++ ---------------------------------------------------------------------------------------------

LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')
COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|/\*.*?\*/|//[^\n]*', re.DOTALL)

# How the sources fail: which argument has the words, which says the exception, and what the function adds.
FAIL, CHECK, RAISE = (1, 0, "", ""), (1, None, "", f" failed with {HOLE} ({HOLE})"), (1, 0, "", "")
DAMAGED = f"{HOLE} is damaged: "
CALLS = {
    "": {
        "fail": FAIL,
        "etcffi::fail": FAIL,
        "check": CHECK,
        "etcffi::check": CHECK,
        "PyErr_SetString": RAISE,
        "PyErr_Format": RAISE,
    },
    "validate.cpp": {
        "damaged": (0, "ETCFFI_BadFile", f"{DAMAGED}{HOLE}: ", ""),
        "require": (1, "ETCFFI_BadFile", f"{DAMAGED}{HOLE}: ", ""),
    },
    "xnnpack.cpp": {
        "require": (1, "ETCFFI_BadFile", f"{DAMAGED}method '{HOLE}', delegate {HOLE} (XnnpackBackend): ", ""),
    },
    "data_map.cpp": {"damaged": (1, "ETCFFI_BadData", DAMAGED, "")},
    "input.cpp": {"fail_for_shape": (2, "ETCFFI_BadShape", f"{HOLE} has the shape {HOLE}", "")},
}


def pieces(text, separator):
    """Splits at a separator that is in no string and in no bracket."""
    found, depth, start, i = [], 0, 0, 0
    while i < len(text):
        literal = LITERAL.match(text, i)
        if literal:
            i = literal.end()
        elif text[i : i + 2] in {"::", "->", "++"}:
            i += 2
        else:
            depth += (text[i] in "([{") - (text[i] in ")]}")
            if depth == 0 and text[i] == separator:
                found.append(text[start:i])
                start = i + 1
            i += 1
    return [*found, text[start:]]


def arguments(text, start):
    """Those of a call, whose bracket opens just before `start`."""
    depth, i = 1, start
    while depth:
        literal = LITERAL.match(text, i)
        i = literal.end() if literal else i + 1
        depth += 0 if literal else {"(": 1, ")": -1}.get(text[i - 1], 0)
    return [part.strip() for part in pieces(text[start : i - 1], ",")]


def c_texts(expression, variables):
    """The ways that a text may read. Conditionals on the same condition go the same way.

    `variables` has the text of each variable, and the expression that each function of words returns.
    """
    asked = {}
    c_text(expression, variables, asked)
    ways = itertools.product((True, False), repeat=len(asked))
    return list(dict.fromkeys(c_text(expression, variables, dict(zip(asked, way))) for way in ways))


def c_text(expression, variables, chosen):
    """The text where the conditions are as `chosen` says; what it says nothing of is put down there."""
    expression = expression.strip()
    wrapped = re.match(r"(std::string|std::move)?\(", expression)
    if wrapped:
        inner = arguments(expression, wrapped.end())
        if len(inner) == 1 and expression == f"{wrapped[0]}{inner[0]})":
            return c_text(inner[0], variables, chosen)
    condition, *ways = pieces(expression, "?")
    if ways:
        first, *second = pieces("?".join(ways), ":")
        both = [c_text(way, variables, chosen) for way in (first, ":".join(second))]
        if all(len(way) <= A_WORD for way in both):
            return HOLE
        return both[0] if chosen.setdefault(condition.strip(), True) else both[1]
    terms = pieces(expression, "+")
    if len(terms) > 1:
        return squeezed("".join(c_text(term, variables, chosen) for term in terms))
    words = LITERAL.findall(expression)
    if words and not LITERAL.sub("", expression).strip():
        return squeezed("".join(ast.literal_eval(word) for word in words))
    called = re.fullmatch(r"(\w+)\(\w+\)", expression)
    if called and called[1] in variables:
        return c_text(variables[called[1]], {}, chosen)
    return variables.get(expression, HOLE)


def exception_of(status):
    """The exception for a status by its name in C, or for the name of an exception of Python's."""
    if status is None:
        return "ExecuTorchError"
    if status.startswith("PyExc_"):
        return status[len("PyExc_") :]
    return errors._BY_STATUS.get(getattr(lib, status), errors.ExecuTorchError).__name__


def c_messages(path):
    text = COMMENT.sub(lambda match: match[1] or "", path.read_text(encoding="utf-8"))
    calls = {**CALLS[""], **CALLS.get(path.name, {})}
    # A function that does nothing but say words.
    returning = r"^(?:std::string|const char \*) ?(\w+)\([^)]*\) \{\s*return ([^;]*);\s*\}"
    sayings = dict(re.findall(returning, text, re.MULTILINE))
    # Words that a name may begin with are a part of the name.
    sayings = {name: re.sub(r'^\([^()]* \? "[^"]*" : ""\) \+', "", said) for name, said in sayings.items()}
    frames = {f"{DAMAGED}{HOLE}"} if path.name == "validate.cpp" else set()
    frames |= {squeezed(before + HOLE) for _, _, before, _ in CALLS.get(path.name, {}).values()}
    names = "|".join(re.escape(name) for name in sorted(calls, key=len, reverse=True))
    for match in re.finditer(rf"(?<![\w:>.])({names})\(", text):
        place, status, before, after = calls[match[1]]
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if re.search(r"\bvoid $", line):  # the function itself
            continue
        given = arguments(text, match.end())
        if given[0] == "status":  # check(), which hands on what it was given
            continue
        kind = exception_of(given[status] if isinstance(status, int) else status)
        function = text.rfind("\n}\n", 0, match.start()) + 1
        made = re.finditer(r"const std::string (\w+) =(.*?);", text[function : match.start()], re.DOTALL)
        variables = {**sayings, **{one[1]: c_text(one[2], sayings, {}) for one in made}}
        for words in c_texts(given[place], variables):
            if match[1].startswith("PyErr"):
                words = re.sub(r"%[.*]*[a-zA-Z]", HOLE, words)
            message = squeezed(before + words + after)
            if message in {HOLE, *frames}:
                continue  # words that are counted where they are
            yield kind, message, f"csrc/{path.name}:{text.count(chr(10), 0, match.start()) + 1}"
    for made in re.finditer(r"last_message = ([^;]*\"[^;]*);\s*return (ETCFFI_\w+);", text):
        for words in c_texts(made[1], {}):
            yield exception_of(made[2]), words, f"csrc/{path.name}"


@functools.cache
def messages():
    """Where the sources have it, by exception and message."""
    found = {}
    for path in [*sorted((ROOT / "et_cffi").rglob("*.py")), ROOT / "sdk.py"]:
        for kind, text, place in python_messages(path):
            found[kind, text] = place
    for pattern in ("*.cpp", "*.c", "*.h"):
        for path in sorted((ROOT / "csrc").glob(pattern)):
            for kind, text, place in c_messages(path):
                found[kind, text] = place
    return found


if __name__ == "__main__":
    for (kind, message), place in sorted(messages().items()):
        print(f"{kind}: {message}    [{place}]")

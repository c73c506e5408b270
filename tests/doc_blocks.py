"""The fenced blocks of the documentation, and how each is run.

A fence says what its block is: a language, and words that say where it runs. What is not in KINDS fails.

    python              run, in a process of its own
    python continued    run in one process, after the block before it
    python cpython      the same as `python`, on CPython only (`continued` may follow)
    python torch        run by `pytest -m torch`, beside torch and executorch (`continued` may follow)
    python device       run by tests/device/test_device.py, on the test device
    python gpu          compiled; to run it takes a GPU
    python declaration  parsed; `python tools/generate_api.py --check` compares it with the source
    sh                  run by bash, which stops at the first failure
    sh install          run by `nox -s readme`, in a clone and an environment of its own
    sh nox              `nox -s NAME`, and nothing else: the session has to exist, and CI runs it
    sh export           `nox -s torch` does the same; the packages have to be its own, the scripts to exist
    sh dist             `nox -s dist` does the same; read by bash
    sh measure          takes minutes; the script has to exist, and tests/test_benchmarks.py runs its parts
    sh gpu              read by bash; to run it takes a GPU
    console             commands after "$ ", and exactly what they print
    c, cpp              compiled
    json, toml          parsed
    text                no code: figures that were measured, a drawing
    text output         exactly what the block before it printed

With file=NAME behind these words, the block is the content of that file, for the blocks after it. A page's
blocks run in their order, in one directory, from which the repository's own files are seen as from its root.
"print(...)  # words" has to print these words.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import native_build

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Pages whose console blocks print what differs from run to run, and the files that run them.
OWN_TESTS = {
    "docs/cli.md": ["test_cli_docs.py"],
    "docs/examples.md": ["test_examples.py", "examples_with_packages.py"],
}

ELSEWHERE = {"device", "gpu", "declaration", "install", "nox", "export", "dist", "measure"}
PYTHON = {"", "continued", "cpython", "cpython continued", "torch", "torch continued"}
KINDS = {
    "python": PYTHON | {"device", "gpu", "declaration"},
    "sh": {"", "install", "nox", "export", "dist", "measure", "gpu"},
    "console": {""},
    "c": {""},
    "cpp": {""},
    "json": {""},
    "toml": {""},
    "text": {"", "output"},
}


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    words: str
    file: str
    text: str

    @property
    def known(self) -> bool:
        return self.words in KINDS.get(self.language, {"" if self.file else None})

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def read(page: Path) -> list[Block]:
    """A page's blocks. Every fence is one of three backticks at the beginning of a line."""
    name, found, begun = page.relative_to(ROOT).as_posix(), [], None
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            continue
        if begun is None:
            begun = number
            continue
        assert line.strip() == "```", f"{name}:{number}: the end of a fence has no words"
        language, *words = lines[begun - 1][3:].split() or [""]
        files = [word[len("file=") :] for word in words if word.startswith("file=")]
        rest = " ".join(word for word in words if not word.startswith("file="))
        text = "".join(lines[begun : number - 1])
        found.append(Block(name, begun, language, rest, files[0] if files else "", text))
        begun = None
    assert begun is None, f"{name}:{begun}: a fence that does not end"
    return found


def prepare(directory: Path) -> Path:
    """A directory that looks like the repository's root, without its et_cffi/: the installed one is meant."""
    for path in ROOT.iterdir():
        if path.name not in {"et_cffi", "build"} and not path.name.startswith("."):
            (directory / path.name).symlink_to(path)
    return directory


def environment(block: Block) -> dict[str, str]:
    """`python` is this one, and $SDK the SDK that the package was built against."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    sdk = {"SDK": str(native_build.sdk())} if "$SDK" in block.text else {}
    return {**os.environ, "PATH": path, "PYTHONIOENCODING": "utf-8", **sdk}


def run(block: Block, command: list[str], directory: Path) -> str:
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", cwd=directory, env=environment(block), timeout=600
    )
    assert done.returncode == 0, f"{block.place}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_python(block: Block, code: str, directory: Path) -> str:
    """Prints what it says it prints. Lines are counted as in the page."""
    script = directory / ".block.py"
    script.write_text(code, encoding="utf-8")
    launch = "import sys, pathlib as p; exec(compile(p.Path(sys.argv[1]).read_bytes(), sys.argv[1], 'exec'))"
    strict = [] if "torch" in block.words else ["-W", "error"]  # the exporter warns on its own account
    printed = run(block, [sys.executable, *strict, "-c", launch, script.name], directory)
    for words in re.findall(r"^ *print\(.*\)  # (.*)$", block.text, re.MULTILINE):
        assert words in printed.splitlines(), f"{block.place}: {words!r} is not in\n{printed}"
    return printed


def compile_native(block: Block, directory: Path) -> None:
    """A block of C has to be C99, one of C++ C++17; both see et_cffi.h and ExecuTorch's headers."""
    standard = "-std=c99" if block.language == "c" else "-std=c++17"
    include = native_build.sdk() / "include"
    c10 = include / "executorch/runtime/core/portable_type/c10"
    source = directory / f".block.{block.language}"
    source.write_text(block.text, encoding="utf-8")
    command = ["cc" if block.language == "c" else "c++", standard, "-fsyntax-only", "-Wall", "-Werror"]
    command += ["-DC10_USING_CUSTOM_GENERATED_MACROS", f"-I{ROOT / 'include'}"]
    command += [f"-isystem{path}" for path in (include, c10, sysconfig.get_path("include"))]
    run(block, [*command, source.name], directory)


def run_console(block: Block, directory: Path) -> None:
    printed = ""
    for line in block.text.splitlines():
        if line.startswith("$ "):
            printed += f"{line}\n" + run(block, ["bash", "-ec", line[2:]], directory)
    assert printed == block.text, block.place


def run_page(blocks: list[Block], directory: Path, torch: bool) -> list[Block]:
    """Runs those blocks of a page that run here, in order; those that need torch, or all others."""
    prepare(directory)
    ran, code, printed = [], "", ""
    for block in blocks:
        if block.file:
            target = directory / block.file
            assert not target.is_symlink() and target.resolve().is_relative_to(directory.resolve())
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        elsewhere = ELSEWHERE & set(block.words.split())
        if block.file or elsewhere or ("torch" in block.words) is not torch:
            continue
        if "cpython" in block.words and sys.implementation.name != "cpython":
            continue
        if block.language == "python":
            code = (code if "continued" in block.words else "") + block.text
            printed = run_python(block, code, directory)
        elif block.language == "sh":
            printed = run(block, ["bash", "-ec", block.text], directory)
        elif block.language == "console" and block.page not in OWN_TESTS:
            run_console(block, directory)
        elif block.words == "output":
            assert printed == block.text, f"{block.place}: the block before it prints\n{printed}"
        else:
            continue
        ran.append(block)
    return ran


def check(block: Block, directory: Path, sessions: set[str]) -> None:
    """What holds of a block without running it."""
    if block.language == "python":
        code = block.text
        if block.words == "declaration" and re.match(r"\w+\(", code):
            code = f"def {code.rstrip()}: ..."
        ast.parse(code)
    elif block.language in {"c", "cpp"}:
        compile_native(block, directory)
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "toml" and sys.version_info >= (3, 11):
        import tomllib

        tomllib.loads(block.text)
    elif block.language == "sh":
        run(block, ["bash", "-nc", block.text], directory)
        if block.words == "nox":
            for line in block.text.splitlines():
                words = shlex.split(line, comments=True)
                assert words[:2] == ["nox", "-s"] and words[2] in sessions, f"{block.place}: {line}"
        elif block.words == "measure":
            for line in block.text.splitlines():
                assert line.split()[0] == "python" and (ROOT / line.split()[1]).is_file(), block.place
        elif block.words == "export":
            installed = (ROOT / "noxfile.py").read_text(encoding="utf-8")
            packages = re.findall(r"[\w.-]+==[\w.]+", block.text)
            scripts = re.findall(r"\bpython (\S+)", block.text)
            assert packages and all(package in installed for package in packages), block.place
            assert scripts and all((ROOT / script).is_file() for script in scripts), block.place

"""Writes docs/api.md from the docstrings, with griffe2md (which reads the source and imports nothing).

`python tools/generate_api.py` writes it; with --check it fails if it differs. Needs
`pip install griffe2md==1.5.1 griffelib==2.4.1`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
TARGET = HERE / "docs" / "api.md"
INTRODUCTION = """# The Python API

Generated from the docstrings by `python tools/generate_api.py`; edit those, not this file. Everything below
is imported as it is headed: `from et_cffi import Runtime`, `from et_cffi import etdump`.

"""
# Public modules whose names are not those of et_cffi itself.
MODULES = ["errors", "etdump", "bundled", "inspection", "portable_lib"]


def render() -> str:
    from griffe import GriffeLoader, Parser
    from griffe2md import render_object_docs

    loader = GriffeLoader(search_paths=[str(HERE)], docstring_parser=Parser.google, allow_inspection=False)
    package = loader.load("et_cffi")
    loader.resolve_aliases(external=False)
    config = {
        "show_submodules": False,
        "members_order": "source",
        "summary": False,
        "show_bases": True,
        "inherited_members": False,
        "merge_init_into_class": False,
        "show_signature_annotations": True,
        "line_length": 100,
        "show_object_full_path": False,
        "show_root_members_full_path": True,
        "docstring_options": {"warnings": False},
    }
    parts = [render_object_docs(package, {**config, "members": public(package, MODULES)})]
    for name in MODULES:
        module = package.members[name]
        parts.append(render_object_docs(module, {**config, "members": public(module, [])}))
    # Its links are for a site that gives every object an anchor.
    text = re.sub(r"\[([^\]\[]+)\]\(#[^)]*\)", r"\1", "\n\n".join(parts))
    text = re.sub(r"</?code>", "`", text)
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    # The block right below a heading declares what the heading names; any other is an example, and is run.
    text = re.sub(r"^(#+ `.*`\n+)```python$", r"\1```python declaration", text, flags=re.MULTILINE)
    return INTRODUCTION + re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def public(module: object, leave_out: list[str]) -> list[str]:
    """The names in a module's __all__, or else those defined in it that begin with no underscore."""
    exports = getattr(module, "exports", None)
    if exports:
        return [str(name) for name in exports if str(name) not in leave_out]
    members = getattr(module, "members", {})
    return [name for name, member in members.items() if not name.startswith("_") and not member.is_alias]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is out of date")
    arguments = parser.parse_args()
    text = render()
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
        return
    if arguments.check:
        raise SystemExit("docs/api.md is out of date; run: python tools/generate_api.py")
    TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

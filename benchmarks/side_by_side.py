"""Every benchmark, with every peer: one command, which makes the environments that it is not given.

    python benchmarks/side_by_side.py [--official PYTHON] [--numpy-runtime PYTHON] [--onnxruntime PYTHON]
                                      [--pypy PYTHON] [--json FILE] [--only SECTION ...]

Prints Markdown. The Python that runs it is et_cffi's own side, and has et_cffi and no torch. The environments
that are made take about 3 GB below the --work folder, and stay there for the next time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from peers import HERE, ROOT, Peers, add_arguments, arguments_of, peers_of
from report import header

SECTIONS = ["call_cost", "large", "start", "weights", "threads", "size"]
TORCH = "torch==2.13.0"


def python_of(environment: Path, base: str, *installs: list[str]) -> str:
    """The Python of a virtual environment, made with these calls of pip where it is not there."""
    python = environment / "bin" / "python"
    if not (environment / "complete").exists():
        print(f"making {environment}", file=sys.stderr, flush=True)
        subprocess.run([base, "-m", "venv", "--clear", str(environment)], check=True)
        for packages in installs:
            subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
        (environment / "complete").touch()
    return str(python)


def found(*names: str) -> str:
    """The first of these programs that there is."""
    for name in names:
        path = shutil.which(name)
        # A version manager's stand-in for a version that is not switched on fails.
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    raise SystemExit(f"none of {', '.join(names)} was found: install one, or give the peer's Python")


def with_environments(peers: Peers) -> Peers:
    """The same peers, with an environment for each that was not given."""
    wheels = sorted((ROOT / "build" / "wheels").glob("et_cffi-*-abi3-*.whl"))
    own = str(wheels[-1]) if wheels else str(ROOT)
    folder = peers.work / "environments"
    newer = ("python3.13", "python3.12", "python3")
    return peers._replace(
        official=peers.official
        or python_of(
            folder / "official", found("python3.11", "python3.12", "python3.10"),
            [TORCH], ["executorch==1.5.1", TORCH, "onnx", "onnxscript", own],
        ),
        numpy_runtime=peers.numpy_runtime
        or python_of(folder / "numpy-runtime", found("python3.12", *newer), ["executorch-numpy-runtime"]),
        onnxruntime=peers.onnxruntime
        or python_of(folder / "onnxruntime", found("python3.12", *newer), ["onnxruntime", "numpy"]),
        pypy=peers.pypy or python_of(folder / "pypy", found("pypy3"), [str(ROOT)]),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="these and no others")
    options = parser.parse_args()
    peers = with_environments(peers_of(options))
    print(header(peers), flush=True)
    figures = {}
    for section in options.only:
        part = peers.work / f"{section}.json"
        command = [
            sys.executable,
            str(HERE / f"{section}.py"),
            *arguments_of(peers),
            "--no-header",
            "--json",
            str(part),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"{section}.py failed")
        print(f"## {section}\n\n{done.stdout}", flush=True)
        figures[section] = json.loads(part.read_text())
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What it takes on disk: each side's package with all that it requires, as they are installed.

python benchmarks/size.py [--official PYTHON] [--numpy-runtime PYTHON] [--onnxruntime PYTHON]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

from peers import Peers, add_arguments, peers_of
from report import Record, header, number, table

MIB = 1 << 20


def size_of(files: list[Path]) -> int:
    """Bytes of the files, without the bytecode that Python writes beside them."""
    return sum(file.lstat().st_size for file in files if file.is_file() and "__pycache__" not in file.parts)


def size_of_distribution(name: str) -> int:
    if name == "et-cffi":
        # The directory and not the distribution: an editable install lists none of its files.
        found = importlib.util.find_spec("et_cffi")
        assert found is not None and found.origin is not None
        return size_of(list(Path(found.origin).parent.rglob("*")))
    distribution = importlib.metadata.distribution(name)
    return size_of([Path(str(distribution.locate_file(file))) for file in distribution.files or []])


def with_dependencies(names: list[str]) -> list[str]:
    """The names of the distributions and of all that they require and that is installed."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        try:
            # Its own are named by the caller: it may be on the path and not installed.
            requirements = [] if name == "et-cffi" else importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform or version of Python
        if name not in found:
            found.add(name)
            waiting += [re.split(r"[^\w.-]", text)[0] for text in requirements if "extra ==" not in text]
    return sorted(found)


def sizes_in(python: str, *names: str) -> dict[str, int]:
    """Of each distribution that these require, its bytes, in that Python's environment."""
    command = [python, __file__, "--of", *names]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    sizes: dict[str, int] = json.loads(done.stdout)
    return sizes


def measure(peers: Peers) -> dict[str, dict[str, int]]:
    sides = {"et_cffi": sizes_in(peers.own, "et_cffi", "cffi", "numpy")}
    if peers.official:
        sides["executorch and torch"] = sizes_in(peers.official, "executorch", "torch")
    if peers.numpy_runtime:
        sides["executorch-numpy-runtime"] = sizes_in(peers.numpy_runtime, "executorch-numpy-runtime")
    if peers.onnxruntime:
        sides["onnxruntime"] = sizes_in(peers.onnxruntime, "onnxruntime")
    return sides


def main() -> None:
    if sys.argv[1:2] == ["--of"]:
        print(json.dumps({name: size_of_distribution(name) for name in with_dependencies(sys.argv[2:])}))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    options = parser.parse_args()
    peers = peers_of(options)
    record = Record(peers, options.json)
    if options.header:
        print(header(peers))
    sides = measure(peers)
    own = sum(sides["et_cffi"].values())
    rows = []
    for name, sizes in sides.items():
        alone = sum(sizes.get(re.sub("_", "-", part), 0) for part in name.split(" and "))
        total = sum(sizes.values())
        rows.append([name, number(alone / MIB), str(len(sizes)), number(total / MIB), number(own / total)])
    print(table(["", "MiB", "packages with it", "MiB of all", "et_cffi / this"], rows))
    record.add("bytes", sides)
    record.write()


if __name__ == "__main__":
    main()

"""What it takes on disk: the package with what it depends on, as it is installed here.

    python benchmarks/size.py

Beside what `pip install executorch torch` brings, which `executorch.runtime` needs, where it is installed.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from side_by_side import header

import et_cffi

MIB = 1 << 20


def size_of(files: list[Path]) -> int:
    """Bytes of the files, without the bytecode that Python writes beside them."""
    return sum(file.lstat().st_size for file in files if file.is_file() and "__pycache__" not in file.parts)


def size_of_own() -> int:
    # The directory and not the distribution: an editable install lists none of its files.
    return size_of(list(Path(et_cffi.__file__).parent.rglob("*")))


def size_of_distribution(name: str) -> int:
    distribution = importlib.metadata.distribution(name)
    return size_of([Path(str(distribution.locate_file(file))) for file in distribution.files or []])


def with_dependencies(*names: str) -> set[str]:
    """The names of the distributions and of all that they require and that is installed."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform or version of Python
        if name not in found:
            found.add(name)
            waiting += [re.split(r"[^\w.-]", text)[0] for text in requirements if "extra ==" not in text]
    return found


def line(name: str, size: int, own: int) -> str:
    return f"{name:62} {size / MIB:8.1f} {size / own:8.3g}"


def main() -> None:
    print(header("executorch", "torch", "numpy"))
    needed = with_dependencies("cffi", "numpy")
    own = size_of_own()
    total = own + sum(size_of_distribution(name) for name in needed)
    print(f"{'':62} {'MiB':>8} {'ratio':>8}")
    print(line("et_cffi", own, own))
    try:
        importlib.metadata.version("executorch")
        importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError as error:
        print(line("  with " + ", ".join(sorted(needed)), total, total))
        print(f"\n{error.args[0]} is not installed here: own figures only")
        return
    print(line("executorch", size_of_distribution("executorch"), own), end="\n\n")
    print(line("et_cffi with " + ", ".join(sorted(needed)), total, total))
    peer = with_dependencies("executorch", "torch")
    title = f"executorch with all that it requires, and torch: {len(peer)} packages"
    print(line(title, sum(map(size_of_distribution, peer)), total))


if __name__ == "__main__":
    main()

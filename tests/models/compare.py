"""Compares models that were exported afresh with the committed ones.

    python tests/models/export.py --out FRESH && python tests/models/compare.py FRESH

The bytes of a program may differ from one export to the next; what it takes and gives may not: the same
models, the same inputs and eager outputs (within each model's tolerance), the same description.
"""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent


def differences(committed: pathlib.Path, fresh: pathlib.Path) -> list[str]:
    """One line for each thing that differs."""
    old, new = (json.loads((where / "index.json").read_text())["models"] for where in (committed, fresh))
    found = [f"{name}: only in one of the two" for name in old.keys() ^ new.keys()]
    for name in sorted(old.keys() & new.keys()):
        # "official" tells of the day of export, not of the model.
        described = [{k: v for k, v in model[name].items() if k != "official"} for model in (old, new)]
        if described[0] != described[1]:
            found.append(f"{name}: index.json describes it differently")
        found += [f"{name}: {line}" for line in _arrays(old[name], committed, fresh)]
    return found


def _arrays(model: dict[str, object], committed: pathlib.Path, fresh: pathlib.Path) -> list[str]:
    npz = str(model["npz"])
    with np.load(committed / npz) as old, np.load(fresh / npz) as new:
        found = [f"{npz}: {key} is only in one of the two" for key in set(old.files) ^ set(new.files)]
        for key in set(old.files) & set(new.files):
            a, b = old[key], new[key]
            same = a.shape == b.shape and a.dtype == b.dtype
            if same and a.dtype.kind in "fc":
                same = np.allclose(a, b, rtol=model["rtol"], atol=model["atol"], equal_nan=True)
            elif same:
                same = np.array_equal(a, b)
            if not same:
                found.append(f"{npz}: {key} differs")
    return found


def main() -> None:
    """Prints what differs, and exits 1 if anything does."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = differences(HERE, pathlib.Path(sys.argv[1]))
    if found:
        sys.exit("\n".join(found))
    print(f"{len(json.loads((HERE / 'index.json').read_text())['models'])} models are reproduced")


if __name__ == "__main__":
    main()

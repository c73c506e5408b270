"""The committed models, with the inputs and eager outputs that tests/models/export.py wrote beside them."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import numpy

DIRECTORY = pathlib.Path(__file__).resolve().parent / "models"


@functools.lru_cache(maxsize=1)
def models() -> dict[str, Any]:
    index: dict[str, Any] = json.loads((DIRECTORY / "index.json").read_text())
    return index["models"]


def names(expect: str) -> list[str]:
    """The models that run on the bundled libraries alone, or fail as expected."""
    return [name for name, model in models().items() if model["expect"] == expect and not model["needs"]]


def path(name: str) -> pathlib.Path:
    return DIRECTORY / models()[name]["file"]


@functools.cache
def _arrays(name: str) -> dict[str, Any]:
    with numpy.load(DIRECTORY / models()[name]["npz"]) as npz:
        return dict(npz)


class Case:
    """One set of inputs of a method, and what eager mode computed from it."""

    def __init__(self, name: str, method: str, number: int) -> None:
        model = models()[name]
        self.model, self.method, self.number = name, method, number
        self.rtol, self.atol = model["rtol"], model["atol"]
        described = model["methods"][method]
        self.inputs_info, self.outputs_info = described["inputs"], described["outputs"]
        self.fails = number in described["fails"]
        self._prefix = ("" if method == "forward" else f"{method}/") + (f"case{number}_" if number else "")

    def __repr__(self) -> str:
        return f"{self.model}:{self.method}:{self.number}"

    def _value(self, side: str, index: int, info: dict[str, Any], suffix: str = "") -> Any:
        arrays = _arrays(self.model)
        key = f"{self._prefix}{side}_{index}{suffix}"
        if key in arrays:
            return arrays[key].copy()
        stored = json.loads(str(arrays["json"]))[key] if "json" in arrays else info
        return stored["value"]

    @property
    def inputs(self) -> list[Any]:
        """Fresh copies: numpy arrays of logical values, C-contiguous, and Python scalars."""
        return [self._value("input", i, info) for i, info in enumerate(self.inputs_info)]

    @property
    def outputs(self) -> list[Any]:
        return [self._value("output", i, info) for i, info in enumerate(self.outputs_info)]

    def input_after(self, index: int) -> Any:
        """What the caller's memory holds after a run that writes it, or None."""
        key = f"{self._prefix}input_{index}_after"
        return _arrays(self.model).get(key)


def cases(name: str, method: str) -> list[Case]:
    return [Case(name, method, number) for number in range(models()[name]["methods"][method]["cases"])]

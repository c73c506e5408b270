"""Says when somebody speaks in a recording, chunk by chunk, as if from a microphone.

    pip install et_cffi
    pip download --no-deps pyannote.audio==4.0.7
    python examples/voice/listen.py pyannote_audio-4.0.7-py3-none-any.whl    # a telephone call of 30 seconds
    python examples/voice/listen.py FILE.wav                                 # 16 kHz, mono, 16 bits

The network is Silero's voice activity detector, with the weights of the package silero-vad, exported by
export.py (which has to be run first). It takes 32 ms of sound, and what it remembers of the sound before: two
of its results go straight back in with the next chunk. The call in pyannote.audio's wheel comes with the
times at which people heard somebody speak, to compare with.
"""

from __future__ import annotations

import argparse
import io
import sys
import wave
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy

from et_cffi import Method, Runtime

MODEL = "silero_vad.pte"
RATE = 16000
CHUNK = 512
# The end of the chunk before, which the network sees as well.
CONTEXT = 64
# Speech begins with a chunk that is at least as likely as the first, and ends with a pause of chunks that are
# less likely than the second.
BEGINS, ENDS = 0.5, 0.35
# In seconds: the shortest pause, and the shortest speech.
PAUSE, SHORTEST = 0.1, 0.25

Spans = list[tuple[float, float]]


def chunks(sound: numpy.ndarray) -> Iterator[numpy.ndarray]:
    for start in range(0, len(sound) - CHUNK + 1, CHUNK):
        yield sound[start : start + CHUNK]


def probabilities(method: Method, sound: numpy.ndarray) -> Iterator[float]:
    """How likely each chunk is speech."""
    heard = numpy.zeros((1, CONTEXT + CHUNK), numpy.float32)
    hidden = cell = numpy.zeros((1, 128), numpy.float32)
    for chunk in chunks(sound):
        heard[0, :CONTEXT] = heard[0, -CONTEXT:]
        heard[0, CONTEXT:] = chunk
        likely, hidden, cell = method.execute([heard, hidden, cell])
        yield float(numpy.asarray(likely)[0, 0])


def spans(likely: Iterable[float]) -> Spans:
    """When somebody speaks, from and to, in seconds."""
    found: Spans = []
    begin = end = None
    now = 0.0
    for probability in likely:
        if probability >= BEGINS:
            begin = now if begin is None else begin
        now += CHUNK / RATE
        if begin is None:
            continue
        if probability >= ENDS:
            end = now
        elif now - end >= PAUSE:
            found.append((begin, end))
            begin = None
    if begin is not None:
        found.append((begin, end))
    return [(begin, end) for begin, end in found if end - begin >= SHORTEST]


def common(some: Spans, others: Spans) -> float:
    """For how many seconds both are."""
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in some for b in others)


def merged(times: Spans) -> Spans:
    """The same, where several people speak at a time."""
    result: Spans = []
    for begin, end in sorted(times):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result


def recording(path: Path) -> tuple[numpy.ndarray, Spans]:
    """The sound, from -1 to 1, and when somebody speaks in it, if the file is a wheel that says so."""
    spoken: Spans = []
    source: object = str(path)
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            source = io.BytesIO(wheel.read("pyannote/audio/sample/sample.wav"))
            for line in wheel.read("pyannote/audio/sample/sample.rttm").decode().splitlines():
                begin, duration = map(float, line.split()[3:5])
                spoken.append((begin, begin + duration))
    with wave.open(source) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
            sys.exit(f"{path} has to be of 16 kHz, mono, 16 bits")
        samples = numpy.frombuffer(file.readframes(file.getnframes()), "<i2")
    return samples / numpy.float32(32768), merged(spoken)


def load(directory: Path = Path(__file__).parent) -> Method:
    return Runtime.get().load_program(directory / MODEL).load_method("forward")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent, help="the directory of the .pte")
    arguments = parser.parse_args()

    sound, spoken = recording(arguments.recording)
    found = spans(probabilities(load(arguments.model), sound))
    for name, times in (("network", found), ("people", spoken)):
        if times:
            print(f"{name + ':':9}", ", ".join(f"{begin:.2f}-{end:.2f}" for begin, end in times))
    if spoken:
        both, length = common(found, spoken), len(sound) / RATE
        network, people = (sum(end - begin for begin, end in times) for times in (found, spoken))
        wrong = network + people - 2 * both
        print(
            f"of {length:.1f} s: speech for both {both:.1f} s, for people only {people - both:.1f} s, "
            f"for the network only {network - both:.1f} s; they agree on {100 * (1 - wrong / length):.1f} %"
        )


if __name__ == "__main__":
    main()

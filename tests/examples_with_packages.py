"""The examples on what is in packages that the other tests do not need. pytest does not collect this file by
itself: `nox -s examples` names it, after `nox -s torch` has exported.

ET_CFFI_EXAMPLES is the directory of the fresh exports, ET_CFFI_RECORDING the wheel of pyannote.audio.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path

import numpy
import pytest
from examples_at import EXPORTS, documented, printed, run, words

import detect  # isort: skip  (found by examples_at)
import listen  # isort: skip

RECORDING = Path(os.environ["ET_CFFI_RECORDING"])

# Marked by hand in scikit-image's astronaut, as in test_examples.py.
FACE = numpy.array([181, 77, 271, 178])
POINTS = [(203, 101), (247, 103), (226, 127), (204, 140), (244, 141)]


@pytest.fixture(scope="module")
def astronaut():
    return Path(importlib.util.find_spec("skimage").origin).parent / "data/astronaut.png"


def test_the_astronaut(astronaut):
    boxes, probabilities, points = detect.FaceDetector(EXPORTS / "faces").detect(detect.pixels(astronaut))
    assert len(boxes) == 1 and probabilities[0] > 0.999
    assert numpy.abs(boxes[0] - FACE).max() < 20
    assert numpy.linalg.norm(points[0] - POINTS, axis=1).max() < 5
    expected = json.loads((EXPORTS / "faces/expected.json").read_text())["astronaut.png"]
    numpy.testing.assert_allclose(boxes, expected["boxes"], atol=0.5)
    numpy.testing.assert_allclose(points, expected["points"], atol=0.5)


def test_the_script_takes_a_photograph(astronaut):
    printed = run("faces/detect.py", "--model", EXPORTS / "faces", "--photo", astronaut)
    assert printed.startswith("astronaut.png: 512 x 512 pixels, 1 faces\n")


@pytest.fixture
def listener():
    return listen.load(EXPORTS / "voice")


def test_each_chunk_of_a_call_is_as_likely_speech_as_the_package_says(listener):
    expected = numpy.load(EXPORTS / "voice/expected.npz")["probabilities"]
    sound, _ = listen.recording(RECORDING)
    assert len(expected) == 937 and expected.min() < 0.01 and expected.max() > 0.99
    likely = numpy.array(list(listen.probabilities(listener, sound)))
    numpy.testing.assert_allclose(likely, expected, atol=1e-3)


def test_the_network_and_people_hear_the_same():
    printed = run("voice/listen.py", RECORDING, "--model", EXPORTS / "voice")
    network, people, _ = printed.splitlines()
    assert network.startswith("network:") and people.startswith("people:")
    assert len(re.findall(r"[\d.]+-[\d.]+", network)) == len(re.findall(r"[\d.]+-[\d.]+", people)) == 4
    assert float(re.search(r"agree on ([\d.]+) %", printed)[1]) > 95


def test_nobody_speaks(listener):
    rng = numpy.random.default_rng(0)
    noise = rng.normal(0, 0.1, 3 * listen.RATE).astype(numpy.float32)
    for sound in (noise, numpy.zeros_like(noise)):
        assert listen.spans(listen.probabilities(listener, sound)) == []


def test_the_page_says_what_is_printed():
    ((command, _, text),) = [line for line in documented() if line[1] == "voice"]
    assert words(printed(command, RECORDING)) == words(text)

"""The pitch tracker and the face detector, with their trained weights, on sound and a photograph."""

from __future__ import annotations

import json
import re
import wave

import numpy
import pytest
from examples_at import EXPORTS, documented, printed, run, words

import camera  # isort: skip  (found by examples_at)
import detect  # isort: skip
import track  # isort: skip

# ---- pitch ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tracker():
    return track.load(EXPORTS / "pitch")


def estimates(tracker, sound):
    hz, likely = zip(*(track.estimate(tracker, frame) for frame in track.frames(sound)))
    return numpy.array(hz), numpy.array(likely)


def test_the_pitch_network_computes_what_the_eager_one_does(tracker):
    expected = numpy.load(EXPORTS / "pitch/expected.npz")
    assert len(expected["frames"]) == 4
    for frame, activations in zip(expected["frames"], expected["activations"]):
        result = numpy.asarray(tracker.execute([frame[None]])[0])[0]
        numpy.testing.assert_allclose(result, activations, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("partials", [1, 8])
@pytest.mark.parametrize("hz", [65.41, 82.41, 110, 146.83, 220, 261.63, 440, 659.26, 987.77, 1567.98])
def test_a_steady_tone(tracker, hz, partials):
    """From the C of a bass voice to the G of a soprano, each frame within a fifth of a semitone."""
    estimated, likely = estimates(tracker, track.synthesise(numpy.full(8000, hz), partials))
    assert len(estimated) == 14
    assert likely.min() > 0.7
    assert numpy.abs(1200 * numpy.log2(estimated / hz)).max() < 20


def test_a_glide(tracker):
    """Three octaves in one second, in which the pitch changes by 230 cents within a frame."""
    hz = numpy.geomspace(110, 880, track.RATE)
    estimated, likely = estimates(tracker, track.synthesise(hz))
    true = hz[track.FRAME // 2 :: track.FRAME // 2][: len(estimated)]
    off = numpy.abs(1200 * numpy.log2(estimated / true))
    assert likely.min() > track.VOICED
    assert numpy.median(off) < 10 and off.max() < 35


def test_silence_has_no_pitch(tracker):
    assert estimates(tracker, numpy.zeros(8000, numpy.float32))[1].max() < 0.1


def test_frames_are_one_array():
    frames = list(track.frames(track.synthesise(numpy.full(4000, 220.0))))
    assert len(frames) == 6 and all(frame is frames[0] for frame in frames)


def test_the_script_prints_the_pitch_of_a_recording(tmp_path):
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(track.RATE)
        sound = numpy.concatenate([numpy.zeros(4096), track.synthesise(numpy.full(8192, 311.13))])
        file.writeframes((sound * 32767).astype("<i2").tobytes())
    lines = run("pitch/track.py", "--model", EXPORTS / "pitch", "--wav", tmp_path / "a.wav").splitlines()[1:]
    assert len(lines) == 23
    silent, voiced = lines[:7], lines[8:]  # in between, one frame has half of each
    assert all(line.split()[1] == "-" for line in silent)
    assert all(float(line.split()[1]) == pytest.approx(311.13, rel=0.01) for line in voiced)


def test_the_script_prints_how_far_off_it_is():
    printed = run("pitch/track.py", "--model", EXPORTS / "pitch").splitlines()
    frames, median, most = re.fullmatch(
        r"(\d+) frames with a pitch; off by ([\d.]+) cents in the median, ([\d.]+) at most", printed[-1]
    ).groups()
    assert int(frames) == len(printed) - 2 == 30
    assert float(median) < 10 and float(most) < 35


# ---- faces ------------------------------------------------------------------------------------------------

# Marked by hand in the photograph: from where the forehead begins to the chin and from cheek to cheek; the
# pupils, the tip of the nose, and the corners of the mouth.
FACE = (170, 131, 360, 331)
POINTS = [(224, 189), (305, 186), (270, 240), (231, 281), (302, 276)]


def overlap(one, other):
    """The area that both boxes have, of the area that either has."""
    one, other = numpy.array(one), numpy.array(other)
    common = (numpy.minimum(one, other)[2:] - numpy.maximum(one, other)[:2]).clip(0).prod()
    return common / ((one[2:] - one[:2]).prod() + (other[2:] - other[:2]).prod() - common)


@pytest.fixture(scope="module")
def detector():
    return detect.FaceDetector(EXPORTS / "faces")


@pytest.fixture(scope="module")
def photo():
    return detect.pixels(detect.portrait())


def test_a_face_is_where_anybody_sees_it(detector, photo):
    boxes, probabilities, points = detector.detect(photo)
    assert len(boxes) == 1 and probabilities[0] > 0.999
    assert overlap(boxes[0], FACE) > 0.7
    assert numpy.linalg.norm(points[0] - POINTS, axis=1).max() < 8


def test_the_face_is_where_the_eager_networks_see_it(detector, photo):
    expected = json.loads((EXPORTS / "faces/expected.json").read_text())["grace_hopper.jpg"]
    boxes, probabilities, points = detector.detect(photo)
    assert (boxes.shape, points.shape) == ((1, 4), (1, 5, 2))
    numpy.testing.assert_allclose(boxes, expected["boxes"], atol=0.5)
    numpy.testing.assert_allclose(probabilities, expected["probabilities"], atol=1e-3)
    numpy.testing.assert_allclose(points, expected["points"], atol=0.5)


def test_two_faces(detector, photo):
    """The photograph, and its mirror image beside it."""
    width = photo.shape[1]
    boxes = detector.detect(numpy.hstack([photo, photo[:, ::-1]])).boxes
    left, right = sorted(boxes.tolist())
    assert overlap(left, FACE) > 0.7
    assert overlap([2 * width - right[2], right[1], 2 * width - right[0], right[3]], FACE) > 0.7


def test_no_face(detector, photo):
    covered = photo.copy()
    covered[100:350, 150:380] = 128
    noise = numpy.random.default_rng(0).integers(0, 256, photo.shape, dtype=numpy.uint8)
    for image in (covered, noise, numpy.zeros_like(photo), numpy.zeros((8, 8, 3), numpy.uint8)):
        boxes, probabilities, points = detector.detect(image)
        assert (boxes.shape, probabilities.shape, points.shape) == ((0, 4), (0,), (0, 5, 2))


def test_the_script_says_where_the_face_is(tmp_path):
    saved = tmp_path / "marked.png"
    first, *faces = run("faces/detect.py", "--model", EXPORTS / "faces", "--save", saved).splitlines()
    assert first == "grace_hopper.jpg: 512 x 600 pixels, 1 faces"
    (numbers,) = [list(map(float, re.findall(r"\d+(?:\.\d+)?", face))) for face in faces]
    probability, *box_and_eyes = numbers
    assert probability > 0.999
    assert overlap(box_and_eyes[:4], FACE) > 0.7
    changed = (detect.pixels(saved) != detect.pixels(detect.portrait())).any(axis=2)
    assert 1000 < changed.sum() < 6000  # the box's lines and the five points
    assert changed[105, 200:300].all() and not changed[400:].any()


# ---- a camera ---------------------------------------------------------------------------------------------


@pytest.fixture
def follower(detector):
    return camera.Follower(detector)


def test_the_face_is_followed_in_the_memory_that_is_there_once(follower, detector, photo, monkeypatch):
    searches = []
    search = detector.detect
    monkeypatch.setattr(detector, "detect", lambda frame: searches.append(1) or search(frame))
    true = search(photo).points[0]
    frame = numpy.empty((camera.WINDOW, camera.WINDOW, 3), numpy.uint8)
    source = camera.Camera(photo)
    addresses = [output.ctypes.data for output in follower.outputs]
    windows = set()
    for _ in range(camera.PERIOD):
        for output in follower.outputs:
            output.fill(numpy.nan)
        window = source.read_into(frame)
        windows.add(tuple(window))
        assert follower.follow(frame)
        assert numpy.abs(follower.points + window - true).mean() < 6
        assert overlap(follower.box + numpy.tile(window, 2), FACE) > 0.6
        assert not any(numpy.isnan(output).any() for output in follower.outputs)
    assert len(windows) > 80
    assert [output.ctypes.data for output in follower.outputs] == addresses
    assert len(searches) == 1


def test_what_is_written_with_out_is_what_is_returned_without(follower, detector, photo):
    assert follower.follow(photo)
    written = [output.copy() for output in follower.outputs]
    returned = [numpy.asarray(output) for output in detector.decide.execute([follower._image])]
    assert [output.shape for output in written] == [(1, 4), (1, 10), (1, 2)]
    for one, other in zip(written, returned):
        numpy.testing.assert_array_equal(one, other)


def test_a_face_that_goes_is_lost_and_found_again(follower, photo):
    assert follower.follow(photo)
    box = follower.box
    assert not follower.follow(numpy.zeros_like(photo))
    assert follower.box is None and follower.points is None
    assert follower.follow(photo)
    numpy.testing.assert_allclose(follower.box, box)


def test_the_script_follows_to_the_end(tmp_path):
    saved = tmp_path / "last.png"
    last = run(
        "faces/camera.py", "--model", EXPORTS / "faces", "--frames", 40, "--fps", 1000, "--save", saved
    ).splitlines()[-1]
    assert last.startswith("a face in 40 of 40 frames, its points off by ")
    assert float(re.search(r"off by ([\d.]+)", last)[1]) < 5
    assert detect.pixels(saved).shape == (camera.WINDOW, camera.WINDOW, 3)


# ---- the page ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [line[0] for line in documented() if line[1] in ("pitch", "faces")])
def test_the_page_says_what_is_printed(command):
    ((_, _, text),) = [line for line in documented() if line[0] == command]
    assert len(text) > 50
    assert words(printed(command)) == words(text)


def test_the_page_has_a_command_of_each_example():
    assert [name for _, name, _ in documented()] == ["pitch", "faces", "faces", "voice"]

"""Follows a face through the frames of a camera, in memory that is there once.

    pip install et_cffi pillow matplotlib
    python examples/faces/camera.py                        # 3 seconds at 30 frames a second
    python examples/faces/camera.py --fps 60 --frames 300 --save FILE.png

The camera is simulated: a window of 320 by 320 pixels that wanders over a photograph, so it is known where
the face is in each frame. The face is searched for once, as in detect.py. From then on only the third network
runs, on what is where the face was in the frame before: it says whether there still is one, and corrects the
box.

Three things are filled for each frame and made once: the frame, the network's input, and its outputs, which
`execute` writes into the arrays that it is given with `out`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import detect
import numpy

WINDOW = 320
# The frames after which the window is where it was.
PERIOD = 90


class Camera:
    """A window that wanders over a photograph, so far that a face in the middle stays in view."""

    def __init__(self, photo: numpy.ndarray) -> None:
        self._photo = photo
        self._room = numpy.array([photo.shape[1] - WINDOW, photo.shape[0] - WINDOW])
        self._frame = 0

    def read_into(self, frame: numpy.ndarray) -> numpy.ndarray:
        """Fills `frame`, as a driver does. Returns the x and y of the window in the photograph, which a real
        camera cannot tell."""
        turn = 2 * numpy.pi * self._frame / PERIOD
        at = [0.5 + 0.2 * numpy.sin(turn), 0.23 + 0.12 * numpy.sin(2 * turn)]
        x, y = (self._room * at).astype(int)
        numpy.copyto(frame, self._photo[y : y + WINDOW, x : x + WINDOW])
        self._frame += 1
        return numpy.array([x, y])


class Follower:
    """Where the one face is, from frame to frame. `box` is None as long as none was found."""

    def __init__(self, detector: detect.FaceDetector) -> None:
        self._detector = detector
        self._image = numpy.empty((1, 3, 48, 48), numpy.float32)
        shapes = [detect.tensor_shape(detector.decide, index) for index in range(3)]
        self.outputs = [numpy.empty(shape, numpy.float32) for shape in shapes]
        self.box: numpy.ndarray | None = None
        self.points: numpy.ndarray | None = None

    def follow(self, frame: numpy.ndarray) -> bool:
        """Whether there is a face in the frame: near where it was, or else anywhere."""
        return (self.box is not None and self._look(frame)) or (self._search(frame) and self._look(frame))

    def _search(self, frame: numpy.ndarray) -> bool:
        faces = self._detector.detect(frame)
        self.box = faces.boxes[0] if len(faces.boxes) else None
        return self.box is not None

    def _look(self, frame: numpy.ndarray) -> bool:
        box = detect.square(self.box[None])
        part = detect.cut(frame, box[0])
        self.box = self.points = None
        if not part.size:
            return False
        detect.reduce(part, self._image[0])
        corrections, points, probabilities = self._detector.decide.execute([self._image], out=self.outputs)
        if probabilities[0, 1] <= detect.SURE[2]:
            return False
        self.points = detect.places(box, points)[0]
        self.box = detect.corrected(box, corrections)[0]
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent, help="the directory of the .pte")
    parser.add_argument("--fps", type=float, default=30)
    parser.add_argument("--frames", type=int, default=90)
    parser.add_argument("--save", type=Path, help="write the last frame with the face marked")
    arguments = parser.parse_args()

    detector = detect.FaceDetector(arguments.model)
    photo = detect.pixels(detect.portrait())
    true = detect.FaceDetector(arguments.model).detect(photo).points[0]
    camera, follower = Camera(photo), Follower(detector)
    frame = numpy.empty((WINDOW, WINDOW, 3), numpy.uint8)
    spent, errors = [], []
    start = time.perf_counter()
    for tick in range(arguments.frames):
        time.sleep(max(start + tick / arguments.fps - time.perf_counter(), 0))
        began = time.perf_counter()
        window = camera.read_into(frame)
        found = follower.follow(frame)
        spent.append(time.perf_counter() - began)
        if not found:
            print(f"frame {tick:4d}  no face")
            continue
        errors.append(numpy.abs(follower.points + window - true).mean())
        if tick % 10 == 0:
            left, top, right, bottom = follower.box
            print(
                f"frame {tick:4d}  ({left:3.0f}, {top:3.0f}) to ({right:3.0f}, {bottom:3.0f})"
                f"  off by {errors[-1]:3.1f} pixels  {1000 * spent[-1]:6.2f} ms"
            )
    print(
        f"a face in {len(errors)} of {arguments.frames} frames, its points off by "
        f"{numpy.mean(errors or [numpy.nan]):.1f} pixels in the mean; a frame took "
        f"{1000 * numpy.median(spent):.2f} ms in the median, of {1000 / arguments.fps:.1f} ms"
    )
    if arguments.save is not None and follower.box is not None:
        face = detect.Faces(follower.box[None], numpy.ones(1), follower.points[None])
        detect.mark(frame, face).save(arguments.save)


if __name__ == "__main__":
    main()

"""Finds the faces in a photograph.

    pip install et_cffi pillow matplotlib
    python examples/faces/detect.py                                # a portrait that comes with matplotlib
    python examples/faces/detect.py --photo FILE --save FILE.png   # with the faces marked

The networks are MTCNN's (K. Zhang et al., 2016), with the weights of the package facenet-pytorch, exported by
export.py. The first looks at the whole photograph, reduced to several sizes, and proposes squares; the second
and the third look at each square, reduced to 24 and to 48 pixels, drop what is no face, and correct the rest.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple

import numpy
from PIL import Image, ImageDraw

from et_cffi import Method, Runtime

# The first and the second network, as the methods "propose" and "refine"; and the third, "decide".
MODELS = ("candidates.pte", "faces.pte")
# Of the first network, in pixels: the largest photograph, the face that it looks for, and the distance from
# one place where it looks to the next.
LARGEST, FACE, STRIDE = 512, 12, 2
# How sure each network has to be to pass a candidate on.
SURE = (0.6, 0.7, 0.7)
# Each size of the photograph is this much of the one before.
SHRINK = 0.709


class Faces(NamedTuple):
    """Boxes (n, 4) as left, top, right and bottom in pixels, the probability of each, and five points of
    each, (n, 5, 2) as x and y: two eyes, the nose, and the corners of the mouth."""

    boxes: numpy.ndarray
    probabilities: numpy.ndarray
    points: numpy.ndarray


class FaceDetector:
    """The three networks. `least` is the smallest face to look for, in pixels."""

    def __init__(self, directory: Path = Path(__file__).parent, least: int = 40) -> None:
        candidates, faces = (Runtime.get().load_program(directory / name) for name in MODELS)
        self._propose = candidates.load_method("propose")
        self._refine = candidates.load_method("refine")
        self.decide = faces.load_method("decide")
        self._least = least

    def detect(self, photo: numpy.ndarray) -> Faces:
        """The faces in a photograph of (height, width, 3), uint8."""
        boxes = square(self._candidates(photo))

        boxes, probabilities, corrections = look(self._refine, photo, boxes, 24, SURE[1])
        kept = separate(boxes, probabilities, 0.7)
        boxes = square(corrected(boxes[kept], corrections[kept]))

        boxes, probabilities, corrections, points = look(self.decide, photo, boxes, 48, SURE[2])
        points = places(boxes, points)
        boxes = corrected(boxes, corrections)
        kept = separate(boxes, probabilities, 0.7, of_the_smaller=True)
        return Faces(boxes[kept], probabilities[kept], points[kept])

    def _candidates(self, photo: numpy.ndarray) -> numpy.ndarray:
        height, width = photo.shape[:2]
        scale = min(FACE / self._least, (LARGEST - 1) / max(height, width))
        found = [numpy.empty((0, 9))]
        while min(height, width) * scale >= FACE:
            image = numpy.empty((1, 3, int(height * scale + 1), int(width * scale + 1)), numpy.float32)
            reduce(photo, image[0])
            corrections, probabilities = map(numpy.asarray, self._propose.execute([image]))
            rows, columns = numpy.nonzero(probabilities[0, 1] >= SURE[0])
            corners = STRIDE * numpy.stack([columns, rows], axis=1) + 1
            boxes = numpy.floor(numpy.hstack([corners, corners + FACE - 1]) / scale)
            scores = probabilities[0, 1, rows, columns]
            here = numpy.column_stack([boxes, scores, corrections[0, :, rows, columns]])
            found.append(here[separate(boxes, scores, 0.5)])
            scale *= SHRINK
        all_sizes = numpy.concatenate(found)
        kept = all_sizes[separate(all_sizes[:, :4], all_sizes[:, 4], 0.7)]
        return kept[:, :4] + kept[:, 5:] * sides(kept[:, :4], 0)


def reduce(photo: numpy.ndarray, image: numpy.ndarray) -> None:
    """Fills `image`, (3, height, width) of float32, with a photograph that is reduced to its size: each pixel
    is the mean of those that it covers. Values from 0 to 255 become -1 to 1, as the networks were trained."""
    sums = photo.astype(numpy.int64)
    pixels = 1
    for axis in (0, 1):
        size, smaller = photo.shape[axis], image.shape[1 + axis]
        first = numpy.arange(smaller) * size // smaller
        last = -(-numpy.arange(1, smaller + 1) * size // smaller)
        below = numpy.insert(sums.cumsum(axis=axis), 0, 0, axis=axis)
        sums = below.take(last, axis=axis) - below.take(first, axis=axis)
        pixels = numpy.multiply.outer(pixels, last - first)
    numpy.divide(sums.transpose(2, 0, 1), pixels, out=image, casting="same_kind")
    image -= 127.5
    image /= 128


def look(
    method: Method, photo: numpy.ndarray, boxes: numpy.ndarray, size: int, sure: float
) -> list[numpy.ndarray]:
    """What the second or third network says of each box that it is sure of: the box, its probability, and the
    method's outputs but the last, which the probability is from."""
    image = numpy.empty((1, 3, size, size), numpy.float32)
    seen, outputs = [], []
    for box in boxes:
        part = cut(photo, box)
        if part.size:
            reduce(part, image[0])
            seen.append(box)
            outputs.append([numpy.asarray(output)[0] for output in method.execute([image])])
    columns = []
    for index in range(method.metadata.num_outputs()):
        shape = tensor_shape(method, index)[1:]
        columns.append(numpy.array([each[index] for each in outputs]).reshape(-1, *shape))
    probabilities = columns.pop()[:, 1]
    passed = probabilities > sure
    kept = numpy.reshape(seen, (-1, 4))[passed]
    return [kept, probabilities[passed], *(column[passed] for column in columns)]


def tensor_shape(method: Method, index: int) -> tuple[int, ...]:
    return method.metadata.output_tensor_meta(index).sizes()


def cut(photo: numpy.ndarray, box: numpy.ndarray) -> numpy.ndarray:
    """The part of the photograph in the box, whose coordinates begin at 1, as far as it has one."""
    height, width = photo.shape[:2]
    left, top, right, bottom = box.astype(int)
    return photo[max(top, 1) - 1 : min(bottom, height), max(left, 1) - 1 : min(right, width)]


def sides(boxes: numpy.ndarray, more: int = 1) -> numpy.ndarray:
    """The width, height, width and height of each box; its last pixel is in it, if `more` is 1."""
    return numpy.tile(boxes[:, 2:] - boxes[:, :2] + more, 2)


def corrected(boxes: numpy.ndarray, corrections: numpy.ndarray) -> numpy.ndarray:
    return boxes + corrections * sides(boxes)


def places(boxes: numpy.ndarray, points: numpy.ndarray) -> numpy.ndarray:
    """The points in the photograph, of (n, 10) that say where in its box each is."""
    x_and_y = points.reshape(-1, 2, 5).transpose(0, 2, 1)
    return boxes[:, None, :2] - 1 + x_and_y * sides(boxes)[:, None, :2]


def square(boxes: numpy.ndarray) -> numpy.ndarray:
    """The square around each box, with the same centre."""
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    half = (boxes[:, 2:] - boxes[:, :2]).max(axis=1)[:, None] / 2
    return numpy.hstack([centres - half, centres + half])


def separate(
    boxes: numpy.ndarray, scores: numpy.ndarray, most: float, of_the_smaller: bool = False
) -> list[int]:
    """Which boxes are kept, the best first, where no two may have more than `most` of their area in common:
    of the area of both, or of the smaller one."""
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    order = numpy.argsort(-scores, kind="stable")
    kept = []
    while order.size:
        best, order = order[0], order[1:]
        kept.append(int(best))
        overlap = numpy.minimum(boxes[best, 2:], boxes[order, 2:]) - numpy.maximum(
            boxes[best, :2], boxes[order, :2]
        )
        common = overlap.clip(min=0).prod(axis=1)
        if of_the_smaller:
            whole = numpy.minimum(areas[best], areas[order])
        else:
            whole = areas[best] + areas[order] - common
        order = order[common <= most * whole]
    return kept


def package(name: str) -> Path:
    """Where a package is, which is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        sys.exit(f"{name} is not installed")
    return Path(spec.origin).parent


def portrait() -> Path:
    """Grace Hopper, 512 by 600 pixels: a photograph of the US Navy's, in the public domain."""
    return package("matplotlib") / "mpl-data/sample_data/grace_hopper.jpg"


def pixels(photo: Path) -> numpy.ndarray:
    return numpy.array(Image.open(photo).convert("RGB"))


def mark(photo: numpy.ndarray, faces: Faces) -> Image.Image:
    image = Image.fromarray(photo)
    draw = ImageDraw.Draw(image)
    for box, points in zip(faces.boxes, faces.points):
        draw.rectangle(box.tolist(), outline=(0, 255, 0), width=3)
        for x, y in points.tolist():
            draw.ellipse([x - 3, y - 3, x + 3, y + 3], fill=(255, 0, 0))
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent, help="the directory of the .pte")
    parser.add_argument("--photo", type=Path)
    parser.add_argument("--least", type=int, default=40, help="the smallest face, in pixels (40)")
    parser.add_argument("--save", type=Path, help="write the photograph with the faces marked")
    arguments = parser.parse_args()

    path = arguments.photo or portrait()
    photo = pixels(path)
    faces = FaceDetector(arguments.model, arguments.least).detect(photo)
    print(f"{path.name}: {photo.shape[1]} x {photo.shape[0]} pixels, {len(faces.boxes)} faces")
    for box, probability, points in zip(*faces):
        left, top, right, bottom = box
        eyes = " and ".join(f"({x:.0f}, {y:.0f})" for x, y in points[:2])
        print(f"  {probability:.4f}  ({left:.0f}, {top:.0f}) to ({right:.0f}, {bottom:.0f}), eyes at {eyes}")
    if arguments.save is not None:
        mark(photo, faces).save(arguments.save)


if __name__ == "__main__":
    main()

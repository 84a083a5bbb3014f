"""Images of metric_learning.py, and how they are taken: in the shop, or in the street."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np

TURNS = 8  # the symmetries of a square: quarter turns, each also mirrored
cv2.setNumThreads(1)  # the producers are the threads


@dataclass(frozen=True)
class Look:
    """How far an image is turned (degrees), enlarged (factors), moved (share of the side) and lit
    (gain)."""

    turn: float = 0.0
    zoom: tuple[float, float] = (1.0, 1.0)
    shift: float = 0.0
    light: float = 0.0

    def of(self, image, turn, draws, *, side):
        """Return the largest square in the middle of an image as (side, side, channels). `turn` is
        one of the TURNS, `draws` are five numbers from -1 to 1."""
        angle, zoom, x, y, light = draws
        image = shrunken(image, side)
        height, width = image.shape[:2]
        low, high = self.zoom
        scale = (low + (high - low) * (zoom + 1) / 2) * side / min(height, width)
        angle = math.radians(self.turn * angle + 90 * (turn % 4))
        cos, sin, mirror = scale * math.cos(angle), scale * math.sin(angle), -1 if turn > 3 else 1
        # about the centres of both, with the pixel at (0, 0) as in OpenCV
        right, down = (width - 1) / 2, (height - 1) / 2
        x, y = ((side - 1) / 2 + side * self.shift * part for part in (x, y))
        rows = (
            (mirror * cos, -sin, x - mirror * cos * right + sin * down),
            (mirror * sin, cos, y - mirror * sin * right - cos * down),
        )
        image = cv2.warpAffine(image, np.array(rows), (side, side), borderMode=cv2.BORDER_REPLICATE)
        if self.light:
            image = cv2.convertScaleAbs(image, alpha=1 - self.light * (light + 1) / 2)
        return image.reshape(side, side, -1)


SHOP = Look()  # the whole image, upright, in even light
STREET = Look(turn=20, zoom=(1.0, 1.3), shift=0.1, light=0.4)


@dataclass(frozen=True)
class Images:
    """Encoded images, or paths of their files, by index, the name of each one's class, and its
    domain: was it taken in the street?

    An image becomes (side, side, channels) uint8. With `turned`, a drawing that is turned by a
    quarter or mirrored counts as one of another class: right for letters, wrong for photographs.
    """

    files: list
    names: list
    street: list
    side: int = 32
    channels: int = 1
    looks: tuple[Look, Look] = (SHOP, STREET)  # of the shop, of the street
    turned: bool = False

    def __len__(self):
        return len(self.files) * (TURNS if self.turned else 1)

    @property
    def labels(self):
        """The number of each record's class."""
        classes = np.unique(self.names, return_inverse=True)[1]
        return (classes[:, None] * TURNS + np.arange(TURNS)).ravel() if self.turned else classes

    @property
    def anchors(self):
        """Whether each record was taken in the street: it is the anchor of its pair."""
        return np.repeat(np.array(self.street, bool), TURNS if self.turned else 1)

    def __getitem__(self, number):
        """Return the pixels of an image, and how it is to be turned."""
        number, turn = divmod(number, TURNS) if self.turned else (number, 0)
        return decoded(self.files[number], self.channels), turn

    def look(self, number):
        return self.looks[self.street[number // (TURNS if self.turned else 1)]]

    def render(self, numbers, worker):
        """Return a batch (n, side, side, channels) of the images with these numbers.

        It is a `batch_transform`: one generator for a whole batch costs a fraction of one for each
        record. It belongs to the batch, so a run can be repeated with any number of producers.
        """
        draws = worker.rng.uniform(-1, 1, (len(numbers), 5)).tolist()
        return np.stack(
            [
                self.look(number).of(*self[number], own, side=self.side)
                for number, own in zip(numbers.tolist(), draws, strict=True)
            ]
        )

    def plain(self, number):
        """Return one image as in the shop."""
        return SHOP.of(*self[int(number)], [0] * 5, side=self.side)

    def seen(self, look, turned=False):
        """Return the same images, all with one look."""
        return replace(self, looks=(look, look), turned=turned)

    def chosen(self, numbers):
        """Return some of the images."""
        parts = (self.files, self.names, self.street)
        files, names, street = ([part[n] for n in numbers] for part in parts)
        return replace(self, files=files, names=names, street=street)


def in_the_street(names):
    """Return the domain of each image by the names of their classes: every other one of a class is
    taken in the street, from its first one on, and the others in the shop."""
    seen, street = Counter(), []
    for name in names:
        street.append(seen[name] % 2 == 0)
        seen[name] += 1
    return street


def shrunken(image, side):
    """Return an image that is smaller by a whole factor and still larger than `side`: the means of
    squares of pixels, most of which the interpolation of a rotation would leave out."""
    factor = int(min(image.shape[:2]) / (1.25 * side))
    if factor < 2:
        return image
    height, width = (length // factor for length in image.shape[:2])
    whole = image[: height * factor, : width * factor]
    return cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA)


def decoded(file, channels):
    """Return the pixels of an encoded image, or of the file at a path. Raise ValueError if they
    cannot be read."""
    content = file if isinstance(file, bytes) else Path(file).read_bytes()
    flag = cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR_RGB
    image = cv2.imdecode(np.frombuffer(content, np.uint8), flag) if content else None
    if image is None:
        name = "" if isinstance(file, bytes) else f" in {file}"
        raise ValueError(f"no image, or a damaged one{name}")
    return image

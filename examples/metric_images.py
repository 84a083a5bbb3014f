"""Images for examples/metric_learning.py: Omniglot, a folder of class folders, or scikit-learn's
digits; and how an image is taken: as in the shop, as in the street, or varied for the training.
"""

import math
import os
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
from tqdm import tqdm

from fastfeed.benchmark.digits import enlarge

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
OMNIGLOT = ("omniglot_small1.zip", "omniglot_small2.zip")
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

    def of(self, image, turn, rng, *, side):
        """Return the largest square in the middle of an image as (side, side, channels), with
        random draws; `turn` is one of the TURNS."""
        angle, zoom, x, y, light = rng.uniform(-1, 1, 5).tolist()
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
TRAINING = Look(turn=15, zoom=(0.85, 1.25), shift=0.1, light=0.4)


@dataclass(frozen=True)
class Images:
    """Encoded images, or paths of their files, by index, and the name of each one's class.

    An image becomes (side, side, channels) uint8. With `turned`, a drawing that is turned by a
    quarter or mirrored counts as one of another class: right for letters, wrong for photographs.
    """

    files: list
    names: list
    side: int = 32
    channels: int = 1
    look: Look = SHOP
    turned: bool = False

    def __len__(self):
        return len(self.files) * (TURNS if self.turned else 1)

    @property
    def labels(self):
        """The number of each record's class."""
        classes = np.unique(self.names, return_inverse=True)[1]
        return (classes[:, None] * TURNS + np.arange(TURNS)).ravel() if self.turned else classes

    def __getitem__(self, index):
        """Return the pixels of an image, and how it is to be turned."""
        number, turn = divmod(index, TURNS) if self.turned else (index, 0)
        return decoded(self.files[number], self.channels), turn

    def render(self, record, worker):
        """Return one record as the look wants it. The draws belong to the record, so a run can be
        repeated with any number of producers."""
        return self.look.of(*record, worker.rng, side=self.side)

    def seen(self, look, turned=False):
        """Return the same images with another look."""
        return replace(self, look=look, turned=turned)

    def chosen(self, numbers):
        """Return some of the images."""
        files, names = ([part[n] for n in numbers] for part in (self.files, self.names))
        return replace(self, files=files, names=names)


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
        raise ValueError("no image, or a damaged one")
    return image


def load(path, *, side, colour, held_out):
    """Return the images to train on, those of classes held out, and a sentence about them.

    `path` is a folder of class folders, or one with Omniglot's small zips; None: $FASTFEED_DATA, or
    the digits. Unreadable images are named and left out before pairs are drawn: a pair cannot do
    without one of its two. So are classes that have a single image.
    """
    path = Path(path or os.environ.get("FASTFEED_DATA") or "").expanduser()
    zips = [path / name for name in OMNIGLOT if (path / name).is_file()]
    drawings = bool(zips) or path == Path()
    channels = 1 if drawings and not colour else 3
    if zips:
        found, origin = omniglot(zips), f"Omniglot, {len(zips)} of its small sets"
    elif path != Path():
        found = {
            str(f.relative_to(path)): str(f)
            for f in sorted(path.rglob("*"))
            if f.suffix.lower() in SUFFIXES
        }
        origin = f"{path}"
    else:
        found, origin = digits(), "scikit-learn's digits"
    found = paired(readable(found, channels))
    names = [name.rpartition("/")[0] for name in found]
    groups = held_out or last_groups(set(names))
    held = [any(f"{name}/".startswith(f"{group}/") for group in groups) for name in names]
    images = Images(list(found.values()), names, side, channels)
    train, test = (images.chosen(np.flatnonzero(np.equal(held, part))) for part in (False, True))
    counts = [f"{len(part)} images of {len(set(part.names))} classes" for part in (train, test)]
    said = f"{origin}: {counts[0]} to train on; held out: {', '.join(groups)} ({counts[1]})"
    if min(len(set(part.names)) for part in (train, test)) < 2:
        raise SystemExit(f"{said}; two classes are needed in each part")
    # a letter that is turned by a quarter is another letter, a shirt is not
    return train.seen(TRAINING, turned=drawings), test, said


def omniglot(zips):
    """Return the PNG of each drawing by alphabet/character/drawing. The small sets share two
    alphabets, which come once."""
    found = {}
    for path in zips:
        with zipfile.ZipFile(path) as opened:
            drawings = [name for name in opened.namelist() if name.endswith(".png")]
            found |= {name.partition("/")[2]: opened.read(name) for name in drawings}
    return found


def digits():
    """Return the PNG of each of scikit-learn's 1,797 digits, as digit/number."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = enlarge(pixels.reshape(-1, 8, 8), full=16)
    return {
        f"{label}/{number}.png": cv2.imencode(".png", image)[1].tobytes()
        for number, (image, label) in enumerate(zip(images, labels, strict=True))
    }


def readable(found, channels):
    """Return the images that can be decoded, and name the others."""

    def error_of(file):
        try:
            decoded(file, channels)
        except (OSError, ValueError) as error:
            return error
        return None

    with ThreadPoolExecutor() as pool:
        checks = pool.map(error_of, found.values())
        errors = list(tqdm(checks, "checking", len(found), unit=" images", leave=False))
    bad = [f"{name} ({error})" for name, error in zip(found, errors, strict=True) if error]
    report("unreadable images", bad)
    return {n: file for (n, file), error in zip(found.items(), errors, strict=True) if not error}


def paired(found):
    """Return the images of classes with two images or more, and name the other classes."""
    count = Counter(name.rpartition("/")[0] for name in found)
    report("classes of one image", [name for name, images in count.items() if images == 1])
    return {name: file for name, file in found.items() if count[name.rpartition("/")[0]] > 1}


def report(what, names):
    if names:
        more = ", ..." if len(names) > 3 else ""
        print(f"left out: {len(names)} {what}: {', '.join(names[:3])}{more}")


def last_groups(classes):
    """Return the last groups (alphabets, or classes where there are no groups) by name, which have
    a quarter of the classes or more, and 64 if there are enough: as many as an evaluation needs."""
    groups = sorted({name.partition("/")[0] for name in classes})
    needed, held = max(len(classes) // 4, min(64, 2 * len(classes) // 5)), []
    while groups and sum(name.partition("/")[0] in held for name in classes) < needed:
        held.insert(0, groups.pop())
    return held

"""Data of metric_learning.py: Omniglot, a folder of class folders, or scikit-learn's digits."""

import os
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
from metric_images import Images, decoded, in_the_street
from tqdm import tqdm

from fastfeed.benchmark.digits import enlarge

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
OMNIGLOT = ("omniglot_small1.zip", "omniglot_small2.zip")


def load(path, *, side, colour, held_out):
    """Return the images to train on, those of classes held out, and a sentence about them.

    `path` is a folder of class folders, or one with Omniglot's small zips; None: $FASTFEED_DATA, or
    the digits. Unreadable images are named and left out before pairs are drawn: a pair cannot do
    without one of its two. So are classes that have a single image. Raise SystemExit with one line
    if the folder, or what is to be held out, is not there.
    """
    given = os.environ.get("FASTFEED_DATA")
    folder = Path(path or given or ".").expanduser()
    if given and path is None and not folder.is_dir():
        raise SystemExit(f"FASTFEED_DATA={given}: there is no such folder")
    zips = [folder / name for name in OMNIGLOT if (folder / name).is_file()]
    drawings = bool(zips) or path is None
    channels = 1 if drawings and not colour else 3
    if zips:
        found, origin = omniglot(zips), f"Omniglot, {len(zips)} of its small sets"
    elif drawings:
        found, origin = digits(), "scikit-learn's digits"
    else:
        found, origin = photos(folder), str(folder)
    found = paired(readable(found, channels))
    names = [name.rpartition("/")[0] for name in found]
    groups = held_out or last_groups(set(names))
    held = [any(under(name, group) for group in groups) for name in names]
    refuse_unknown(groups, names)
    images = Images(list(found.values()), names, in_the_street(names), side, channels)
    train, test = (images.chosen(np.flatnonzero(np.equal(held, part))) for part in (False, True))
    counts = [f"{len(part)} images of {len(set(part.names))} classes" for part in (train, test)]
    said = f"{origin}: {counts[0]} to train on; held out: {', '.join(groups)} ({counts[1]})"
    if min(len(set(part.names)) for part in (train, test)) < 2:
        raise SystemExit(f"{said}; two classes are needed in each part, see --held-out")
    # a letter that is turned by a quarter is another letter, a shirt is not
    return replace(train, turned=drawings), test, said


def photos(folder):
    """Return the path of each image by class/name."""
    if not folder.is_dir():
        kind = "is no folder" if folder.exists() else "does not exist"
        raise SystemExit(f"--data {folder}: {kind}; it must be a folder of class folders")
    files = [file for file in sorted(folder.rglob("*")) if file.suffix.lower() in SUFFIXES]
    inside = [file for file in files if file.parent != folder]
    if not inside:
        there = f"{len(files)} images, all outside" if files else f"no {', '.join(SUFFIXES)} in"
        raise SystemExit(f"--data {folder}: {there} class folders; it must have one for each class")
    return {file.relative_to(folder).as_posix(): str(file) for file in inside}


def under(name, group):
    """Is a class one of a group, or the group itself?"""
    return f"{name}/".startswith(f"{group.rstrip('/')}/")


def refuse_unknown(groups, names):
    """Raise SystemExit for a group of which no class is here."""
    wrong = [group for group in groups if not any(under(name, group) for name in set(names))]
    if wrong:
        there = sorted({name.partition("/")[0] for name in names})
        more = f", ... ({len(there)} in all)" if len(there) > 20 else ""
        raise SystemExit(
            f"--held-out {' '.join(wrong)}: no such group or class; there are "
            f"{', '.join(there[:20])}{more}"
        )


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

    def opens(file):
        try:
            decoded(file, channels)
        except (OSError, ValueError):
            return False
        return True

    with ThreadPoolExecutor() as pool:
        checks = pool.map(opens, found.values())
        good = list(tqdm(checks, "checking", len(found), unit=" images", leave=False))
    report("unreadable images", [name for name, fine in zip(found, good, strict=True) if not fine])
    return {name: found[name] for name, fine in zip(found, good, strict=True) if fine}


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

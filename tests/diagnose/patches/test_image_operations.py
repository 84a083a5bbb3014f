"""Calls of OpenCV in the transform of a runner, and operations of an Augment in their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed.diagnose.patches.image_operations import ImageOperations
from fastfeed.diagnose.proof import SAME
from tests.diagnose.patches.patching import Script

PHOTOS = """\
import cv2
import numpy as np
from fastfeed import FeedRunner


def load(record):
    data, label = record
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    image = cv2.resize(image, (32, 24))  # small
    return image, label


with FeedRunner(files, batch_size=4, transform=load, shuffle=False) as runner:
    for images, labels in runner:
        train(images, labels)
"""
AUGMENTED = """\
import cv2
import numpy as np
from fastfeed import FeedRunner
from fastfeed import augment


def load(record):
    data, label = record
    image = data
    return image, label


with FeedRunner(files, batch_size=4, transform=load, shuffle=False, {made}) as runner:
    for images, labels in runner:
        train(images, labels)
"""
MADE = "augment=augment.Augment([augment.Decode(), augment.Resize((24, 32))])"


def script_of(folder: Path, text: str) -> Script:
    script = Script(folder, text, kind="runner", loop="for images, labels in runner")
    return script.calls_of("FeedRunner", "with FeedRunner(")


def test_a_runner_decodes_and_resizes(tmp_path: Path) -> None:
    (one,) = script_of(tmp_path, PHOTOS).proposals(ImageOperations())
    assert one.allows == (SAME,)
    assert one.title == "augment=[Decode(), Resize((24, 32))] in place of calls of OpenCV"
    found = script_of(tmp_path, PHOTOS).patched(ImageOperations())
    assert found == AUGMENTED.replace("{made}", MADE)


@pytest.mark.parametrize("swap", ["cv2.cvtColor(image, cv2.COLOR_BGR2RGB)", "image[:, :, ::-1]"])
def test_the_pixels_are_the_same(swap: str, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    rng = np.random.default_rng(0)
    text = PHOTOS.replace("cv2.cvtColor(image, cv2.COLOR_BGR2RGB)", swap)
    pictures = [cv2.GaussianBlur(rng.integers(0, 255, (60, 80, 3), np.uint8), (5, 5), 2)] * 8
    files = [
        (cv2.imencode(kind, picture + np.uint8(n))[1].tobytes(), n)
        for n, (picture, kind) in enumerate(zip(pictures, (".jpg", ".png") * 4, strict=True))
    ]
    seen: list[list[Any]] = []
    for code in (text, script_of(tmp_path, text).patched(ImageOperations())):
        batches: list[Any] = []
        exec(code, {"files": files, "train": lambda *one, to=batches: to.append(one)})
        seen.append(batches)
    for one, two in zip(*seen, strict=True):
        for before, after in zip(one, two, strict=True):
            np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("cv2.IMREAD_COLOR", "cv2.IMREAD_GRAYSCALE"),
        ("    image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)\n", ""),  # blue first
        ("COLOR_BGR2RGB", "COLOR_BGR2GRAY"),
        ("(32, 24))", "(32, 24), interpolation=cv2.INTER_AREA)"),
        ("cv2.resize(image, ", "cv2.resize(image[8:], "),
        ("(32, 24)", "(SIZE, SIZE)"),  # which may be set again
        ("return image, label", "return label, image"),
        ("return image, label", "return image / 255, label"),
        ("transform=load", "transform=load, augment=mine"),
        ("with FeedRunner", "load(files[0])\nwith FeedRunner"),
        ("    return image", "    image = flipped(image)\n    return image"),
    ],
)
def test_other_images_stay(before: str, after: str, tmp_path: Path) -> None:
    assert before in PHOTOS
    assert script_of(tmp_path, PHOTOS.replace(before, after)).proposals(ImageOperations()) == []

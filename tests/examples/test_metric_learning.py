"""examples/metric_learning.py on digits, on a folder with damaged files, and with bad data."""

from __future__ import annotations

import importlib
import json
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples.conftest import EXAMPLES, ROOT, Run

cv2 = pytest.importorskip("cv2")


@pytest.fixture(scope="module")
def images() -> Iterator[Any]:
    """The modules of the example's data."""
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module("metric_images")
    sys.path.remove(str(EXAMPLES))


def metric_data(name: str) -> Any:
    return getattr(importlib.import_module("metric_data"), name)


def load(path: Path, **options: Any) -> Any:
    return metric_data("load")(path, **options)


def write_classes(folder: Path, *, classes: int = 12) -> None:
    """Write images of bright squares, whose place and colour tell the class."""
    rng = np.random.default_rng(0)
    for number in range(classes):
        own = folder / f"item{number:02}"
        own.mkdir(parents=True)
        for photo in range(4):
            pixels = rng.integers(0, 60, (40, 48, 3), np.uint8)
            x, y = 8 + 10 * (number % 3), 4 + 10 * (number // 3 % 3)
            pixels[y : y + 8, x : x + 8, number % 3] = 250
            assert cv2.imwrite(str(own / f"{photo}.png"), pixels)


@pytest.mark.slow
def test_digits_that_were_never_seen_are_found(tmp_path: Path, run: Run) -> None:
    for module in ("tensorflow", "sklearn", "matplotlib"):
        pytest.importorskip(module)
    out, _ = run("metric_learning.py", "--quick", folder=tmp_path)
    assert "held out: 6, 7, 8, 9 (714 images of 4 classes)" in out
    assert re.search(r"source alone: \d+ pairs/s; a step takes .*: batches of \d+", out)
    found = re.search(r"batches of 4 pairs: top-1 (\d\.\d+), top-5 1\.000", out)
    assert found is not None, out
    assert float(found[1]) > 0.6, "guessing gives 0.25"
    for where in ("shop to shop", "street to shop"):
        rates = re.search(rf"{where}: \d+ queries .* recall@1 (\S+), recall@5 (\S+)", out)
        assert rates is not None
        assert float(rates[1]) > 0.6
    folder = tmp_path / "build" / "metric"
    for name in ("neighbours.png", "training.png"):
        assert (folder / name).stat().st_size > 2000
    assert (folder / "missed.png").exists() != ("no query has only wrong neighbours" in out)
    figures = json.loads((folder / "figures.json").read_text())
    ends = [0, *(window["pairs"] // figures["batch"] for window in figures["history"])]
    lengths = np.diff(ends)
    assert len(lengths) == 12 and lengths.max() - lengths.min() <= 1, "all means are of as many"
    for name in ("loss", "held_out_loss"):
        losses = [window[name] for window in figures["history"]]
        assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_folder_with_damaged_files_and_lonely_images(tmp_path: Path, run: Run) -> None:
    for module in ("tensorflow", "matplotlib"):
        pytest.importorskip(module)
    write_classes(data := tmp_path / "photos")
    (data / "item01" / "damaged.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    (data / "item02" / "empty.png").write_bytes(b"")
    (data / "lonely").mkdir()
    (data / "lonely" / "0.png").write_bytes((data / "item00" / "0.png").read_bytes())
    options = ("--data", str(data), "--batch-size", "4", "--quick")
    out, _ = run("metric_learning.py", *options, folder=tmp_path)
    first = "left out: 2 unreadable images: item01/damaged.jpg, item02/empty.png\n"
    assert first in out
    assert "left out: 1 classes of one image: lonely" in out
    assert "32 images of 8 classes to train on; held out: item08" in out
    assert "trained on 2000 pairs in batches of 4" in out
    assert re.search(r"memory of the training process: \d+\.\d GB", out)


def test_what_can_be_read_is_kept(
    images: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_classes(tmp_path, classes=5)
    (tmp_path / "item04" / "text.jpg").write_text("an image, honestly")
    for number in (1, 2, 3):
        (tmp_path / "item03" / f"{number}.png").write_bytes(b"")
    found = {"side": 16, "colour": False, "held_out": ["item00", "item01"]}
    train, test, said = load(tmp_path, **found)
    assert (len(train), len(test)) == (8, 8)
    assert "8 images of 2 classes to train on; held out: item00, item01" in said
    printed = capsys.readouterr().out
    assert "4 unreadable images: item03/1.png, " in printed
    assert "1 classes of one image: item03" in printed
    for bad in (["item00"], [f"item{n:02}" for n in range(3)]):
        with pytest.raises(SystemExit, match="two classes are needed in each part"):
            load(tmp_path, **{**found, "held_out": bad})


def test_half_of_each_class_is_in_the_street(images: Any, tmp_path: Path) -> None:
    write_classes(tmp_path, classes=5)
    (tmp_path / "item00" / "3.png").unlink()
    train, test, _ = load(tmp_path, side=16, colour=False, held_out=["item00", "item01"])
    assert test.street == [True, False, True, True, False, True, False]
    assert test.anchors.tolist() == test.street, "photographs are not turned"
    assert train.seen(images.Look(), turned=True).anchors.tolist() == [
        domain for domain in train.street for _ in range(8)
    ]


@pytest.mark.parametrize(
    ("path", "held_out", "said"),
    [
        ("nowhere", None, "--data .*nowhere: does not exist; it must be a folder of class folders"),
        ("item00/0.png", None, "--data .*0.png: is no folder; it must be"),
        ("empty", None, "--data .*empty: no .png, .jpg, .* in class folders"),
        ("item00", None, "--data .*item00: 4 images, all outside class folders; it must have one"),
        (".", ["item9"], "--held-out item9: no such group or class; there are item00, item01, i"),
        (".", ["item00", "x", "y"], "--held-out x y: no such group or class; there are item00, "),
    ],
)
def test_what_is_not_there_is_named(
    images: Any, tmp_path: Path, path: str, held_out: Any, said: str
) -> None:
    write_classes(tmp_path, classes=5)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match=said):
        load(tmp_path / path, side=16, colour=False, held_out=held_out)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 40))
def test_the_rank_of_the_right_answer(images: Any, seed: int, classes: int, count: int) -> None:
    pytest.importorskip("tensorflow")
    search = importlib.import_module("metric_search")
    rng = np.random.default_rng(seed)
    known, found = rng.normal(size=(2 * classes, 4)), rng.normal(size=(count, 4))
    gallery = Namespace(names=[f"item{n % classes}" for n in range(2 * classes)])
    queries = Namespace(names=[f"item{n}" for n in rng.integers(0, classes, count)])
    nearest, answers, ranks = search.ranked(found, known, queries=queries, gallery=gallery)
    for n, name in enumerate(queries.names):
        order = np.argsort(-(known @ found[n])).tolist()
        right = [gallery.names[m] == name for m in order]
        assert nearest[n].tolist() == order[: search.NEAREST]
        assert (ranks[n], answers[n]) == (right.index(True) + 1, order[right.index(True)])


def test_wrong_neighbours_are_shown_with_the_right_answer(
    images: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorflow")
    pytest.importorskip("matplotlib")
    search, plots = (importlib.import_module(f"metric_{name}") for name in ("search", "plots"))
    write_classes(tmp_path / "photos", classes=4)
    _, test, _ = load(tmp_path / "photos", side=16, colour=True, held_out=["item00", "item01"])
    right = np.repeat(np.eye(2, dtype=np.float32), 2, axis=0)
    # the gallery, and the queries in the shop and in the street: there, each class is the other
    embeddings = iter([right, right, right[::-1]])

    def model(batch: Any, *, training: bool) -> np.ndarray:
        return next(embeddings)

    recall, some, missed = search.search(model, test, Namespace(seed=0))
    assert recall == {"shop to shop": [1, 1], "street to shop": [0, 1]}
    assert len(some) == len(missed) == 4
    assert all(len(one.nearest) == 2 for one in some), "a class has two images in the shop"
    shop = [[test.plain(n) for n in (1, 3)], [test.plain(n) for n in (5, 7)]]
    for one in missed:
        assert one.rank == 3 and not any(fine for _, fine in one.nearest)
        own = next(n for n in (0, 1) if any(np.array_equal(one.answer, p) for p in shop[n]))
        assert all(any(np.array_equal(image, p) for p in shop[1 - own]) for image, _ in one.nearest)
    window = {"pairs": 1, "loss": 2.0, "held_out_loss": 2.5, "top1": 0.5}
    plots.draw([window], some, missed=missed, folder=tmp_path)
    assert (tmp_path / "missed.png").stat().st_size > 2000
    plots.draw([window], some, missed=[], folder=tmp_path)
    assert not (tmp_path / "missed.png").exists()
    assert "no query has only wrong neighbours" in capsys.readouterr().out


@given(st.integers(0, 7))
def test_a_turned_drawing_is_the_drawing_turned(images: Any, turn: int) -> None:
    drawing = np.zeros((20, 20), np.uint8)
    drawing[2:9, 3] = drawing[2, 3:15] = 200
    found = images.SHOP.of(drawing, turn, [0.5] * 5, side=20)[..., 0]
    mirrored = drawing[:, ::-1] if turn > 3 else drawing
    assert np.array_equal(found, np.rot90(mirrored, -(turn % 4)))


def test_whole_groups_are_held_out(images: Any) -> None:
    letters = {f"{alphabet}/{letter}" for alphabet in "abcd" for letter in range(60)}
    assert metric_data("last_groups")(letters) == ["c", "d"], "64 classes, and not 60"
    assert metric_data("last_groups")({str(digit) for digit in range(10)}) == ["6", "7", "8", "9"]


def test_the_figures_of_the_guide_are_those_of_the_run() -> None:
    text = (ROOT / "docs" / "metric-learning.md").read_text()
    found = json.loads((ROOT / "bench" / "results" / "metric_training.json").read_text())
    pairs = f"{found['history'][-1]['pairs']:,} pairs in batches of {found['batch']}"
    assert pairs in text and found["tested"] == found["batch"]

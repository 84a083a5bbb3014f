"""examples/metric_learning.py on digits, on a folder with damaged files, and with bad data."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples.conftest import EXAMPLES, ROOT, Run

cv2 = pytest.importorskip("cv2")


@pytest.fixture(scope="module")
def images() -> Any:
    """The module of the example's data."""
    spec = importlib.util.spec_from_file_location("metric_images", EXAMPLES / "metric_images.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["metric_images"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["metric_images"]


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
    for name in ("neighbours.png", "training.png"):
        assert (tmp_path / "build" / "metric" / name).stat().st_size > 2000


@pytest.mark.slow
def test_a_folder_with_damaged_files_and_lonely_images(tmp_path: Path, run: Run) -> None:
    for module in ("tensorflow", "matplotlib"):
        pytest.importorskip(module)
    write_classes(data := tmp_path / "photos")
    (data / "item01" / "damaged.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    (data / "item02" / "empty.png").write_bytes(b"")
    (data / "lonely").mkdir()
    (data / "lonely" / "0.png").write_bytes((data / "item00" / "0.png").read_bytes())
    options = ("--data", str(data), "--batch", "4", "--quick")
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
    train, test, said = images.load(tmp_path, **found)
    assert (len(train), len(test)) == (8, 8)
    assert "8 images of 2 classes to train on; held out: item00, item01" in said
    printed = capsys.readouterr().out
    assert "4 unreadable images: item03/1.png, " in printed
    assert "1 classes of one image: item03" in printed
    for bad in (["item00"], [f"item{n:02}" for n in range(4)]):
        with pytest.raises(SystemExit, match="two classes are needed in each part"):
            images.load(tmp_path, **{**found, "held_out": bad})
    with pytest.raises(SystemExit, match="nowhere: 0 images of 0 classes"):
        images.load(tmp_path / "nowhere", **found)


@given(st.integers(0, 7))
def test_a_turned_drawing_is_the_drawing_turned(images: Any, turn: int) -> None:
    drawing = np.zeros((20, 20), np.uint8)
    drawing[2:9, 3] = drawing[2, 3:15] = 200
    found = images.SHOP.of(drawing, turn, [0.5] * 5, side=20)[..., 0]
    mirrored = drawing[:, ::-1] if turn > 3 else drawing
    assert np.array_equal(found, np.rot90(mirrored, -(turn % 4)))


def test_whole_groups_are_held_out(images: Any) -> None:
    letters = {f"{alphabet}/{letter}" for alphabet in "abcd" for letter in range(60)}
    assert images.last_groups(letters) == ["c", "d"], "64 classes, and not 60"
    assert images.last_groups({str(digit) for digit in range(10)}) == ["6", "7", "8", "9"]


def test_the_code_of_the_guide_runs() -> None:
    text = (ROOT / "docs" / "metric-learning.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "docs/metric-learning.md", "exec"), names)
    assert len(names["anchors"]) == len(names["positives"]) == 32

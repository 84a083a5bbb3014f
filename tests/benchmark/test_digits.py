"""Loading of MNIST: the order of places, and the errors without a usable file."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed.benchmark import digits
from fastfeed.errors import MissingExtra, OptionError


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without MNIST."""
    monkeypatch.delenv("FASTFEED_DATA", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "no_keras"))


def arrays(fill: int = 0, **changed: Any) -> dict[str, Any]:
    kept = {
        "x_train": np.full((3, 28, 28), fill, np.uint8),
        "y_train": np.array([1, 2, 3], np.uint8),
        "x_test": np.full((2, 28, 28), fill, np.uint8),
        "y_test": np.array([4, 5], np.uint8),
    }
    return {key: array for key, array in {**kept, **changed}.items() if array is not None}


def save(file: Path, **given: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **given)
    return file


def test_a_named_file_is_read_whole(tmp_path: Path) -> None:
    file = save(tmp_path / "own.npz", **arrays(fill=7))
    data = digits.load(file)
    assert data.x_train.shape == (3, 28, 28)
    assert data.x_train.dtype == np.uint8
    assert (data.x_test == 7).all()
    assert data.y_train.tolist() == [1, 2, 3]
    assert data.y_test.tolist() == [4, 5]
    assert data.y_train.dtype == data.y_test.dtype == np.int64
    assert str(file) in data.origin


def test_the_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERAS_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    save(tmp_path / ".keras/datasets/mnist.npz", **arrays(fill=5))
    assert digits.load().x_train.max() == 5
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    save(tmp_path / "keras/datasets/mnist.npz", **arrays(fill=3))
    assert digits.load().x_train.max() == 3
    monkeypatch.setenv("FASTFEED_DATA", str(tmp_path / "own"))
    assert digits.load().x_train.max() == 3, "a data folder without MNIST is passed over"
    save(tmp_path / "own/mnist.npz", **arrays(fill=2))
    assert digits.load().x_train.max() == 2
    named = save(tmp_path / "named.npz", **arrays(fill=1))
    assert digits.load(named).x_train.max() == 1
    assert digits.load(str(tmp_path / "own")).x_train.max() == 2, "a folder is the file in it"


@pytest.mark.parametrize("name", ["nothing_here.npz", "."])
def test_a_named_place_without_mnist_never_falls_back(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError, match=r"needed.*does not exist.*path="):
        digits.load(tmp_path / name)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"x_test": None, "y_test": None}, "with them .*x_test is not a file in the archive"),
        ({"x_train": np.zeros((3, 8, 8), np.uint8)}, r"x_train is uint8 \(3, 8, 8\)"),
        ({"x_test": np.zeros((2, 28, 28))}, r"x_test is float64 \(2, 28, 28\)"),
        ({"y_train": np.zeros(2, np.int64)}, r"y_train int64 \(2,\)"),
        ({"y_train": np.array(3)}, r"y_train int64 \(\)"),
        ({"y_test": np.zeros(2)}, r"y_test float64 \(2,\)"),
    ],
)
def test_a_file_that_is_not_mnist(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    file = save(tmp_path / "other.npz", **arrays(**changed))
    with pytest.raises(OptionError, match=said) as caught:
        digits.load(file)
    assert str(file) in str(caught.value)
    assert "path=" in str(caught.value)


def test_a_broken_file_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = save(tmp_path / "mnist.npz", **arrays()).read_bytes()
    monkeypatch.setenv("FASTFEED_DATA", str(tmp_path))
    for content in (whole[: len(whole) // 2], b"", b"a web page that says 404"):
        (tmp_path / "mnist.npz").write_bytes(content)
        with pytest.raises(OptionError, match="cannot be read"):
            digits.load()


def test_one_array_without_a_name_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros((3, 28, 28), np.uint8))
    with pytest.raises(OptionError, match="cannot be read as an .npz file with them"):
        digits.load(tmp_path / "one.npy")


def test_without_mnist_the_small_digits_are_taken_and_named() -> None:
    pytest.importorskip("sklearn")
    data = digits.load()
    assert data.x_train.shape == (1500, 28, 28)
    assert data.x_test.shape == (297, 28, 28)
    assert data.x_train.dtype == data.x_test.dtype == np.uint8
    assert set(data.y_train.tolist()) == set(data.y_test.tolist()) == set(range(10))
    assert data.y_train.dtype == np.int64
    assert "scikit-learn" in data.origin
    assert "no_keras" in data.origin, "says where it looked"
    assert "mnist.load_data()" in data.origin, "says how to get it"
    again = digits.load()
    assert (again.x_train == data.x_train).all() and (again.y_test == data.y_test).all()


def test_enlarging_keeps_the_picture() -> None:
    small = np.zeros((1, 8, 8))
    small[0, 2, 5] = 16
    large = digits.enlarge(small, full=16)
    row, column = divmod(int(large.argmax()), 28)
    assert (row * 8 // 28, column * 8 // 28) == (2, 5)
    assert large.dtype == np.uint8
    assert large.max() > 200
    assert (large[0, :4] == 0).all()


@pytest.mark.parametrize("level", [0, 5, 16])
def test_enlarging_keeps_an_even_grey(level: int) -> None:
    assert (digits.enlarge(np.full((2, 8, 8), level), full=16) == np.rint(level * 255 / 16)).all()


def test_without_scikit_learn_the_pip_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"scikit-learn.*fastfeed\[examples\]"):
        digits.load()


def test_made_up_digits_have_the_shape_of_mnist() -> None:
    made = digits.made_up()
    assert made.x_train.shape[1:] == (28, 28) and made.x_train.dtype == np.uint8
    assert made.y_train.dtype == np.int64 and set(made.y_train.tolist()) == set(range(10))

"""The spec: draws that any producer repeats, plans within their image, and a helpful error for
every mistake."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import augment as A
from fastfeed.augment.operations import TO_YIQ, Colour
from fastfeed.augment.parameters import Draws, drawn, key_of
from fastfeed.core.structure import structure_of
from fastfeed.errors import OptionError, SpecError

KEYS = st.integers(0, 2**64 - 1)
SIZES = st.tuples(st.integers(1, 500), st.integers(1, 500))
EVERYTHING = [
    *(
        A.Decode(),
        A.RandomResizedCrop(9),
        A.Crop(7, y=A.Uniform(0, 1), fill=3),
        A.Resize(shorter=5),
        A.Flip(0.5, 0.5),
    ),
    A.Affine(A.Choice((1, 2)), scale=A.LogUniform(0.5, 2), shear=A.Uniform(-9, 9), p=0.5),
    *(
        A.Brightness(A.Uniform(0.5, 1.5)),
        A.Contrast(0.8),
        A.Saturation(A.Uniform(0, 2)),
        A.Hue(A.Uniform(-9, 9), p=0.3),
    ),
    *(
        A.GaussianBlur(A.Uniform(0, 2)),
        A.Erase(),
        A.Erase(p=0.9),
        A.Normalize(1, 2),
        A.Cast("float32"),
        A.Layout("CHW"),
    ),
]


def test_draws_are_the_same_for_ever() -> None:
    """A run that is repeated with a later version must draw the same numbers."""
    assert key_of((1, 2, 3)) == 0xD0734750FDE362B3
    draws = Draws(key_of((1, 2, 3)))
    assert [draws.next() for _ in range(2)] == [0.07166370763826013, 0.8633317146052892]


@given(
    st.lists(st.integers(-(2**70), 2**70), max_size=4),
    st.lists(st.integers(0, 2**64 - 1), max_size=4),
)
def test_other_parts_give_other_keys(one: list[int], other: list[int]) -> None:
    alike = [part % 2**64 for part in one] == other
    assert (key_of(one) == key_of(other)) == alike


@given(KEYS)
def test_draws_are_even(key: int) -> None:
    draws = Draws(key)
    numbers = np.array([draws.next() for _ in range(2000)])
    assert numbers.min() >= 0 and numbers.max() < 1
    assert (
        abs(numbers.mean() - 0.5) < 0.04
        and abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.12
    )


@given(
    KEYS,
    st.sampled_from([A.Uniform(2, 5), A.LogUniform(0.1, 9), A.Choice((1, 4, 9)), 7, 2.5]),
)
def test_parameters_keep_their_bounds(key: int, parameter: Any) -> None:
    draws = Draws(key)
    ends = getattr(parameter, "values", None) or (
        getattr(parameter, "low", parameter),
        getattr(parameter, "high", parameter),
    )
    low, high = min(ends), max(ends)
    assert all(low - 1e-9 <= drawn(parameter, draws) <= high + 1e-9 for _ in range(50))


@given(KEYS, st.lists(SIZES, min_size=1, max_size=3), st.booleans())
def test_a_plan_is_its_key_s_and_a_row_each(key: int, sizes: list[Any], own: bool) -> None:
    spec = A.Augment(EVERYTHING, draws="own" if own else "same")
    rows = spec.plan(key, sizes)
    assert rows == pickle.loads(pickle.dumps(spec)).plan(key, sizes)
    assert [len(row) for row in rows] == [spec.program[-1][1].stop] * len(sizes)
    assert np.isfinite(np.array(rows, float)).all()
    alike = [spec.plan(key, [size])[0] for size in sizes]
    assert rows[0] == alike[0] and (own or rows == alike)


@settings(max_examples=100)
@given(
    KEYS,
    SIZES,
    st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)),
    st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)),
)
def test_windows_lie_in_the_image(key: int, size: Any, scale: Any, ratio: Any) -> None:
    operations = [
        A.RandomResizedCrop(4, tuple(sorted(scale)), tuple(sorted(ratio))),
        A.Erase(p=1.0),
    ]
    (row,) = A.Augment(operations).plan(key, [size])
    y, x, high, wide = row[:4]
    assert (
        high >= 1
        and wide >= 1
        and y >= 0
        and x >= 0
        and y + high <= size[0]
        and x + wide <= size[1]
    )
    y, x, high, wide = row[4:]
    assert high >= 1 and wide >= 1 and y >= 0 and x >= 0 and y + high <= 4 and x + wide <= 4


tones = st.one_of(
    st.builds(A.Brightness, st.floats(0, 2)),
    st.builds(A.Contrast, st.floats(0, 2)),
    st.builds(A.Saturation, st.floats(0, 2)),
    st.builds(A.Hue, st.floats(-180, 180)),
)


@given(st.lists(tones, min_size=1, max_size=4), st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_tones_are_one_matrix_that_does_them_in_order(
    chosen: list[Any], colour: list[float]
) -> None:
    spec = A.Augment(chosen)
    (((op, _),), (row,)) = spec.program, spec.plan(1, [(5, 5)])
    assert isinstance(op, Colour)
    matrix, want = np.array(row).reshape(3, 4), np.array(colour)
    for tone in chosen:
        want = toned(want, tone)
    np.testing.assert_allclose(matrix @ [*colour, 1], want, atol=1e-9)


def toned(colour: Any, tone: Any) -> Any:
    if isinstance(tone, A.Brightness):
        return colour * tone.factor
    if isinstance(tone, A.Contrast):
        return (colour - 128 / 255) * tone.factor + 128 / 255
    y, i, q = np.array(TO_YIQ) @ colour
    factor, turn = (
        (tone.factor, 0.0) if isinstance(tone, A.Saturation) else (1.0, np.radians(tone.degrees))
    )
    i, q = (
        factor * (i * np.cos(turn) - q * np.sin(turn)),
        factor * (i * np.sin(turn) + q * np.cos(turn)),
    )
    return np.linalg.inv(np.array(TO_YIQ)) @ (y, i, q)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: A.Decode("bgr"), "Decode(channels='bgr'): must be one of 'rgb', 'gray'"),
        (lambda: A.Decode(max_pixels=0), "Decode(max_pixels=0): must be an integer >= 1"),
        (lambda: A.Resize(), "needs either size= or shorter="),
        (
            lambda: A.Resize((4, 4, 3)),
            "Resize(size=(4, 4, 3)): must be (height, width), or one number for both",
        ),
        (lambda: A.Resize(4.5), "Resize(size=4.5): must be (height, width)"),  # type: ignore[arg-type]
        (
            lambda: A.RandomResizedCrop(4, scale=(0, 1)),
            "RandomResizedCrop(scale=0): must be a constant from 1e-06 to 1",
        ),
        (
            lambda: A.RandomResizedCrop(4, ratio=(2, 1)),
            "RandomResizedCrop(ratio=(2, 1)): must be two numbers, (least, most)",
        ),
        (
            lambda: A.Crop(4, y=2),
            "Crop(y=2): must be a number, or Uniform, LogUniform or Choice, from 0 to 1",
        ),
        (lambda: A.Crop(4, fill=-1), "Crop(fill=-1): must be a constant from 0 to 255"),
        (lambda: A.Affine(fill=256), "Affine(fill=256): must be a constant from 0 to 255"),
        (lambda: A.Flip(1.5), "Flip(horizontal=1.5): must be a constant from 0 to 1"),
        (lambda: A.Flip(True), "Flip(horizontal=True): must be a constant from 0 to 1"),
        (
            lambda: A.Affine("left"),
            "Affine(degrees='left'): must be a number, or Uniform, LogUniform or Choice, from -360",
        ),
        (lambda: A.Affine(shift=0.5), "Affine(shift=0.5): must be two, down and right"),  # type: ignore[arg-type]
        (
            lambda: A.Affine(scale=A.Uniform(0, 1)),
            "Affine(scale=Uniform(low=0, high=1)): must be a number, or Uniform, LogUniform or",
        ),
        (
            lambda: A.Hue(A.Uniform(5, 1)),
            "Uniform(low=5, high=1): must be finite numbers, with low <= high",
        ),
        (lambda: A.LogUniform(0, 1), "LogUniform(low=0, high=1): must be greater than 0"),
        (lambda: A.Choice(()), "Choice(values=()): must be finite numbers, as in Choice((0, 90))"),
        (lambda: A.GaussianBlur(99), "GaussianBlur(sigma=99): must be a number, or"),
        (lambda: A.Normalize(1, 0), "Normalize(std=0): must be a constant from 1e-09 to 1e+09"),
        (
            lambda: A.Normalize((1, 2), 1),
            "Normalize(mean=(1, 2)): must be one number, or one for each of 3 channels",
        ),
        (lambda: A.Cast("int64"), "Cast(dtype='int64'): must be one of 'float16', 'float32'"),
        (lambda: A.Layout("NCHW"), "Layout(order='NCHW'): must be one of 'HWC', 'CHW'"),
        (
            lambda: A.RandomResizedCrop(4, scale=0.5),
            "RandomResizedCrop(scale=0.5): must be two numbers, (least, most)",
        ),
        (lambda: A.Erase(ratio="ab"), "Erase(ratio='ab'): must be two numbers, (least, most)"),
        (lambda: A.Choice(90), "Choice(values=90): must be finite numbers, as in Choice((0, 90))"),
        (lambda: A.Cast("no dtype"), "Cast(dtype='no dtype'): must be one of"),
        (lambda: A.Normalize(A.Uniform(0, 1), 1), "must be a constant from -1e+09"),
        (lambda: A.Augment(A.Flip()), "must be a list of operations, as in Augment([Flip()])"),
        (lambda: A.Augment([]), "must be a list of operations, as in Augment([Flip()])"),
        (lambda: A.Augment(["flip"]), "'flip' is no operation: must be one of fastfeed.augment"),
        (
            lambda: A.Augment([A.Flip()], draws="each"),
            "Augment(draws='each'): must be one of 'same', 'own'",
        ),
        (
            lambda: A.Augment([A.Flip(), A.Decode()]),
            "Decode comes after Flip: the order must be Decode, pixel operations, Normalize",
        ),
        (lambda: A.Augment([A.Decode(), A.Decode()]), "Decode comes after Decode"),
    ],
)
def test_a_mistake_gives_a_sentence_that_helps(make: Any, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        make()
    assert text in str(caught.value)


def test_paths_lead_to_leaves() -> None:
    record = {"pair": (np.zeros(1), np.zeros(2)), "label": 3}
    spec = A.Augment([A.Flip()], images=[("pair", 0), ("pair", 1)], masks=("pair", 1))
    found = spec.targets(structure_of(record), 3)
    assert (found.images, found.masks, found.boxes) == ((1, 2), (2,), ())
    for path in ("pairs", ("pair", 2), "pair", ("label", 0)):
        with pytest.raises(
            SpecError,
            match="no such leaf: must be the path of an array in a record, which is {'pair'",
        ):
            A.Augment([A.Flip()], images=path).targets(structure_of(record), 3)

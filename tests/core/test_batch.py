"""The spec that the first batch gives, and the check of every other batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.core.batch import (
    BYTES,
    BatchSpec,
    infer,
    with_shapes,
)
from fastfeed.errors import OptionError, SpecError
from tests.helpers.batches import (
    checked,
    make,
    same,
    templates,
)

X = np.zeros((4, 3), np.float32)
Y = np.arange(4)


def spec(batch: Any, **options: Any) -> BatchSpec:
    return infer(batch, **options)


@given(templates, st.integers(1, 5), st.integers(1, 5))
def test_what_was_learned_fits_every_batch_like_it(template: Any, first: int, later: int) -> None:
    learned, _ = checked(template, range(first))
    batch = make(template, range(later))
    held = learned.check(batch, "a batch")
    assert held.rows == later
    assert held.nbytes >= sum(leaf.nbytes for leaf in held.leaves)
    assert all(leaf.dtype.isnative for leaf in held.leaves)
    assert same(learned.rebuild(held), batch)


def test_arrays_pass_without_a_copy() -> None:
    held = spec((X, Y)).check((X, Y), "a batch")
    assert held.leaves[0] is X
    assert held.leaves[1] is Y


def test_what_is_learned() -> None:
    learned = spec({"x": X, "y": Y, "name": [b"a", b"bc", b"", b"d"]})
    assert [(leaf.path, leaf.dtype, leaf.shape) for leaf in learned.leaves] == [
        ("batch['name']", BYTES, ()),
        ("batch['x']", np.dtype("f4"), (3,)),
        ("batch['y']", np.dtype("i8"), ()),
    ]
    assert learned.rows == 4
    assert learned.record_nbytes == 12 + 8 + 8


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ((), "empty container"),
        ({}, "empty container"),
        (
            3.5,
            r"batch of .* is float \(3\.5\): expected an array with one leading dimension.*"
            r"records=True",
        ),
        ((X, 3), r"batch\[1\] of .* is int \(3\)"),
        (None, r"batch of .* is NoneType"),
        ((None, [None]), "empty container"),
        ((X, "label"), r"batch\[1\] of .* is str"),
        (
            (X, np.array(3)),
            r"batch\[1\] of .* is ndarray .*expected an array with one leading dimension",
        ),
        ((X, [[1, 2], [3]]), r"batch\[1\] of .* is a ragged list.*pad=True"),
        (
            (X, np.array([{}, {}, 1, 2], object)),
            r"batch\[1\] of .* is an object array that holds dict.*pad=True",
        ),
        (
            (X, np.array(["a", b"b", "c", b"d"], object)),
            r"batch\[1\] of .* is an object array that holds str",
        ),
        ((X, np.zeros(4, "M8[s]")), r"batch\[1\] of .* has dtype datetime64\[s\]"),
        ((X, np.zeros(4, "i4,f4")), r"batch\[1\] of .* has dtype \["),
        ((X, Y[:3]), r"batch\[1\] of .* has 3 records, batch\[0\] has 4"),
        (object(), "object array that holds object|is object"),
    ],
)
def test_a_first_batch_that_is_none(batch: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        infer(batch)


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (
            (X,),
            r"batch 7 has another structure than the first: expected \(array, array\), got "
            r"\(array\)",
        ),
        ([X, Y], r"batch 7 has another structure.*got \[array, array\]"),
        ((X, Y.astype("f4")), r"batch\[1\] of batch 7 has dtype float32: expected int64.*dtypes="),
        ((X, Y.astype("i4")), r"batch\[1\] of batch 7 has dtype int32: expected int64"),
        ((X, [b"a"] * 4), r"batch\[1\] of batch 7 has dtype \S+: expected int64"),
        (
            (X[:, :2], Y),
            r"batch\[0\] of batch 7 has records of shape \(2,\): expected \(3,\).*pad=True",
        ),
        (
            (X[:, :, None], Y),
            r"batch\[0\] of batch 7 has records of shape \(3, 1\): expected \(3,\)",
        ),
        ((X, Y[:2]), r"batch\[1\] of batch 7 has 2 records, batch\[0\] has 4"),
        ((X, 5), r"batch\[1\] of batch 7 is int \(5\)"),
        ((X, np.int64(5)), r"batch\[1\] of batch 7 is int64 "),
        ((np.float32(1), Y), r"batch\[0\] of batch 7 is float32 "),
        ((X, np.array(5)), r"batch\[1\] of batch 7 is (a scalar|ndarray)"),
        ((X, [[1], [2, 3], [4], [5]]), r"batch\[1\] of batch 7 is a ragged list"),
        (
            (X, np.array([None] * 4)),
            r"batch\[1\] of batch 7 is an object array that holds NoneType",
        ),
    ],
)
def test_a_later_batch_that_differs_is_named(later: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        spec((X, Y)).check(later, "batch 7")


def test_images_of_workers_that_differ_are_named() -> None:
    one = replace(spec({"left": np.zeros((2, 3)), "right": np.zeros((2, 3))}), image="left")
    assert one.difference(replace(one, image="right")).startswith(
        "records begin with 'right' instead of 'left'"
    )
    assert not one.difference(replace(one))


def test_bytes_of_both_forms_mix() -> None:
    for first in (np.array([b"a", b"bcd"]), np.array([b"a\0", b""], object)):
        learned = spec(first)
        for later in (np.array([b"xyzw"]), np.array([b"x\0\0"], object), [b"q"]):
            assert learned.check(later, "a batch").rows == 1
    with pytest.raises(SpecError, match="expected bytes as in the first batch"):
        spec([b"a"]).check([1], "a batch")


def test_bytes_are_counted() -> None:
    batch = np.array([b"x" * 1000, b"y"], object)
    assert spec(batch).check(batch, "a batch").nbytes == 16 + 1001


@pytest.mark.parametrize(
    ("dtypes", "x", "y"),
    [
        (None, "f8", "i8"),
        ("float32", "f4", "i8"),
        (">f4", "f4", "i8"),  # in native byte order, as all that is fed
        (np.float16, "f2", "i8"),
        (("f4", None), "f4", "i8"),
        ([None, "i4"], "f8", "i4"),
        (("f4", "f4"), "f4", "f4"),
    ],
)
def test_dtypes_are_cast_here(dtypes: Any, x: str, y: str) -> None:
    batch = (X.astype("f8"), Y)
    learned = spec(batch, dtypes=dtypes)
    held = learned.check(batch, "a batch")
    assert (
        [leaf.dtype for leaf in held.leaves]
        == [leaf.dtype for leaf in learned.leaves]
        == [np.dtype(x), np.dtype(y)]
    )


@pytest.mark.parametrize("first", ["f4", "f8"])
def test_a_cast_that_was_asked_for_does_not_depend_on_which_batch_is_first(first: str) -> None:
    learned = spec(np.zeros(2, first), dtypes="float32")
    for later in ("f4", "f8"):
        assert learned.check(np.zeros(2, later), "a batch").leaves[0].dtype == np.float32


@pytest.mark.parametrize(
    "dtypes", [("f4",), {"x": "f4"}, "float33", ("f4", "nonsense"), ("f4", ("i4", "i4"))]
)
def test_dtypes_that_do_not_fit(dtypes: Any) -> None:
    with pytest.raises(OptionError, match="dtypes"):
        spec((X, Y), dtypes=dtypes)


def test_a_cast_to_small_integers_keeps_their_values() -> None:
    small = pytest.importorskip("ml_dtypes").int4
    learned = spec(np.array([1.0, 7.0]), dtypes=small)
    assert learned.check(np.array([-8.0, 7]), "a batch").leaves[0].tolist() == [-8, 7]
    with pytest.raises(SpecError, match="holds 9"):
        learned.check(np.array([1.0, 9]), "a batch")


def test_bytes_cannot_be_cast_to_numbers() -> None:
    batch = (X, [b"1", b"2", b"3", b"4"])
    with pytest.raises((OptionError, SpecError), match=r"dtypes"):
        spec(batch, dtypes=("f4", "i4")).check(batch, "batch 0")


@pytest.mark.parametrize(
    ("dtype", "values", "bad"),
    [
        ("i4", [1.0, 1.5], "1.5"),
        ("i4", [1.0, np.nan], "nan"),
        ("i1", [1, 300], "300"),
        ("u8", [1, -1], "-1"),
        ("i8", np.array([1, 2**63 + 1], "u8"), str(2**63 + 1)),
        ("i8", [1e30], "1e"),
        ("?", [0, 2], "2"),
    ],
)
def test_a_cast_to_integers_changes_no_value(dtype: str, values: Any, bad: str) -> None:
    later = np.asarray(values)
    learned = spec({"x": np.ones(1, later.dtype)}, dtypes={"x": dtype})
    assert learned.check({"x": np.ones(2, later.dtype)}, "b").leaves[0].dtype == np.dtype(dtype)
    with pytest.raises(SpecError, match=rf"batch\['x'\] of batch 7 holds {bad}.*dtypes="):
        learned.check({"x": later}, "batch 7")


def test_bfloat16_is_a_floating_leaf() -> None:
    batch = np.arange(3).astype(ml_dtypes.bfloat16)
    assert spec(batch).check(batch, "a batch").leaves[0] is batch
    assert spec(batch, dtypes="float32").check(batch, "a batch").leaves[0].dtype == np.float32


def test_ragged_batches_may_vary_where_they_were_seen_to() -> None:
    learned = spec((X, Y), ragged=True)
    assert [leaf.shape for leaf in learned.leaves] == [(None,), ()]
    assert learned.check((X[:, :1], Y), "a batch").leaves[0].shape == (4, 1)
    image = np.zeros((4, 5, 6, 3))
    varied = spec(image, ragged=True, varied=[(False, True, False)])
    assert varied.leaves[0].shape == (5, None, 3)
    assert varied.leaves[0].record_nbytes == 5 * 3 * 8


def test_shapes_that_the_user_states() -> None:
    learned = spec({"x": X, "y": Y}, ragged=True)
    stated = with_shapes(learned, {"x": (None,), "y": ()})
    assert [leaf.shape for leaf in stated.leaves] == [(None,), ()]
    assert with_shapes(spec(X), (7,)).leaves[0].shape == (7,)
    for wrong in ({"x": (None,)}, ((None,), ()), {"x": (None, 3), "y": ()}, 3, "x"):
        with pytest.raises(
            OptionError, match=r"shapes must give one record shape for each leaf, .*, got"
        ):
            with_shapes(learned, wrong)

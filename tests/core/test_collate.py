"""Collating and re-batching: no record is lost, repeated or mixed between leaves."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fastfeed.core.batch import Batch, infer
from fastfeed.core.collate import (
    PassThrough,
    Rebatcher,
    SizeChecker,
    collate,
)
from fastfeed.core.structure import describe, structure_of
from fastfeed.errors import OptionError, SpecError
from tests.helpers.batches import (
    checked,
    make,
    record,
    same,
    templates,
)

sizes = st.lists(st.integers(1, 9), min_size=1, max_size=10)


def plain(ids: range | list[int]) -> Batch:
    array = np.asarray(ids)
    return Batch((array,), len(ids), array.nbytes)


def pushed(stage: Any, batches: list[Batch]) -> list[Batch]:
    return [out for batch in batches for out in stage.push(batch)]


def as_objects(leaf: np.ndarray) -> np.ndarray:
    """Return bytes in one form."""
    return leaf.astype(object) if leaf.dtype.kind == "S" else leaf


@given(templates, sizes, st.integers(1, 12), st.sampled_from(["keep", "drop"]))
def test_rebatching_loses_repeats_and_mixes_nothing(
    template: Any, made: list[int], size: int, last: str
) -> None:
    bounds = np.cumsum([0, *made])
    total = int(bounds[-1])
    spec, _ = checked(template, range(1))
    stage = Rebatcher(size, last)
    batches = [spec.check(make(template, range(a, b)), "a batch") for a, b in pairwise(bounds)]
    out = [*pushed(stage, batches), *stage.flush()]
    kept = total if last == "keep" else total - total % size
    assert [b.rows for b in out] == [min(size, kept - start) for start in range(0, kept, size)]
    assert stage.dropped == total - kept
    for start, batch in zip(range(0, kept, size), out, strict=True):
        assert same(spec.rebuild(batch), make(template, range(start, min(start + size, kept))))
    assert not list(stage.flush()), "a new epoch starts with nothing"


@given(sizes, st.integers(1, 12))
def test_rebatching_copies_only_what_straddles_two_batches(made: list[int], size: int) -> None:
    bounds = np.cumsum([0, *made]).tolist()
    batches = [plain(range(a, b)) for a, b in pairwise(bounds)]
    stage = Rebatcher(size, "keep")
    found = [*pushed(stage, batches), *stage.flush()]
    assert sum(batch.nbytes for batch in found) == 8 * sum(made)
    for out in found:
        ids = out.leaves[0]
        inside = [b for b in batches if b.leaves[0][0] <= ids[0] and ids[-1] <= b.leaves[0][-1]]
        assert all(np.shares_memory(ids, b.leaves[0]) for b in inside)


def test_a_batch_that_fits_passes_untouched() -> None:
    batch = plain([1, 2, 3])
    assert list(Rebatcher(3, "keep").push(batch)) == [batch]
    assert next(iter(Rebatcher(3, "keep").push(batch))) is batch


def watched(array: np.ndarray) -> Batch:
    batch = Batch((array,), len(array), array.nbytes)
    batch.watch("batch 7")
    return batch


def test_views_of_an_array_that_changes_are_refused_and_no_others() -> None:
    array = np.arange(12)
    one, two, three = Rebatcher(4, "keep").push(watched(array))
    one.leaves[0][:] = -1  # the loop does so
    two.refuse_changed()
    array[8:] = -1
    two.refuse_changed()
    with pytest.raises(SpecError, match="batch 7 has changed while it waited"):
        three.refuse_changed()


def test_a_batch_that_has_changed_is_not_cut() -> None:
    array = np.arange(12)
    batch = watched(array)
    array[:] = -1
    with pytest.raises(SpecError, match="batch 7 has changed"):
        Rebatcher(4, "keep").push(batch)


@pytest.mark.parametrize("rows", [3, 7])
def test_records_that_change_while_they_wait_for_others_are_refused(rows: int) -> None:
    """Of a batch that was cut, or was too small."""
    stage, array = Rebatcher(4, "keep"), np.arange(rows)
    for out in stage.push(watched(array)):
        out.leaves[0][:] = -1
    (whole,) = stage.push(watched(np.arange(1)))
    assert whole.leaves[0].tolist() == [rows - 3, rows - 2, rows - 1, 0]
    whole.refuse_changed()  # it is a copy
    assert not list(stage.push(watched(array[:3])))
    array[:] = 99
    with pytest.raises(SpecError, match="batch 7 has changed"):
        stage.push(plain(range(4)))


@pytest.mark.parametrize("changed", [False, True])
def test_what_nobody_else_has_is_watched_no_more_when_it_is_cut(changed: bool) -> None:
    batch = watched(np.arange(5))
    if changed:  # when the source still had it
        batch.leaves[0][2] = 7
        with pytest.raises(SpecError, match="batch 7 has changed"):
            Rebatcher(4, "keep").push(batch)
    else:
        (part,) = Rebatcher(4, "keep").push(batch)
        assert part.watched is batch.watched is None


def test_rebatching_pads_what_varies() -> None:
    stage = Rebatcher(3, "keep", pad=-1)
    parts = [Batch((np.full((n, width), width),), n, 0) for n, width in ((2, 1), (1, 3), (1, 2))]
    out = [*pushed(stage, parts), *stage.flush()]
    assert out[0].leaves[0].tolist() == [[1, -1, -1], [1, -1, -1], [3, 3, 3]]
    assert out[1].leaves[0].tolist() == [[2, 2]]


def test_rebatching_mixes_both_forms_of_bytes() -> None:
    parts = [
        Batch((np.array([b"ab", b"c"]),), 2, 0),
        Batch((np.array([b"d\0", b"e"], object),), 2, 0),
    ]
    (out,) = pushed(Rebatcher(4, "keep"), parts)
    assert out.leaves[0].tolist() == [b"ab", b"c", b"d\0", b"e"]


def test_as_produced_allows_short_batches_of_each_stream() -> None:
    """Such as the last one of each epoch of a generator."""
    stage = SizeChecker()
    for stream in (0, 1):
        for rows in (3, 3, 2, 3, 1, 1, 3):
            (out,) = stage.push(plain(range(rows)), stream, place=f"batch of {stream}")
            assert out.rows == rows
    assert not list(stage.flush())
    assert list(stage.push(plain(range(3)), 0, place="the next epoch"))


@pytest.mark.parametrize(("sizes", "place"), [((3, 4), 1), ((3, 3, 4), 2), ((3, 2, 4), 2)])
def test_as_produced_refuses_a_change_midway(sizes: tuple[int, ...], place: int) -> None:
    stage = SizeChecker()
    with pytest.raises(SpecError, match=rf"midway: batch {place} .*than the 3 .*batch_size=.*pad="):
        [stage.push(plain(range(rows)), 0, place=f"batch {n}") for n, rows in enumerate(sizes)]


@given(st.lists(st.integers(1, 9)))
def test_records_pass_as_they_are(rows: list[int]) -> None:
    stage, batches = PassThrough(), [plain(range(n)) for n in rows]
    assert list(map(id, pushed(stage, batches))) == list(map(id, batches))
    assert not list(stage.flush())


@given(templates, st.integers(1, 6))
def test_collating_records_gives_their_batch(template: Any, rows: int) -> None:
    assume("[" not in describe(structure_of(make(template, [0]))))  # a list of scalars is one leaf
    batch, varied = collate([record(template, i) for i in range(rows)], None, place="batch 0")
    want = make(template, range(rows))
    spec = infer(want)
    have = spec.check(batch, "batch 0")
    assert same(*(list(map(as_objects, b.leaves)) for b in (have, spec.check(want, "the batch"))))
    assert not any(map(any, varied))


def test_records_of_scalars_and_bytes() -> None:
    (numbers, names), _ = collate([(1, b"a\0"), (2, b"")], None, place="batch 0")
    assert numbers.tolist() == [1, 2]
    assert names.dtype == object
    assert names.tolist() == [b"a\0", b""], "no zero byte is cut off"


@pytest.mark.parametrize(("pad", "fill"), [(True, 0), (-1, -1), (0, 0), (9.0, 9)])
def test_records_of_varying_shape_are_padded_at_the_end(pad: Any, fill: int) -> None:
    records = [(np.array([1]), 0), (np.array([2, 3, 4]), 1), (np.array([], int), 2)]
    (words, label), varied = collate(records, pad, place="batch 0")
    assert words.tolist() == [[1, fill, fill], [2, 3, 4], [fill, fill, fill]]
    assert label.tolist() == [0, 1, 2]
    assert varied == [(True,), ()]


def test_only_axes_that_varied_are_said_to() -> None:
    batch, varied = collate([np.zeros((2, 5, 3)), np.zeros((2, 4, 3))], True, place="batch 0")
    assert batch.shape == (2, 2, 5, 3)
    assert varied == [(False, True, False)]


@pytest.mark.parametrize(
    ("records", "pad", "said"),
    [
        (
            [(A := np.zeros(2), 1), (A,)],
            None,
            r"record 1 of batch 5 has another structure.*got \(array\)",
        ),
        (
            [A, A.astype("f4")],
            None,
            "record of batch 5 has dtype float64 in one record and float32 in another",
        ),
        ([A, np.zeros(3)], None, r"record of batch 5 has records of varying shape.*pad=True"),
        (
            [A, np.zeros((2, 2))],
            True,
            r"record of batch 5 must have the same number of dimensions.*, got shapes .*\[\(2,",
        ),
        (
            [(A, b"x"), (A, 3)],
            None,
            r"record\[1\] of batch 5 is bytes in one record and int in another",
        ),
        ([(A, 3), (A, b"x")], None, r"record\[1\] of batch 5"),
        ([[[1, 2], [3]]], None, "record of batch 5 is a ragged list"),
        (["text", b"bytes"], None, "record of batch 5 is str in one record and bytes in another"),
        ([None], None, "record .*batch 5.*NoneType"),
    ],
)
def test_records_that_make_no_batch(records: list[Any], pad: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        collate(records, pad, place="batch 5")


@pytest.mark.parametrize(
    ("pad", "dtype"), [(-1, "u1"), (300, "u1"), (0.5, "i4"), (float("nan"), "i4"), (2, "?")]
)
def test_padding_that_the_dtype_cannot_hold(pad: float, dtype: str) -> None:
    with pytest.raises(OptionError, match=rf"pad={pad}.*dtype"):
        collate([np.zeros(1, dtype), np.zeros(2, dtype)], pad, place="batch 0")


def test_mixed_numbers_need_dtypes() -> None:
    records = [{"y": 1}, {"y": 1.5}, {"y": np.float32(2)}]
    with pytest.raises(SpecError, match=r"record\['y'\] of b has dtype int64 .*dtypes="):
        collate(records, None, place="b")
    found, _ = collate(records, None, place="b", mixed=True)
    assert found["y"].dtype == np.float64 and found["y"].tolist() == [1, 1.5, 2]
    for odd in ([1, "a"], [2**53 + 1, 0.5], [1, b"a"], [np.uint64(2**64 - 1), -1]):
        with pytest.raises(SpecError):
            collate(odd, None, place="b", mixed=True)

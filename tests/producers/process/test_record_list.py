"""Long lists of small records are shared by worker processes, and any other list is as it was."""

from __future__ import annotations

import datetime
import pathlib
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import FeedRunner
from fastfeed.producers.process import record_list
from fastfeed.producers.process.record_list import MANY, RecordList, compact
from fastfeed.producers.process.ship import LARGE_NBYTES, pack, unpack

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


class Mine:
    """A record with a class of its own."""


def sent(value: Any) -> Any:
    """What a worker gets."""
    shipment = pack(value, what="the source")
    try:
        return unpack(shipment.fd, shipment.nbytes)
    finally:
        shipment.close()


@given(st.lists(PLAIN, min_size=1, max_size=12))
def test_records_are_what_they_were(records: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_list, "MANY", 1)
        found = sent(compact(records))
    assert isinstance(found, RecordList) and len(found) == len(records)
    assert list(found) == records
    assert [found[-n] for n in range(1, len(records) + 1)] == records[::-1]
    assert found[1:3] == records[1:3]
    with pytest.raises(IndexError):
        found[len(records)]


@pytest.mark.parametrize(
    "record",
    [
        {"day": datetime.date(2020, 1, 2), "file": pathlib.Path("a/b.jpg")},
        (np.float32(1.5), np.arange(4, dtype=np.int16), complex(1, 2)),
        np.array(["a", {"b": 1}], object),
    ],
)
def test_values_of_the_library_are_plain(record: Any) -> None:
    found = sent(compact([record] * MANY))
    assert isinstance(found, RecordList)
    np.testing.assert_equal(found[MANY - 1], record)


SHARED = ["a word that all records have"] * 1000


@pytest.mark.parametrize(
    "records",
    [
        [1] * (MANY - 1),
        tuple([1] * MANY),
        [Mine()] * MANY,
        [random.Random(0)] * MANY,
        [np.random.RandomState(0)] * MANY,
        [iter([1, 2])] * MANY,
        [lambda: 1] * MANY,
        [FeedRunner] * MANY,
        [np.zeros(LARGE_NBYTES, np.uint8)] * MANY,
        [{"number": n, "words": SHARED} for n in range(MANY)],
    ],
    ids=[
        "few",
        "tuple",
        "class",
        "random",
        "numpy",
        "iterator",
        "function",
        "named",
        "large",
        "shared",
    ],
)
def test_other_lists_stay_lists(records: Any) -> None:
    assert compact(records) is records


def test_workers_read_the_records_of_the_list() -> None:
    records = [{"number": n, "name": f"file {n}"} for n in range(MANY)]
    options: dict[str, Any] = {"batch_size": 500, "shuffle": True, "seed": 1}
    found = []
    for kind in ("threads", "processes"):
        with FeedRunner(records, **options, **{kind: 2}) as runner:
            found.append([(list(b["number"]), list(b["name"])) for b in runner])
    assert found[0] == found[1] and sum(len(numbers) for numbers, _ in found[0]) == MANY


def test_a_record_that_a_transform_changes_is_read_anew() -> None:
    def changed(record: dict[str, int]) -> np.int64:
        record["number"] += 1
        return np.int64(record["number"])

    records = [{"number": n} for n in range(MANY)]
    options: dict[str, Any] = {"batch_size": MANY, "transform": changed, "processes": 1}
    with FeedRunner(records, **options, epochs=2) as runner:
        assert all(np.array_equal(np.sort(b), np.arange(1, MANY + 1)) for b in runner)


def test_workers_map_the_pickles() -> None:
    found = sent(compact([{"number": n} for n in range(MANY)]))
    assert not found._pickles.flags.owndata and not found._pickles.flags.writeable

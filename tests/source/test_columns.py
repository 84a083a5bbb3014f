"""Columns of lists, tuples and tables: which way a source is read, and what a function gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import FeedOptions, FeedRunner, OptionError, SpecError
from fastfeed.core.collate import aligned_arrays
from fastfeed.core.structure import leaves_of, structure_of
from fastfeed.source import arrays_from
from tests.source.test_arrays import LENGTH, Pair, X, Y, batches, feed, in_each

NAMES = [f"{n}/\u00e4\u4e2d" for n in range(LENGTH)]


class Sample:
    """An object that is no array."""

    def __init__(self, number: int) -> None:
        self.number = number


class Graph:
    """An object that is no sequence, and has the methods of one: its items are the nodes."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))

    def __getitem__(self, node: int) -> dict[int, int]:
        return {node: 1}


COLUMNS: dict[str, list[Any]] = {
    "text": NAMES,
    "text with zeros": [f"{n}\0" for n in range(LENGTH)],
    "bytes": [b"%d\0" % 10**n for n in range(LENGTH)],
    "int": list(range(LENGTH)),
    "float": [n / 2 for n in range(LENGTH)],
    "bool": [n % 3 == 0 for n in range(LENGTH)],
    "large": [2**70 + n for n in range(LENGTH)],
    "None": [None] * LENGTH,
    "mixed": [n if n % 2 else str(n) for n in range(LENGTH)],
    "numpy": list(Y),
    "rows": [[n, n + 1] for n in range(LENGTH)],
    "ragged": [[n] * (n % 3) for n in range(LENGTH)],
    "pairs": [(n, str(n)) for n in range(LENGTH)],
    "dicts": [{"n": n} for n in range(LENGTH)],
    "arrays": [np.full(n % 4, n) for n in range(LENGTH)],
    "objects": [Sample(n) for n in range(LENGTH)],
}


@in_each
@pytest.mark.parametrize("named", [False, True])
def test_functions_get_the_items_of_lists_as_they_were(
    threads: int, processes: int, *, named: bool
) -> None:
    def number(record: Any) -> Any:
        assert type(record) is (Pair if named else tuple)
        items, place = record
        assert type(place) is int and items.keys() == COLUMNS.keys()
        for kind, item in items.items():
            known = COLUMNS[kind][place]
            assert type(item) is type(known), kind
            if isinstance(item, Sample):
                assert item.number == known.number
            else:
                np.testing.assert_equal(item, known)
        return place

    source = (COLUMNS, range(LENGTH))
    options = {"threads": threads, "processes": processes, "shuffle": True}
    found = batches(Pair(*source) if named else source, transform=number, **options)
    assert sorted(np.concatenate(found).tolist()) == list(range(LENGTH))


def test_lists_of_rows_of_varying_length_are_padded() -> None:
    ((padded, _),) = batches(([[1], [1, 2, 3], []], [0, 1, 2]), pad=True)
    assert padded.tolist() == [[1, 0, 0], [1, 2, 3], [0, 0, 0]]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(st.integers(), st.floats(), st.booleans(), st.text(), st.none()),
        min_size=1,
        max_size=5,
    )
)
def test_items_of_a_list_are_never_cast(items: list[Any]) -> None:
    source = arrays_from((items, list(range(len(items)))), FeedOptions(batch_size=2, transform=len))
    for n, item in enumerate(items):
        found, place = source[n]
        numbers = {type(item), type(found)} == {int, float}  # integers among floats
        assert place == n and (type(found) is type(item) or numbers)
        assert found == item or found != found
    gathered = source.gather([0], aligned_arrays)
    kinds = set(map(type, items))
    if gathered is not None:
        assert len(kinds) == 1 or kinds == {int, float}
        assert gathered[0].tolist() == items[:1] or items[0] != items[0]


@pytest.mark.parametrize(
    ("source", "first"),
    [
        (tuple(zip(NAMES, Y.tolist(), strict=True)), (NAMES[:8], Y[:8])),
        (({"a": 1, "b": "x"}, {"a": 2, "b": "y"}), {"a": [1, 2], "b": ["x", "y"]}),
        ((Pair(1, 2), Pair(3, 4), Pair(5, 6)), Pair([1, 3, 5], [2, 4, 6])),
        (("a", "b", "c"), ["a", "b", "c"]),
        ((1, 2, 3), [1, 2, 3]),
        (tuple(np.float32([1, 2])), np.float32([1, 2])),
        ((NAMES, Y.tolist()), (NAMES[:8], Y[:8])),
        (tuple(zip(*zip(NAMES, Y.tolist(), strict=True), strict=True)), (NAMES[:8], Y[:8])),
        (((X, X[:, 0]), (Y, Y)), ((X[:8], X[:8, 0]), (Y[:8], Y[:8]))),
    ],
)
def test_a_tuple_is_read_the_only_way_that_it_can_be(source: Any, first: Any) -> None:
    (found, *_) = batches(source)
    np.testing.assert_equal(
        [leaf.tolist() for leaf in leaves_of(structure_of(found), found) or []],
        [np.asarray(leaf).tolist() for leaf in leaves_of(structure_of(found), first) or [first]],
    )


@pytest.mark.parametrize(
    "source",
    [
        ((1, 2), (3, 4)),
        ((X, Y), (-X, -Y)),
        ({"x": X, "y": Y}, {"x": -X, "y": -Y}),
        (Pair(X, Y), Pair(-X, -Y)),
        {"box": ((0, 1, 2),) * 3, "label": [0, 1, 2]},
        ((X[:2], X[:2]), Y[:2]),
    ],
)
def test_a_tuple_that_can_be_read_both_ways_is_refused_with_both(source: Any) -> None:
    with pytest.raises(OptionError, match=r"two ways: .* list\(source\), and .*\{'x': x, 'y': y\}"):
        feed(source)
    if isinstance(source, tuple):
        assert len(batches(list(source), batch_size=1, transform=lambda record: 1)) == 2


def test_tables_of_pyarrow() -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"name": NAMES, "number": Y})
    for source in (
        table,
        table.to_batches()[0],
        {"name": table["name"], "number": table["number"]},
    ):
        for batch in batches(source):
            assert batch["name"].tolist() == [NAMES[n] for n in batch["number"]]


def test_missing_values_of_a_dictionary_are_no_last_category() -> None:
    pa = pytest.importorskip("pyarrow")
    column = pa.array(["a", "b", None, "a"]).dictionary_encode()
    with pytest.raises(OptionError, match="column 'name' is dictionary-encoded and has missing"):
        FeedRunner(pa.table({"name": column, "number": range(4)}), batch_size=2)
    with pytest.raises(OptionError, match="is dictionary-encoded and has missing"):
        FeedRunner({"name": pa.chunked_array([column])}, batch_size=2)
    with pytest.raises(OptionError, match=r"integers beyond 2\*\*53 and missing"):
        FeedRunner({"n": pa.chunked_array([pa.array([2**53 + 1, None])])}, batch_size=2)
    with FeedRunner(pa.table({"name": column.drop_null(), "n": range(3)}), batch_size=3) as runner:
        assert [str(one) for one in next(iter(runner))["name"]] == ["a", "b", "a"]


def test_a_sparse_column_is_refused_with_the_way_out() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(SpecError, match=r"source\[1\] is a csr_.*dense.*x\.toarray\(\)"):
        feed((X, sparse.eye(LENGTH, format="csr")))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([Sample(1)] * LENGTH, r"record\[1\] of batch 0 is an object array that holds Sample"),
        (np.array([None, 1] * 25), "record 1 of batch 0 has another structure"),
        ([Y, Y[:3]] * 25, r"record\[1\] of batch 0 has records of varying shape.*pad=True"),
        (np.array([Y, Y[:3]] * 25, object), "varying shape.*pad=True"),
        ([1, "a"] * 25, r"record\[1\] of batch 0 has dtype int64 in one record and object"),
        ([Graph()] * LENGTH, r"record\[1\] of batch 0 is a Graph, .* in transform= or collate="),
        ([True, 2] * 25, r"record\[1\] of batch 0 has dtype bool in one record and int64"),
        ([Y, {"a": 1}] * 25, "record 1 of batch 0 has another structure"),
    ],
)
def test_items_that_make_no_batch_need_a_transform(column: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        batches((X, column))
    assert len(batches((X, column), transform=lambda record: record[0])) == 7


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("leaf", [Graph(), Sample(1), 3, np.int64(3), np.array(3), "text", b"data"])
def test_a_batch_of_no_rows_is_refused_with_the_way_out(processes: int, leaf: Any) -> None:
    said = "(set records=True, batch_size=32; )?make arrays of .* in transform= or collate="
    with pytest.raises(SpecError, match=said):
        batches(iter([(X, leaf)]), records=False, batch_size=None, processes=processes)


@pytest.mark.parametrize("source", [(X, Y, None), {"a": X, "b": None}, ([1, 2], ["a", "b"], None)])
@pytest.mark.parametrize("processes", [0, 1])
def test_none_beside_columns_is_part_of_the_structure(source: Any, processes: int) -> None:
    with FeedRunner(source, batch_size=2, processes=processes) as runner:
        batch = next(iter(runner))
    assert type(batch) is type(source)
    assert (batch["b"] if isinstance(batch, dict) else batch[2]) is None

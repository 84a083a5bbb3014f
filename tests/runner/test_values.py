"""Values that go in come out, equal in threads and in worker processes, or are refused alike."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import FeedRunner, SpecError
from tests.helpers.streams import LIMIT_S

EXECUTORS: list[dict[str, int]] = [{"threads": 1}, {"processes": 1}]
any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=4)
NUMBERS = ["?", "u1", "i2", ">i4", "u8", ">f2", "f4", "f8", "g", "c8", "F", "bfloat16"]
LAYOUTS: list[Callable[[Any], Any]] = [
    lambda x: x,
    np.asfortranarray,
    lambda x: np.repeat(x, 2, axis=0)[::2],
    lambda x: x[::-1].copy()[::-1],
    lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),  # read-only
]
FORMS: list[Callable[[list[Any]], Any]] = [list, lambda v: np.array([*v, None], object)[:-1]]


def numbers(dtype: str, seed: int, *, rows: int) -> Any:
    """An array with all the bits of its dtype in use, but no NaN."""
    pytest.importorskip("ml_dtypes")  # gives numpy the name bfloat16
    raw = np.random.default_rng(seed).integers(-(2**62), 2**62, (rows, 3)) * 3
    kind = np.dtype(dtype)
    return (raw % 2**8 if kind.name in ("float16", "bfloat16") else raw).astype(kind)


@st.composite
def batches(draw: st.DrawFn) -> list[dict[str, Any]]:
    dtype = draw(st.sampled_from(NUMBERS))
    found = []
    for _ in range(draw(st.integers(1, 6))):
        n = 3
        x = draw(st.sampled_from(LAYOUTS))(numbers(dtype, draw(st.integers(0, 99)), rows=n))
        form = draw(st.sampled_from(FORMS))
        text = form(draw(st.lists(any_text, min_size=n, max_size=n)))
        data = form(draw(st.lists(st.binary(max_size=3), min_size=n, max_size=n)))
        batch = {"x": x, "text": text, "data": data}
        found.append(dict(sorted(batch.items(), reverse=draw(st.booleans()))))
    return found


def delivered(stream: list[Any], records: bool, **executor: int) -> list[Any]:
    def source(worker: Any) -> Iterator[Any]:
        for batch in stream:
            rows = [{k: v[i] for k, v in batch.items()} for i in range(3)]
            yield from rows if records else [batch]

    options: dict[str, Any] = {"records": True, "batch_size": 3} if records else {}
    with FeedRunner(source, stall_timeout_s=LIMIT_S, **options, **executor) as runner:
        return [{k: (v.dtype, v.tolist()) for k, v in batch.items()} for batch in runner]


@settings(max_examples=6, deadline=None)
@given(batches(), st.booleans())
def test_what_goes_in_comes_out_alike_in_threads_and_processes(
    stream: list[dict[str, Any]], records: bool
) -> None:
    threads, processes = (delivered(stream, records, **executor) for executor in EXECUTORS)
    assert len(threads) == len(processes) == len(stream)
    for one, other, given_ in zip(threads, processes, stream, strict=True):
        assert list(one) == list(other) == list(stream[0])
        for key, values in given_.items():
            assert one[key][1] == other[key][1] == list(map(_plain, values))
        assert one["x"][0] == other["x"][0] == given_["x"].dtype.newbyteorder("=")


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("executor", EXECUTORS, ids=str)
def test_labels_of_integers_and_floats_are_cast_or_refused(executor: dict[str, int]) -> None:
    options: dict[str, Any] = {"batch_size": 2, "stall_timeout_s": LIMIT_S, **executor}
    labels = [1, 2, 1, 1.5, 2.5, 3]  # the first batch has integers only
    refused = pytest.raises(SpecError, match=r"of batch 1 has dtype int64 .* float64.*dtypes=")
    with FeedRunner(labels, **options) as runner, refused:
        list(runner)
    refused = pytest.raises(SpecError, match="batch 1 has dtype float64: expected int64.*dtypes=")
    with FeedRunner(labels, dtypes="f4", **options) as runner, refused:
        list(runner)
    with FeedRunner([{"y": y} for y in labels], dtypes={"y": "f4"}, **options) as runner:
        found = [batch["y"] for batch in runner]
    assert [x.tolist() for x in found] == [[1, 2], [1, 1.5], [2.5, 3]]
    assert {x.dtype for x in found} == {np.dtype("f4")}


@dataclass
class Sample:
    """A record, or a batch, of a class."""

    x: Any
    y: Any


def in_function(x: Any, y: Any) -> Any:
    class Local(NamedTuple):
        x: Any
        y: Any

    return Local(x, y)


FORMS_OF_A_PAIR: dict[str, Callable[[int, Any, Any], Any]] = {
    "keys in turn": lambda n, x, y: {"x": x, "y": y} if n % 2 else {"y": y, "x": x},
    "OrderedDict": lambda n, x, y: OrderedDict([("x", x), ("y", y)][:: 1 if n % 2 else -1]),
    "NamedTuple": lambda n, x, y: in_function(x, y),
    "dataclass": lambda n, x, y: Sample(x, y),
    "dataclass in a function": lambda n, x, y: make_dataclass("Local", ["x", "y"])(x, y),
}


def x_of(batch: Any) -> list[Any]:
    both = batch if isinstance(batch, dict) else {"x": batch.x, "y": batch.y}
    x, y = ([float(v) for v in both[key]] for key in "xy")
    assert y == [-v for v in x]
    return x


@pytest.mark.parametrize("executor", EXECUTORS, ids=str)
@pytest.mark.parametrize("form", ["keys in turn", "dataclass"])
def test_values_follow_their_names_from_feed_to_feed(executor: dict[str, int], form: str) -> None:
    pytest.importorskip("torch")
    pair = FORMS_OF_A_PAIR[form]

    def record(n: int, worker: Any) -> Any:
        return pair(worker.epoch, np.float32(n), np.float32(-n))

    options: dict[str, Any] = {"batch_size": 4, "transform": record, "stall_timeout_s": LIMIT_S}
    with FeedRunner(range(1, 17), shuffle=True, seed=1, **options, **executor) as runner:
        batches = runner.torch()
        x_of(next(iter(batches)))  # the next iteration has another feed, with its own first batch
        found = [x for batch in batches for x in x_of(batch)]
    assert sorted(found) == list(range(1, 17))


@pytest.mark.parametrize("executor", [{"threads": 2}, {"processes": 2}], ids=str)
@pytest.mark.parametrize("form", FORMS_OF_A_PAIR)
def test_values_follow_their_names_from_producer_to_producer(
    executor: dict[str, int], form: str
) -> None:
    def source(worker: Any) -> Iterator[Any]:
        for n in range(1 + worker.index, 9, worker.count):
            yield FORMS_OF_A_PAIR[form](worker.index, np.full(2, n), np.full(2, -n))

    with FeedRunner(source, stall_timeout_s=LIMIT_S, **executor) as runner:
        found = [x_of(batch)[0] for batch in runner]
    assert sorted(found) == list(range(1, 9))


@pytest.mark.parametrize("executor", EXECUTORS, ids=str)
def test_a_batch_of_a_class_comes_back_as_that_class(executor: dict[str, int]) -> None:
    def source(worker: Any) -> Iterator[Any]:
        yield Sample(np.arange(3), [b"a\0", b"", b"b"])

    with FeedRunner(source, stall_timeout_s=LIMIT_S, **executor) as runner:
        (batch,) = runner
    assert type(batch) is Sample
    assert (batch.x.tolist(), batch.y.tolist()) == ([0, 1, 2], [b"a\0", b"", b"b"])


INDEX_LISTS = [[3, 1], [0], [5, 2, 4], [1, 1, 0, 2]]
LENGTHS = [1, 4, 2, 3, 1, 2]


def batch_of(indices: list[int]) -> dict[str, Any]:
    longest = max(LENGTHS[i] for i in indices)
    tokens = [[i] * LENGTHS[i] + [0] * (longest - LENGTHS[i]) for i in indices]
    return {"tokens": np.array(tokens, "i4"), "count": np.array([LENGTHS[i] for i in indices])}


@pytest.mark.parametrize("executor", [{"threads": 3}, {"processes": 2}], ids=str)
def test_batches_of_a_token_budget_keep_their_rows_lengths_and_order(
    executor: dict[str, int],
) -> None:
    options: dict[str, Any] = {"records": False, "transform": batch_of, "pad": True, **executor}
    want = [batch_of(indices)["tokens"].tolist() for indices in INDEX_LISTS]
    with FeedRunner(INDEX_LISTS, stall_timeout_s=LIMIT_S, **options) as runner:
        batches = iter(runner)
        found = [next(batches)["tokens"].tolist() for _ in range(2)]
        state = runner.state()
    assert found == want[:2]
    with FeedRunner(INDEX_LISTS, stall_timeout_s=LIMIT_S, **options).restore(state) as runner:
        assert [batch["tokens"].tolist() for batch in runner] == want[2:]


@pytest.mark.parametrize("executor", EXECUTORS, ids=str)
def test_small_floats_and_text_of_torch_are_what_they_were(executor: dict[str, int]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    names = ["a\0", os.fsdecode(b"\xff.png"), ""]

    def source(worker: Any) -> Iterator[Any]:
        yield {"x": torch.ones(3, dtype=torch.bfloat16, requires_grad=True), "name": names}

    with FeedRunner(source, stall_timeout_s=LIMIT_S, **executor) as runner:
        (batch,) = runner.torch()
    assert batch["x"].dtype == torch.bfloat16 and batch["x"].tolist() == [1, 1, 1]
    assert batch["name"] == names

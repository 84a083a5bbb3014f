"""Bad input to a stream is refused by name, before any record is lost."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from fastfeed import (
    FeedRunner,
    FeedWarning,
    OptionError,
    ProducerError,
    Shard,
    Shuffle,
    StateError,
    Worker,
)
from fastfeed.samplers import Balanced, Weighted
from fastfeed.source.mix import Mix
from tests.helpers.feeds import Readable, chunks, shared_out
from tests.helpers.mixes import BrokenRows
from tests.helpers.streams import LIMIT_S

MIXES = [(0, 1), (0, 3), (1, 1)]
in_each_mix = pytest.mark.parametrize("mix", MIXES, ids=str)


def refused(source: Any, **options: Any) -> str:
    """Return the error of a runner that cannot be made."""
    with pytest.raises(OptionError) as caught:
        FeedRunner(source, **{"batch_size": 2, **options})
    return str(caught.value)


@pytest.mark.parametrize("drawn", [{"shuffle": True}, {"sampler": Weighted([1.0] * 10)}])
def test_ranks_without_a_common_seed(drawn: dict[str, Any]) -> None:
    """Each would draw another order; a run that goes on has the seed of its state."""
    options = {"batch_size": 2, "shard": Shard(0, 2, "drop"), **drawn}
    with (
        FeedRunner(range(10), **options) as runner,
        pytest.raises(OptionError, match="the same one in each rank"),
    ):
        next(iter(runner))
    with FeedRunner(range(10), seed=5, **options) as runner:
        batches = iter(runner)
        first, state = next(batches), runner.state()
        rest = [batch.tolist() for batch in batches]
    with FeedRunner(range(10), **options).restore(state) as runner:
        assert [batch.tolist() for batch in runner] == rest
    assert len(first) == 2


def test_records_that_cannot_be_divided() -> None:
    assert "must be 0 to 2 in a world of 3, got (3, 3)" in refused(range(10), shard=(3, 3))
    assert "two integers" in refused(range(10), shard="01")
    assert all(
        word in refused(range(10), shard=(0, 3)) for word in ('remainder="drop"', 'remainder="pad"')
    )
    assert "use fewer ranks" in refused(range(2), shard=Shard(0, 3, "drop"))
    assert 'remainder="drop"' in refused(Readable(lambda: chunks(10, 2)), shard=(0, 3))
    assert 'remainder="drop"' in refused(Readable(lambda: chunks(10, 2)), shard=Shard(0, 3, "pad"))
    assert "`worker`" in refused(lambda: chunks(10, 2), shard=(0, 3))
    with FeedRunner(range(2), batch_size=1, shard=Shard(2, 3, "pad")) as runner:
        assert [batch.tolist() for batch in runner] == [[0]], (
            "a world that is larger than the data can be padded"
        )


def test_a_seed_may_be_any_integer() -> None:
    for seed in (0, 2**80, np.int64(3), np.uint8(7)):
        with FeedRunner(range(10), batch_size=2, seed=seed, shuffle=True) as runner:
            first = next(iter(runner)).tolist()
            state = json.loads(json.dumps(runner.state()))
        with FeedRunner(range(10), batch_size=2, shuffle=True).restore(state) as runner:
            assert first not in [batch.tolist() for batch in runner]


class Growing:
    """An indexable whose length grows while it is read."""

    length = 10

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


@in_each_mix
def test_a_length_that_changes_between_epochs(mix: tuple[int, int]) -> None:
    source = Growing()
    options: dict[str, Any] = {"processes": mix[0], "threads": mix[1], "stall_timeout_s": LIMIT_S}
    with FeedRunner(source, batch_size=5, **options) as runner:
        assert len(list(runner)) == 2
        source.length = 12
        with pytest.raises(OptionError, match="length changed from 10 to 12"):
            for _ in range(3):  # one pass may be made ahead already
                list(runner)


@in_each_mix
def test_a_record_that_is_not_there(mix: tuple[int, int]) -> None:
    class Short(Growing):
        def __getitem__(self, index: int) -> int:
            if index > 6:
                raise IndexError(f"no row {index}")
            return index

    options: dict[str, Any] = {"processes": mix[0], "threads": mix[1], "stall_timeout_s": LIMIT_S}
    for shuffle in (None, True, Shuffle(6, 2)):
        says = r"record [789] of batch \d raised IndexError: no row"
        with (
            FeedRunner(Short(), batch_size=2, shuffle=shuffle, **options) as runner,
            pytest.raises(ProducerError, match=says),
        ):
            list(runner)


def test_a_sampler_that_cannot_be_asked_again() -> None:
    assert "iterable again in every epoch" in refused(range(10), sampler=iter([1, 2]))
    assert "leave out either shuffle=" in refused(range(10), sampler=[1, 2], shuffle=True)
    assert "sampler=" in refused(Readable(lambda: chunks(10, 2)), sampler=[1])
    assert "sampler=" in refused(shared_out(10, 2), sampler=[1])
    assert "9 weights" in refused(range(10), sampler=Weighted([1] * 9))
    assert "11 labels" in refused(range(10), sampler=Balanced([1] * 11))
    assert "leave out sampler=" in refused(Mix([(range(10), 1)]), sampler=[1])


class TurnsBad:
    """A sampler that fails in its second epoch."""

    def indices(self, seed: int, epoch: int, *, length: int) -> list[int]:
        return [0, 1] if epoch == 0 else [0, -1]


@in_each_mix
def test_a_sampler_that_goes_wrong_later(mix: tuple[int, int]) -> None:
    options: dict[str, Any] = {"processes": mix[0], "threads": mix[1], "stall_timeout_s": LIMIT_S}
    with FeedRunner(range(10), batch_size=1, sampler=TurnsBad(), epochs=2, **options) as runner:
        found = []
        with pytest.raises(OptionError, match="got -1 at position 1"):
            found.extend(batch.tolist() for batch in runner)
    assert found == [[0], [1]]


def test_a_batch_that_never_fills() -> None:
    for source, options in ((range(10), {}), (range(40), {"shard": Shard(1, 4, "drop")})):
        message = refused(source, batch_size=11, last_batch="drop", **options)
        assert "can never be filled" in message and "10 records" in message
        assert ("shard" in message) is bool(options)
    assert "min_after_dequeue + batch_size" in _first_error(
        range(100), batch_size=9, shuffle=Shuffle(10, 2)
    )
    message = _first_error(range(6), batch_size=7, last_batch="drop", shuffle=Shuffle(20, 2))
    assert "can never be filled" in message


def _first_error(source: Any, **options: Any) -> str:
    """Return the error of a runner that is refused with its first batch at the latest."""
    with (
        pytest.raises(OptionError) as caught,
        FeedRunner(source, stall_timeout_s=LIMIT_S, **options) as runner,
    ):
        next(iter(runner))
    return str(caught.value)


def state_of(source: Any = range(20), **options: Any) -> dict[str, Any]:
    """Return the state after one batch."""
    with FeedRunner(source, **{"batch_size": 4, "seed": 1, **options}) as runner:
        next(iter(runner))
        return json.loads(json.dumps(runner.state()))


@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        (range(21), {}, "length was 20 and is 21"),
        (list(range(20)), {}, "class was 'range' and is 'list'"),
        (range(20), {"batch_size": 5}, "batch_size was 4 and is 5"),
        (range(20), {"seed": 2}, "seed was 1 and is 2"),
        (range(20), {"shuffle": True}, "shuffle was False and is True"),
        (range(20), {"shuffle": Shuffle(9, 2)}, r"shuffle was False and is \[9, 2\]"),
        (range(20), {"shard": (0, 2)}, r"world was None and is 2"),
        (range(20), {"sampler": [1, 2]}, "sampler was None and is 'list"),
        (range(20), {"records": False, "batch_size": None}, "records was True and is False"),
        (
            Readable(lambda: range(20)),
            {"records": True},
            "source was 'indexable' and is 'iterable'",
        ),
        (shared_out(20, 4), {"batch_size": None}, "source was 'indexable' and is 'callable'"),
    ],
)
def test_a_state_of_another_stream(source: Any, options: dict[str, Any], says: str) -> None:
    runner = FeedRunner(source, **{"batch_size": 4, "seed": 1, **options})
    with pytest.raises(OptionError, match=says):
        runner.restore(state_of())


def test_a_state_of_another_shuffle_is_refused_at_once() -> None:
    state = state_of(shuffle=Shuffle(9, 2))
    for options, says in (
        ({"shuffle": Shuffle(10, 2)}, r"shuffle was \[9, 2\] and is \[10, 2\]"),
        ({"last_batch": "drop"}, "last_batch was 'keep' and is 'drop'"),
    ):
        with pytest.raises(OptionError, match=says):
            FeedRunner(
                range(20), **{"batch_size": 4, "seed": 1, "shuffle": Shuffle(9, 2), **options}
            ).restore(state)


@pytest.mark.parametrize(
    "bad", [None, {}, [], "x", {"version": 2}, {"version": 1}, {"version": 1, "seed": 1}]
)
def test_what_is_no_state(bad: Any) -> None:
    with pytest.raises(OptionError, match="state"):
        FeedRunner(range(20), batch_size=4).restore(bad)


@in_each_mix
def test_restore_is_for_the_beginning(mix: tuple[int, int]) -> None:
    state = state_of()
    with FeedRunner(range(20), batch_size=4, seed=1, processes=mix[0], threads=mix[1]) as runner:
        next(iter(runner))
        with pytest.raises(StateError, match="restore"):
            runner.restore(state)
        assert len(list(runner)) == 4, "and changes nothing"


def test_a_stream_that_is_read_again_says_what_it_costs(caplog: pytest.LogCaptureFixture) -> None:
    def deaf(worker: Worker) -> Iterator[Any]:
        return chunks(20, 2)

    def skipping(worker: Worker) -> Iterator[Any]:
        return islice(chunks(20, 2), worker.start, None)

    for source in (Readable(lambda: chunks(20, 2)), lambda: chunks(20, 2)):
        with pytest.warns(FeedWarning, match="produced again and skipped"):
            FeedRunner(source).restore(state_of(source, batch_size=None))
    for source, told in ((deaf, True), (skipping, False)):
        state = state_of(source, batch_size=None)
        caplog.clear()
        with (
            caplog.at_level(logging.WARNING, "fastfeed"),
            FeedRunner(source).restore(state) as runner,
        ):
            assert next(ids.tolist() for ids, _ in runner) == [2, 3]
        assert ("delivered already are skipped" in caplog.text) is told


def test_errors_that_are_skipped_leave_the_rest_where_it_is() -> None:
    options: dict[str, Any] = {"batch_size": 4, "on_error": "skip", "epochs": 2, "seed": 1}
    for shuffle in (None, True, Shuffle(12, 4)):
        source = BrokenRows(23, {2, 7, 12, 22})
        with FeedRunner(source, shuffle=shuffle, **options) as runner:
            whole = [batch.tolist() for batch in runner]
        for cut in range(len(whole)):
            with FeedRunner(source, shuffle=shuffle, threads=3, **options) as first:
                found = [batch.tolist() for batch in islice(first, cut)]
                state = first.state()
            with FeedRunner(source, shuffle=shuffle, threads=2, **options).restore(state) as second:
                assert found + [batch.tolist() for batch in second] == whole

"""A run of a callable continues with other producers than it began with: the streams remain the
same."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fastfeed import FeedRunner, OptionError, ProducerError, Shuffle, Worker
from tests.helpers.streams import LIMIT_S, SEED, Rows

EPOCHS = 2
in_threads = settings(max_examples=60)
in_processes = settings(max_examples=5, phases=(Phase.explicit, Phase.reuse, Phase.generate))
threads_only = st.tuples(st.just(0), st.integers(1, 5))
single_threads = st.tuples(st.integers(1, 3), st.just(1))
any_mixes = st.tuples(st.integers(0, 2), st.integers(1, 3))
cuts = st.lists(st.integers(0, 15), min_size=2, max_size=2)
pytestmark = pytest.mark.filterwarnings("ignore:the state is .* the epoch")


OWN = np.random.default_rng(3)


@dataclass(frozen=True)
class Drawing:
    """The rows of each producer: (index, count, epoch, number, draws of worker.rng, of `random`, of
    numpy and of two other generators). Lengths differ. A producer that skips starts at worker.start
    with new generators, and draws nothing for the skipped rows."""

    lengths: tuple[int, ...]
    skips: bool = False
    records: bool = False
    held: random.Random = field(default_factory=lambda: random.Random(3), compare=False)

    def __call__(self, worker: Worker) -> Iterator[np.ndarray]:
        for number in range(
            worker.start if self.skips else 0, self.lengths[worker.index % len(self.lengths)]
        ):
            draws = [worker.rng.integers(2**62), random.getrandbits(62), np.random.randint(2**62)]
            draws += [self.held.getrandbits(62), OWN.integers(2**62)]
            row = np.array(
                [
                    worker.index,
                    worker.count,
                    worker.epoch,
                    number,
                    *([0] * 5 if self.skips else draws),
                ]
            )
            yield row if self.records else row[None]


@st.composite
def sources(draw: st.DrawFn) -> tuple[Drawing, dict[str, Any]]:
    source = Drawing(
        tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))),
        draw(st.booleans()),
        draw(st.booleans()),
    )
    options: dict[str, Any] = {"shuffle": draw(st.sampled_from([None, Shuffle(12, 4)]))}
    if source.records or options["shuffle"] or draw(st.booleans()):
        options["batch_size"] = draw(st.integers(1, 4))
    return source, {"records": source.records, **options}


def runner(source: Any, mix: tuple[int, int], state: Any = None, **options: Any) -> FeedRunner:
    options = {"seed": SEED, "epochs": EPOCHS, "stall_timeout_s": LIMIT_S, **options}
    runner = FeedRunner(source, processes=mix[0], threads=mix[1], **options)
    return runner if state is None else runner.restore(json.loads(json.dumps(state)))


def resumed(source: Any, mixes: list[tuple[int, int]], cut: list[int], **options: Any) -> Rows:
    """Return the rows of a run over several runners in turn; the last one produces the rest."""
    found, state = [], None
    for mix, count in zip(mixes, [*cut, None], strict=True):
        with runner(source, mix, state, **options) as now:
            found += [row for batch in islice(now, count) for row in batch.tolist()]
            state = now.state()
            assert state["of"]["producers"] == max(1, mixes[0][0]) * mixes[0][1], "the streams stay"
    return found


def check(
    source: Drawing, options: dict[str, Any], mixes: list[tuple[int, int]], cut: list[int]
) -> None:
    count = max(1, mixes[0][0]) * mixes[0][1]
    if not any(source.lengths[:count]):
        return
    with runner(source, mixes[0], **options) as whole:
        wanted = [row for batch in whole for row in batch.tolist()]
    length = len(wanted) // options.get("batch_size", 1)
    # a run that is complete is followed by another one
    cut = [min(cut[0], length // 2), min(cut[1], length // 3)]
    found = resumed(source, mixes, cut, **options)
    # threads share all but worker.rng
    kept = 9 if all(mix[0] and mix[1] == 1 for mix in mixes) else 5
    assert Counter(tuple(row[:kept]) for row in found) == Counter(
        tuple(row[:kept]) for row in wanted
    )
    assert [row[2] for row in found] == sorted(row[2] for row in found), "epochs mix"
    if not options["shuffle"]:
        for index in range(count):
            own = [(row[2], row[3]) for row in found if row[0] == index]
            assert own == sorted(own), f"stream {index} is in another order"


@in_threads
@given(sources(), st.lists(threads_only, min_size=3, max_size=3), cuts)
def test_other_threads_go_on_with_the_streams(
    given: Any, mixes: list[tuple[int, int]], cut: list[int]
) -> None:
    check(*given, mixes, cut)


@pytest.mark.slow
@in_processes
@given(sources(), st.lists(any_mixes, min_size=3, max_size=3), cuts)
def test_other_processes_go_on_with_the_streams(
    given: Any, mixes: list[tuple[int, int]], cut: list[int]
) -> None:
    check(*given, mixes, cut)


@pytest.mark.slow
@in_processes
@given(sources(), st.lists(single_threads, min_size=3, max_size=3), cuts)
def test_each_stream_has_the_draws_of_its_own(
    given: Any, mixes: list[tuple[int, int]], cut: list[int]
) -> None:
    check(*given, mixes, cut)


@pytest.mark.parametrize("mix", [(0, 1), (0, 3), (2, 1)], ids=str)
@in_processes
@given(total=st.integers(1, 12), threads=st.integers(1, 4), cut=st.integers(0, 12))
def test_as_many_copies_are_delivered_as_at_first(
    mix: tuple[int, int], total: int, threads: int, cut: int
) -> None:
    def copy(worker: Worker) -> Iterator[np.ndarray]:
        return (np.array([[n]]) for n in range(total))

    cut = min(cut, threads * total - 1)
    found = resumed(copy, [(0, threads), mix], [cut], epochs=1)
    assert Counter(n for (n,) in found) == Counter(dict.fromkeys(range(total), threads))


@pytest.mark.parametrize("mix", [(0, 3), (2, 2)], ids=str)
def test_whoever_has_no_stream_is_no_empty_one(
    mix: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    def alone() -> Iterator[np.ndarray]:
        return (np.array([[n]]) for n in range(6))

    assert resumed(alone, [(0, 1), mix], [4]) == [[n] for n in range(6)] * EPOCHS
    idle = max(1, mix[0]) * mix[1] - 1
    assert f"{idle} of {idle + 1} producers have nothing to do" in caplog.text
    with runner(alone, (0, 2)) as fresh, pytest.raises(OptionError, match="Choose one of three"):
        list(fresh)


def test_streams_take_turns() -> None:
    found = resumed(Drawing((4, 2, 3)), [(0, 3), (0, 1)], [0], epochs=1)
    assert [row[0] for row in found] == [0, 1, 2, 0, 1, 2, 0, 2, 0]


def test_streams_of_all_ranks_are_counted() -> None:
    for rank in range(2):
        found = resumed(Drawing((3,)), [(0, 3), (0, 2)], [2], shard=(rank, 2))
        assert {(row[0], row[1]) for row in found} == {(3 * rank + n, 6) for n in range(3)}
        assert len(found) == len({tuple(row) for row in found}) == 3 * 3 * EPOCHS


def test_a_validation_goes_on_with_other_producers_too() -> None:
    def both(threads: int, state: Any, count: int | None) -> tuple[Rows, Any]:
        with FeedRunner(range(40), batch_size=4, threads=threads, stall_timeout_s=LIMIT_S) as train:
            also = train.also(Drawing((5, 4)), epochs=EPOCHS)
            if state is not None:
                also.restore(state)
            return [row for batch in islice(also, count) for row in batch.tolist()], also.state()

    found, state = both(2, None, 4)
    found += both(1, state, None)[0]
    assert sorted(row[:4] for row in found) == [
        [i, 2, e, n]
        for i, length in enumerate((5, 4))
        for e in range(EPOCHS)
        for n in range(length)
    ]


class Killed(Drawing):
    """A transform whose worker process dies once at each of some rows."""

    def at(
        self, folder: Path, rows: set[tuple[int, int, int]]
    ) -> Callable[[Worker], Iterator[np.ndarray]]:
        def stream(worker: Worker) -> Iterator[np.ndarray]:
            for row in self(worker):
                index, _, epoch, number = row[0, :4].tolist()
                mark = folder / f"{index} {epoch} {number}"
                if (index, epoch, number) in rows and not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield row

        return stream


@pytest.mark.slow
@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("mix", [(1, 1), (2, 1), (2, 2)], ids=str)
def test_a_worker_that_died_is_followed_by_one_with_its_streams(
    mix: Any, skips: bool, tmp_path: Path
) -> None:
    source = Killed((7, 3, 0, 6, 5), skips)
    with runner(source, (0, 5)) as fresh:
        wanted = [row[:5] for batch in fresh for row in batch.tolist()]
    with runner(source, (0, 5)) as fresh:
        found = [row[:5] for batch in islice(fresh, 6) for row in batch.tolist()]
        state = fresh.state()
    dying = source.at(tmp_path, {(0, 0, 6), (3, 1, 0), (1, 1, 2), (4, 1, 4)})
    with runner(dying, mix, state, on_worker_death="restart") as again:
        found += [row[:5] for batch in again for row in batch.tolist()]
    assert len(list(tmp_path.iterdir())) == 4
    assert sorted(found) == sorted(wanted)


def test_a_death_names_what_may_have_been_in_hand(tmp_path: Path) -> None:
    source = Killed((3, 3, 3), skips=True)
    with runner(source, (0, 3)) as fresh:
        state = fresh.state()
    named = (
        r"In flight: batch \d of producer 0 and batch \d of producer 1 and batch 1 of producer 2"
    )
    with (
        runner(source.at(tmp_path, {(2, 0, 1)}), (1, 1), state) as again,
        pytest.raises(ProducerError, match=named),
    ):
        list(again)

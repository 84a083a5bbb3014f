"""The promises of worker processes, kept by remote ones: order, exactly once, errors, states.
Actors of Ray are replaced by actors in this process, so that their loss can be placed anywhere."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastfeed
from fastfeed import FeedRunner, Pad, Remote, Reorder
from fastfeed.core.worker import Worker
from fastfeed.errors import FeedError, OptionError, ProducerDied, ProducerFailed
from fastfeed.producers.generators import HAS_YOUNG, Generators
from fastfeed.producers.remote import fleet
from tests.helpers.scripted import decide
from tests.producers.remote.local_cluster import LocalActor, LocalCluster

Cluster = Callable[..., LocalCluster]
RECORDS = np.arange(120, dtype=np.int64)
# local producers, and remote ones
MIXES = [(0, 1), (0, 3), (1, 2)]
mixes = pytest.mark.parametrize("mix", MIXES, ids="{0[0]}+{0[1]}".format)


@pytest.fixture(autouse=True)
def no_generators_in_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no actor look for generators: in the process of the trainer it would find those that the
    trainer and other actors make at that moment, and seed them."""
    monkeypatch.setattr(Generators, "made_since", lambda present, within: Generators())


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Have feeds use a LocalCluster with given losses; without any until it is called."""

    def use(*losses: int) -> LocalCluster:
        found = LocalCluster(losses)
        monkeypatch.setattr(fleet, "RayCluster", lambda remote: found)
        return found

    use()
    return use


def remote(source: Any, mix: tuple[int, int] = (0, 3), **more: Any) -> FeedRunner:
    return FeedRunner(source, processes=mix[0], remote=Remote("local", mix[1]), **more)


def drawn(record: Any, worker: Worker) -> Any:
    return record, worker.rng.random()


def read(runner: FeedRunner) -> list[Any]:
    with runner:
        return [[np.array(leaf) for leaf in batch] for batch in runner]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(a, b)
        for x, y in zip(one, other, strict=True)
        for a, b in zip(x, y, strict=True)
    )


@mixes
def test_order_and_draws_are_those_of_threads(mix: tuple[int, int]) -> None:
    options: dict[str, Any] = {"batch_size": 7, "transform": drawn, "seed": 3, "shuffle": True}
    want = read(FeedRunner(RECORDS, threads=2, epochs=2, **options))
    assert same(read(remote(RECORDS, mix, epochs=2, **options)), want)


@mixes
def test_generators_of_the_source_draw_anew_for_every_record(
    mix: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Drawing:
        """A transform that tells its thread what it holds when it is unpacked."""

        def __init__(self) -> None:
            self.held = [np.random.default_rng(3), random.Random(3)]

        def __setstate__(self, state: dict[str, Any]) -> None:
            vars(self).update(state)
            vars(threading.current_thread())["held"] = self.held

        def __call__(self, record: Any) -> Any:
            return record, self.held[0].integers(2**62), self.held[1].getrandbits(62)

    def held(present: Any, within: Any) -> Generators:
        found = vars(threading.current_thread())["held"]
        return Generators(found if HAS_YOUNG else found[::-1])  # as references lead to them

    monkeypatch.setattr(Generators, "made_since", held)
    options: dict[str, Any] = {"batch_size": 7, "transform": Drawing(), "seed": 3}
    found = read(remote(RECORDS, mix, **options))
    assert same(found, read(FeedRunner(RECORDS, processes=2, **options)))
    columns = (np.concatenate(leaf).tolist() for leaf in zip(*found, strict=True))
    assert [len(set(column)) for column in columns] == [len(RECORDS)] * 3


@mixes
def test_without_order_every_record_comes_once(mix: tuple[int, int]) -> None:
    with remote(RECORDS, mix, batch_size=7, order="any") as runner:
        for _ in range(2):
            assert sorted(np.concatenate(list(runner))) == RECORDS.tolist()


@mixes
def test_each_producer_of_a_callable_has_its_share(mix: tuple[int, int]) -> None:
    def share(worker: Worker) -> Iterator[Any]:
        yield from (np.full(2, n) for n in range(worker.index, 60, worker.count))

    with remote(share, mix) as runner:
        for _ in range(3):  # epochs
            assert sorted(batch[0] for batch in runner) == list(range(60))


def test_a_stream_is_read_here_and_transformed_there() -> None:
    items = ((np.full((2, 2), n), f"text {n}") for n in range(40))
    with remote(items, transform=lambda item: (item[0] * 2, [item[1]] * 2)) as runner:
        got = [(int(batch[0][0, 0]), batch[1][0]) for batch in runner]
    assert got == [(2 * n, f"text {n}") for n in range(40)]


@given(
    losses=st.sets(st.integers(1, 30), max_size=4),
    size=st.integers(1, 40),
    mix=st.sampled_from(MIXES[:2]),
    order=st.sampled_from(["kept", "any", Reorder(2)]),
)
def test_what_a_lost_actor_had_is_made_again_once(
    losses: set[int], size: int, mix: tuple[int, int], order: Any
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "RayCluster", lambda _: LocalCluster(sorted(losses)))
        runner = remote(
            RECORDS,
            mix,
            batch_size=size,
            seed=1,
            order=order,
            on_worker_death="restart",
        )
        with runner:
            got = [batch.tolist() for batch in runner]
    flat = [record for batch in got for record in batch]
    assert (flat if order == "kept" else sorted(flat)) == RECORDS.tolist()


@given(losses=st.sets(st.integers(1, 20), max_size=4), producers=st.integers(1, 3))
def test_a_lost_stream_of_a_callable_goes_on_behind_what_came(
    losses: set[int], producers: int
) -> None:
    def share(worker: Worker) -> Iterator[Any]:
        start = worker.start * worker.count + worker.index
        yield from (np.full(1, n) for n in range(start, 60, worker.count))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "RayCluster", lambda _: LocalCluster(sorted(losses)))
        with remote(share, (0, producers), on_worker_death="restart") as runner:
            assert sorted(int(batch[0]) for batch in runner) == list(range(60))


def test_a_loss_ends_the_feed_unless_it_may_restart(cluster: Cluster) -> None:
    cluster(2)
    with remote(RECORDS, batch_size=2) as runner, pytest.raises(ProducerDied) as caught:
        list(runner)
    assert "node here" in str(caught.value) and "because a test has killed it" in str(caught.value)
    assert caught.value.signal is None and 'on_worker_death="restart"' in str(caught.value)


class Broken:
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise ValueError("thirteen")
        return np.full(2, index)


def test_an_error_comes_with_its_traceback_and_node() -> None:
    with remote(Broken(), batch_size=2) as runner, pytest.raises(ProducerFailed) as caught:
        list(runner)
    assert isinstance(caught.value.__cause__, ValueError)
    for part in ("record 13 of batch 6", "on node", "process", 'raise ValueError("thirteen")'):
        assert part in str(caught.value)


def test_errors_may_be_skipped() -> None:
    with remote(Broken(), batch_size=2, on_error="skip") as runner:
        got = np.concatenate([batch[:, 0] for batch in runner])
        assert got.tolist() == [n for n in range(20) if n != 13]
        assert runner.snapshot().produced.errors == 1


@given(
    stop=st.integers(0, 24),
    before=st.sampled_from([*MIXES[:2], None]),
    after=st.sampled_from([*MIXES[:2], None]),
)
def test_a_state_goes_on_with_any_other_producers(
    stop: int, before: tuple[int, int] | None, after: tuple[int, int] | None
) -> None:
    options: dict[str, Any] = {"batch_size": 5, "seed": 9, "shuffle": True}

    def make(mix: tuple[int, int] | None) -> FeedRunner:
        if mix is None:
            return FeedRunner(RECORDS, threads=2, **options)
        return remote(RECORDS, mix, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "RayCluster", lambda _: LocalCluster())
        with FeedRunner(RECORDS, **options) as whole:
            want = [batch.tolist() for batch in whole]
        with make(before) as runner:
            got = [batch.tolist() for batch in itertools.islice(runner, stop)]
            state = runner.state()
        with make(after) as runner:
            runner.restore(state)
            got += [batch.tolist() for batch in runner]
    assert got == want


@mixes
def test_a_validation_shares_the_workers(mix: tuple[int, int], cluster: Cluster) -> None:
    found = cluster()
    with remote(RECORDS, mix, batch_size=10) as runner:
        validation = runner.also(RECORDS[:30], batch_size=10)
        assert (len(list(runner)), len(list(validation)), len(list(runner))) == (12, 3, 12)
        status = validation.status()
        assert status is not None and len(status.producers) == sum(mix)
    assert found.actors == mix[1]


@mixes
def test_a_feed_goes_on_with_other_actors(mix: tuple[int, int], cluster: Cluster) -> None:
    found = cluster()
    options = {"batch_size": 5, "transform": drawn, "seed": 3, "shuffle": True, "epochs": 3}
    expected = read(FeedRunner(RECORDS, **options))
    with remote(RECORDS, mix, **options) as runner:
        batches = iter(runner)
        got = [next(batches)]
        runner.resize(producers=5)
        got += [next(batches), next(batches)]
        runner.resize(producers=1, **({"processes": 3} if mix[0] else {}))
        got += batches
    assert same([[np.array(leaf) for leaf in batch] for batch in got], expected)
    assert found.actors == max(5, mix[1])


def test_an_actor_that_is_lost_while_it_leaves_loses_nothing(cluster: Cluster) -> None:
    cluster(2, 2, 2)
    with remote(RECORDS, batch_size=5, on_worker_death="restart") as runner:
        batches = iter(runner)
        got = [np.array(next(batches))]
        runner.resize(producers=1)
        got += [np.array(batch) for batch in batches]
    assert np.array_equal(np.concatenate(got), RECORDS)


def test_no_producer_is_put_on_a_node_that_does_not_answer(cluster: Cluster) -> None:
    found = cluster(3)
    found.silent = {"dead"}  # with more free CPUs than the other
    with remote(RECORDS, batch_size=10, on_worker_death="restart") as runner:
        assert len(list(runner)) == 12
    assert found.actors == 4 and set(found.places) <= {"here", None}


@pytest.mark.parametrize(
    "batch",
    [
        np.zeros((300, 1000)),  # not packed
        {"text": ["a", "bcd"], "n": np.arange(2)},
        (np.zeros((3, 0)), np.zeros(3, "S5"), np.zeros((3, 2), ">i4")),
    ],
    ids=["large", "text", "odd"],
)
def test_batches_of_every_form_arrive_unchanged(batch: Any) -> None:
    def twice(worker: Worker) -> Iterator[Any]:
        yield from [batch, batch]

    with remote(twice, (0, 1)) as runner:
        got = list(runner)
    want = list(FeedRunner(lambda: iter([batch, batch])))
    assert len(got) == 2
    np.testing.assert_equal(got, want)


@pytest.mark.parametrize("size", [10, 300_000], ids=["packed", "direct"])
def test_a_producer_may_use_its_memory_again(size: int) -> None:
    def reusing(worker: Worker) -> Iterator[Any]:
        array = np.zeros((1, size))
        for n in range(20):
            array[:] = n
            yield array

    with remote(reusing, (0, 1)) as runner:
        assert [int(batch[0, 0]) for batch in runner] == list(range(20))


def test_records_of_varying_length_are_padded_there() -> None:
    records = [np.arange(n % 7 + 1) for n in range(50)]
    options: dict[str, Any] = {"batch_size": 8, "pad": Pad(lengths=True)}
    with FeedRunner(records, **options) as here, remote(records, **options) as there:
        np.testing.assert_equal(list(there), list(here))


def test_memory_that_holds_no_batch_is_refused() -> None:
    with (
        remote(RECORDS, batch_size=60, memory="4KB") as runner,
        pytest.raises(OptionError) as caught,
    ):
        list(runner)
    assert "memory=" in str(caught.value)


def test_nodes_with_another_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalCluster, "version", "0.0.1")
    with remote(RECORDS, batch_size=2) as runner, pytest.raises(OptionError) as caught:
        list(runner)
    assert "0.0.1" in str(caught.value) and fastfeed.__version__ in str(caught.value)


def test_what_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()
    runner = remote(RECORDS, batch_size=2, transform=lambda x: (lock, x))
    with runner, pytest.raises(OptionError, match="lock"):
        list(runner)


def test_producers_show_their_node_and_counters() -> None:
    with remote(RECORDS, batch_size=2) as runner:
        list(runner)
        stream = runner._stream
        assert "remote=Remote(address='local', producers=3, cpus=1.0)" in repr(runner)
        assert sum(row.batches for row in runner.snapshot().producers) == 60
    assert stream.feed is not None  # the streams have ended
    producers, workers = stream.feed.status()[3:]
    assert [p.kind for p in producers] == [2, 2, 2]
    assert {p.where for p in producers} == {w.node for w in workers} == {"node here"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (lambda: {"remote": "somewhere"}, "ray://host:10001"),
        (lambda: {"remote": 5}, "remote must be"),
        (lambda: {"remote": "ray://host:99999"}, "remote must be"),
        (lambda: {"remote": Remote("local", 0)}, "producers of Remote must be an integer >= 1"),
        (lambda: {"remote": Remote("local", cpus=-1)}, "cpus of Remote must be a number"),
        (lambda: {"remote": Remote("local", cpus=1.5)}, "whole"),
        (lambda: {"remote": "local", "threads": 2}, "processes=1"),
    ],
)
def test_options_that_do_not_fit(options: Any, text: str) -> None:
    with pytest.raises(FeedError, match=text) as caught:
        FeedRunner(RECORDS, batch_size=2, **options())
    assert isinstance(caught.value, OptionError)


class Noted:
    """Records that say when they are unpacked, and when one is made."""

    said: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        self.name = name

    def __setstate__(self, state: dict[str, str]) -> None:
        vars(self).update(state)
        self.said.append(f"{self.name} unpacked")

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        self.said.append(f"{self.name} made")
        return np.full(2, index)


def test_no_producer_runs_while_an_actor_unpacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of the validation's stream begins after the training's first group."""
    begun, groups = threading.Event(), LocalActor.groups

    def in_turn(actor: LocalActor, number: int) -> Iterator[Any]:
        if number:
            assert begun.wait(60)
        for group in groups(actor, number):
            begun.set()
            yield group

    monkeypatch.setattr(LocalActor, "groups", in_turn)
    Noted.said.clear()
    with remote(Noted("training"), (0, 1), batch_size=5) as runner:
        validation = runner.also(Noted("validation"), batch_size=5)
        assert (len(list(runner)), len(list(validation))) == (4, 4)
    assert Noted.said[:2] == ["training unpacked", "validation unpacked"]
    assert not any("unpacked" in one for one in Noted.said[2:])


@pytest.mark.parametrize("order", ["kept", "any"])
def test_the_number_of_remote_producers_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    decide([3, 1, 2], monkeypatch)
    source = Remote("local", producers="auto")
    found: list[int] = []
    with FeedRunner(RECORDS, batch_size=4, epochs=10**6, order=order, remote=source) as runner:
        for batch in runner:
            found += map(int, batch)
            decided = len(runner.tuning()) == 3 and runner.options.remote_producers == 2
            if decided and not len(found) % 120:
                break
    assert [one.after for one in runner.tuning()] == [3, 1, 2]
    assert sorted(found) == sorted([*range(120)] * (len(found) // 120))
    assert order == "any" or found == [*range(120)] * (len(found) // 120)

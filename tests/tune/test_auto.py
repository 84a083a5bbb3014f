"""Numbers of producers that are "auto", as a user meets them."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastfeed
from fastfeed import FeedRunner, Remote, Worker
from fastfeed.core import machine
from fastfeed.core.stats import StageRow
from fastfeed.errors import FeedTimeout, OptionError, ProducerFailed
from fastfeed.jobs.runner_samples import WatchedRunner
from fastfeed.model.workload import Producers
from fastfeed.ranks import ShardServer
from fastfeed.tune import limits, profile
from fastfeed.tune.count_tuner import CountTuner
from fastfeed.tune.profile import FeedProfile, _profile_of
from tests.helpers.dying import until
from tests.helpers.scripted import decide

RECORDS = np.arange(40_000, dtype=np.int64)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers that the tuner decides for, one with each look."""
    numbers: list[int] = []
    decide(numbers, monkeypatch)
    return numbers


def test_an_order_that_costs_is_told_once_and_stays(
    script: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(CountTuner, "held_up", "steps wait")
    with (
        caplog.at_level(logging.INFO, "fastfeed"),
        FeedRunner(RECORDS, batch_size=1, epochs=None, threads="auto") as runner,
    ):
        next(iter(runner))
        until(lambda: any("order=Reorder(" in one for one in caplog.messages), "the log")
        assert runner.options.order == "kept"
        runner.resize(threads="auto")
        script += [2]
        until(lambda: runner.options.threads == 2, "a later look")
        told, decided = runner.tuning()
        assert (told.knob, told.after, told.result) == ("order", 64, "proposed")
        assert str(told) in caplog.messages and decided.result == "kept"
        seen = WatchedRunner(runner._stream, 0).look()
        assert seen is not None and str(told) in seen.events
        assert seen.sample.decisions == {"proposed": 1, "kept": 1, "given up": 0}


def tuners() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "fastfeed-tuner"]


@pytest.mark.parametrize("order", ["kept", "any"])
@pytest.mark.parametrize("knob", ["threads", "processes"])
def test_nothing_is_lost_or_repeated(script: list[int], knob: str, order: str) -> None:
    script += [2, 3, 1, 4, 2, 1, 3]
    options: dict[str, Any] = {"batch_size": 20, "order": order, knob: "auto"}
    with FeedRunner(RECORDS, **options) as runner:
        batches = iter(runner)
        got = [next(batches).copy()]
        until(lambda: not script, "all numbers")
        got += [batch.copy() for batch in batches]
    found = np.concatenate(got)
    assert np.array_equal(found if order == "kept" else np.sort(found), RECORDS)


def test_what_was_decided_is_told(script: list[int], caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "fastfeed"),
        FeedRunner(RECORDS, batch_size=10, threads="auto") as runner,
    ):
        assert "threads=1 (auto)" in repr(runner)
        next(iter(runner))
        script += [3]
        until(lambda: runner.options.threads == 3, "the decision")
        (decision,) = runner.tuning()
        assert (decision.knob, decision.before, decision.after, decision.kept) == (
            "threads",
            1,
            3,
            True,
        )
        assert runner.snapshot().tuning == (decision,)
        assert "threads=3 (auto)" in repr(runner)
        seen = WatchedRunner(runner._stream, 0)
        found = seen.look()
        assert found is not None
        assert "threads 1 -> 3: the test" in found.events
        assert found.sample.decisions["kept"] == 1
        again = seen.look()
        assert again is not None
        assert "threads 1 -> 3: the test" not in again.events
        assert again.sample.decisions["kept"] == 1
        until(lambda: "threads 1 -> 3: the test" in caplog.messages, "the log")


def test_a_number_of_the_users_ends_it(script: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with FeedRunner(RECORDS, batch_size=10, threads="auto") as runner:
        next(iter(runner))
        assert len(tuners()) == 1
        runner.resize(threads=2)
        until(lambda: not tuners(), "the end of the tuner")
        assert runner.options.tuned == []
        with monkeypatch.context() as now:  # later Pythons say so for a moment
            now.setattr(threading.Thread, "is_alive", lambda thread: True)
            runner.resize(threads="auto")
        assert runner.options.threads == 2
        assert len(tuners()) == 1
        script += [4]
        until(lambda: runner.options.threads == 4, "the decision")
    assert not tuners()


def test_loops_that_are_left_early_keep_the_tuner(script: list[int]) -> None:
    with FeedRunner(RECORDS, batch_size=10, threads="auto") as runner:
        for number in (2, 3, 4):
            next(iter(runner))
            script += [number]
            until(lambda number=number: runner.options.threads == number, "the decision")
        assert [one.after for one in runner.tuning()] == [2, 3, 4]


def test_a_forgotten_runner_keeps_no_tuner() -> None:
    runner = FeedRunner(RECORDS, batch_size=10, threads="auto")
    next(iter(runner))
    assert tuners()
    del runner
    gc.collect()
    until(lambda: not tuners(), "the end of the tuner")


def test_a_state_goes_on_under_other_numbers(script: list[int]) -> None:
    options: dict[str, Any] = {"batch_size": 10, "shuffle": True, "seed": 3}
    with FeedRunner(RECORDS, threads="auto", **options) as runner:
        batches = iter(runner)
        got = [batch.copy() for batch in islice(batches, 50)]
        script += [4]
        until(lambda: runner.options.threads == 4, "the decision")
        got += [batch.copy() for batch in islice(batches, 50)]
        state = runner.state()
    with FeedRunner(RECORDS, threads=2, **options).restore(state) as other:
        got += [batch.copy() for batch in other]
    with FeedRunner(RECORDS, **options) as plain:
        expected = [batch.copy() for batch in plain]
    assert np.array_equal(np.concatenate(got), np.concatenate(expected))


def shares(worker: Worker) -> Iterator[Any]:
    for number in range(worker.index, 60, worker.count):
        yield np.full(2, number)


def one_stream() -> Iterator[Any]:
    for number in range(60):
        yield np.full(2, number)


@pytest.mark.parametrize("options", [{"threads": "auto"}, {"workers": "auto"}])
def test_the_streams_of_a_callable_are_counted_once(options: dict[str, Any]) -> None:
    with FeedRunner(shares, **options) as runner:
        found = sorted(int(batch[0]) for batch in runner)
        assert found == list(range(60))
        (decision,) = runner.tuning()
        assert "each producer has its stream" in decision.why
        assert runner.options.parallel == decision.after
        assert not tuners()


def test_the_threads_of_the_workers_of_a_callable_stay() -> None:
    with FeedRunner(shares, processes="auto", threads=3) as runner:
        assert sorted(int(batch[0]) for batch in runner) == list(range(60))
        assert (runner.options.threads, runner.options.processes > 0) == (3, True)


@pytest.mark.parametrize("seed", [None, 5])
def test_a_profile_takes_nothing_from_a_job_of_ranks(seed: int | None) -> None:
    with ShardServer() as server:
        options = {"batch_size": 2, "seed": seed, "shard": server.address, "epochs": 2}
        with FeedRunner(np.arange(40), workers="auto", **options) as runner:
            found = sorted(int(record) for batch in runner for record in batch)
    assert found == sorted([*range(40)] * 2)


def test_a_callable_that_makes_one_stream_has_one_producer() -> None:
    with FeedRunner(one_stream, threads="auto") as runner:
        assert [int(batch[0]) for batch in runner] == list(range(60))
        assert runner.options.threads == 1
        assert "there is one stream" in runner.tuning()[0].why


def test_an_iterator_stays_in_the_trainer() -> None:
    with FeedRunner(iter(one_stream()), workers="auto") as runner:
        assert [int(batch[0]) for batch in runner] == list(range(60))
        assert runner.options.processes == 0


def costing(*, lock_s: float, cpu_s: float) -> FeedProfile:
    """A batch of 10 ms, on 4 cores."""
    return FeedProfile(10, {"transform": 0.01}, cpu_s, lock_s, 4)


PYTHON, NATIVE, WAITS = (
    costing(lock_s=0.009, cpu_s=0.01),
    costing(lock_s=0.0, cpu_s=0.01),
    costing(lock_s=0.0, cpu_s=0.0),
)


@pytest.fixture(autouse=True)
def interpreter_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter has a lock, as a free-threaded one has not."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)


@pytest.mark.parametrize(
    ("cost", "best"),
    [
        (PYTHON, Producers(1, 4)),
        (NATIVE, Producers(1, 4)),  # a step would wait for its cores
        (WAITS, Producers(16)),
        (costing(lock_s=0.0003, cpu_s=0.0004), Producers(16)),
    ],
)
def test_the_kind_suits_the_work(cost: FeedProfile, best: Producers) -> None:
    assert cost.choice == best
    assert str(best) in str(cost)


@pytest.fixture(params=["python", "waits"])
def cost(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    found = PYTHON if request.param == "python" else WAITS
    monkeypatch.setattr("fastfeed.tune.profile.profiled", lambda given, options: found)
    return str(request.param)


def test_python_code_gets_processes(cost: str) -> None:
    knob = "processes" if cost == "python" else "threads"
    with FeedRunner(RECORDS, batch_size=100, transform=abs, workers="auto") as runner:
        assert np.array_equal(np.concatenate([b.copy() for b in runner]), RECORDS)
        assert runner.tuning()[0].knob == knob
        assert runner.options.tuned == [knob]
        assert (runner.options.processes > 0) == (cost == "python")


def test_a_profile_measures() -> None:
    def sleeps(record: Any) -> Any:
        ready.wait(0.01)
        return record

    ready = threading.Event()
    found = fastfeed.profile(RECORDS[:12], batch_size=2, transform=sleeps)
    assert found.batches == 6
    assert max(found.stages, key=lambda name: found.stages[name]) == "transform"
    assert found.cpu_s < found.batch_s
    assert "batches/s at most" in str(found)
    with pytest.raises(OptionError, match="iterator"):
        fastfeed.profile(iter(RECORDS), batch_size=2)


def test_without_a_lock_threads_suit_python_code(monkeypatch: pytest.MonkeyPatch) -> None:
    made = StageRow(batches=10, transform_s=0.1, cpu_s=0.1)
    assert _profile_of(made, 1.0).choice.processes > 0
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert _profile_of(made, 1.0).choice.processes == 0
    assert NATIVE.choice == Producers(4)


def test_an_item_that_takes_long_is_known_to_wait() -> None:
    ready = threading.Event()

    def slow(record: Any) -> Any:
        ready.wait(60)
        return record

    try:
        found = fastfeed.profile(RECORDS, seconds=0.3, batch_size=2, transform=slow)
        assert found.batches == 0
        assert found.batch_s >= 0.3
        assert found.choice == Producers(16)
        with pytest.raises(FeedTimeout):
            fastfeed.profile(RECORDS, batch_size=2, transform=slow, stall_timeout_s=0.2)
    finally:
        ready.set()


@pytest.mark.parametrize("auto", [{"threads": "auto"}, {"processes": "auto"}, {"workers": "auto"}])
@pytest.mark.parametrize("records", [1, 3])
def test_short_streams(auto: dict[str, Any], records: int) -> None:
    with FeedRunner(RECORDS[:records], batch_size=2, epochs=2, **auto) as runner:
        found = [int(record) for batch in runner for record in batch]
    assert found == [*range(records)] * 2


def fails(record: Any) -> Any:
    raise ValueError("no such file")


def test_a_source_that_fails_while_it_is_tried() -> None:
    with (
        FeedRunner(RECORDS, batch_size=2, transform=fails, workers="auto") as runner,
        pytest.raises(ProducerFailed, match="no such file"),
    ):
        next(iter(runner))


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_source_that_fails_while_another_number_is_tried(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    decide([1, 3, 2, 4, 1, 2], monkeypatch)

    def transform(record: Any) -> Any:
        return fails(record) if record == 700 else record

    taken: list[int] = []
    with FeedRunner(RECORDS, batch_size=10, transform=transform, **{kind: "auto"}) as runner:
        with pytest.raises(ProducerFailed, match="no such file"):
            taken += [int(record) for batch in runner for record in batch]
        assert runner.tuning()
    assert taken == [*range(len(taken))], "nothing is missing before it"


@pytest.mark.parametrize("kind", ["threads", "processes", "workers"])
def test_on_one_core(kind: str) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with FeedRunner(RECORDS, batch_size=10, **{kind: "auto"}) as runner:
            found = [int(record) for batch in runner for record in batch]
    finally:
        os.sched_setaffinity(0, allowed)
    assert found == [*range(len(RECORDS))]


def test_what_cannot_be_sent_stays_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()

    def locked(record: Any) -> Any:
        with lock:
            return record

    monkeypatch.setattr("fastfeed.tune.profile.profiled", lambda given, options: PYTHON)
    with FeedRunner(RECORDS, batch_size=100, transform=locked, workers="auto") as runner:
        assert len(list(runner)) == 400
        assert runner.options.processes == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"threads": "many"}, "threads must be an integer >= 1 or \"auto\", got 'many'"),
        ({"threads": "auto", "processes": 2}, 'Write processes="auto"'),
        ({"threads": "auto", "remote": "local"}, 'producers="auto"'),
        ({"processes": "auto", "remote": "local"}, 'producers="auto"'),
        ({"workers": 4}, 'both are "auto"'),
    ],
)
def test_what_cannot_be(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as info:
        FeedRunner(RECORDS, batch_size=2, **options)
    assert text in str(info.value)


def test_the_kind_of_producers_must_be_there() -> None:
    with FeedRunner(RECORDS, batch_size=2) as runner, pytest.raises(OptionError):
        runner.resize(processes="auto")
    with pytest.raises(OptionError, match="producers of Remote"):
        Remote("local", producers="some")  # type: ignore[arg-type]


def test_the_memory_of_workers_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[int, int] = {}

    def private_nbytes(pid: int) -> int:
        seen[pid] = machine.private_nbytes(pid)
        return seen[pid]

    for name in ("SYSTEM_POLL_S", "ROOM_POLL_S"):
        monkeypatch.setattr(limits, name, 0.01)
    monkeypatch.setattr(limits, "private_nbytes", private_nbytes)
    with FeedRunner(RECORDS, batch_size=10, epochs=None, processes="auto") as runner:
        next(one for one in runner if any(seen.values()))
        status = runner.status()
    assert status is not None and seen.keys() <= {one.pid for one in status.workers}


def test_what_the_system_refuses_is_not_tried_again(
    script: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(threads: int, processes: int, **_: Any) -> None:
        asked.append(threads)
        if threads > 2:
            raise OptionError("threads do not fit")

    with FeedRunner(RECORDS, batch_size=10, threads="auto") as runner:
        next(iter(runner))
        monkeypatch.setattr("fastfeed.runner.stream.refuse_too_many", refuse)
        script += [4]
        until(lambda: 4 in asked, "the attempt")
        limit = runner._stream._tuning._limits  # type: ignore[union-attr]
        until(lambda: limit.most(runner.snapshot(), 1)[0] <= 3, "the refusal")
        runner.resize(threads=2)
        assert runner.options.threads == 2


def test_streams_of_a_callable_fit_into_memory() -> None:
    def batches(worker: Worker) -> Iterator[Any]:
        for _ in range(4):
            time.sleep(0.02)
            yield np.zeros(250_000)

    with FeedRunner(batches, threads="auto", memory="4MB") as runner:
        assert len(list(runner)) == 4 * runner.options.threads
        assert runner.options.threads <= 2
    assert 0 < fastfeed.profile(batches).nbytes <= 2_000_000


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_runners_that_share_workers_follow_the_choice(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    chosen = Producers(2) if kind == "threads" else Producers(1, 2)
    monkeypatch.setattr(FeedProfile, "choice", chosen)
    train = FeedRunner(range(40), batch_size=10, workers="auto", seed=1)
    validation = train.also(range(20), batch_size=10)
    with train:
        assert sum(len(one) for one in train) == 40
        assert sum(len(one) for one in validation) == 20
        assert (train.options.processes > 0) == (kind == "processes")
        assert validation.options.processes == train.options.processes


def test_a_kind_that_has_no_room_in_memory_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches are enough for threads, and too few for the slots of a worker process."""
    monkeypatch.setattr(profile, "_profile_of", python_bound)
    records = np.zeros((200, 1000))
    options = {"batch_size": 10, "memory": 2 * 80_000, "workers": "auto"}
    with FeedRunner(records, **options) as runner:
        assert sum(len(one) for one in runner) == 200
        assert runner.options.processes == 0
    with FeedRunner(records, **{**options, "memory": "1GB"}) as runner:
        assert sum(len(one) for one in runner) == 200
        assert runner.options.processes


def python_bound(made: StageRow, held: float) -> FeedProfile:
    """The profile of a source that holds Python's lock, on four cores."""
    nbytes = made.nbytes // made.batches
    return FeedProfile(made.batches, {"read": 1.0}, 1.0, 1.0, 4, nbytes)


DAEMON = """
import multiprocessing as mp
import sys
from fastfeed import FeedRunner

def train(queue, knob):
    with FeedRunner(range(1000), batch_size=10, **{knob: "auto"}) as runner:
        queue.put(sum(int(batch.sum()) for batch in runner))

if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=train, args=(queue, sys.argv[1]), daemon=True)
    child.start()
    print(queue.get(timeout=60))
    child.join(60)
"""


@pytest.mark.parametrize("knob", ["threads", "processes", "workers"])
def test_a_daemonic_process_looks_for_its_number(tmp_path: Path, knob: str) -> None:
    (tmp_path / "train.py").write_text(DAEMON)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "train.py"), knob],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == str(sum(range(1000))), done.stderr

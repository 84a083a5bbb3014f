"""A second runner on the same workers: exact passes, and no influence of one feed on the other."""

from __future__ import annotations

import os
import signal
from itertools import islice
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedStopped, OptionError, ProducerError, Shuffle, StateError

MIXES = [{"threads": 2}, {"processes": 2}, {"processes": 2, "threads": 2}]


class Records:
    """An indexable whose records hold their index and the process that read them."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array([index, os.getpid()])


def column(batches: Any, at: int = 0) -> list[int]:
    return [int(record[at]) for batch in batches for record in batch]


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_validation_between_epochs_is_exact_on_the_same_processes(mix: dict[str, Any]) -> None:
    with FeedRunner(Records(40), batch_size=4, epochs=3, shuffle=True, **mix) as runner:
        validation = runner.also(Records(10), batch_size=3)
        pids = set()
        for epoch in runner.epochs():
            trained, validated = list(epoch), list(validation)
            assert sorted(column(trained)) == list(range(40))
            assert column(validated) == list(range(10))
            pids |= {*column(trained, 1), *column(validated, 1)}
    assert len(pids) <= mix.get("processes", 1)


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_validation_may_come_before_training_and_in_the_middle_of_it(mix: dict[str, Any]) -> None:
    with FeedRunner(Records(40), batch_size=4, **mix) as runner:
        validation = runner.also(lambda worker: iter([np.array([[worker.index, 0]])]))
        expected = list(range(mix.get("processes", 1) * mix.get("threads", 1)))
        assert sorted(column(validation)) == expected
        batches = iter(runner)
        first = column(islice(batches, 3))
        assert sorted(column(validation)) == expected
        assert first + column(batches) == list(range(40))


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_an_epoch_that_is_left_early_does_not_disturb_a_validation_that_is_under_way(
    mix: dict[str, Any],
) -> None:
    with FeedRunner(Records(40), batch_size=4, epochs=3, **mix) as runner:
        validation = runner.also(Records(10), batch_size=3)
        validated = []
        for epoch in runner.epochs():
            next(iter(epoch))
            validated.append(column([next(iter(validation))]))
        assert validated == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
        assert column(validation) == [9]


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_both_feeds_are_resumed(mix: dict[str, Any]) -> None:
    def runners() -> tuple[FeedRunner, FeedRunner]:
        runner = FeedRunner(Records(40), batch_size=4, shuffle=Shuffle(12, 4), seed=3, **mix)
        return runner, runner.also(Records(10), batch_size=3)

    runner, validation = runners()
    with runner:
        whole = column(runner)
    runner, validation = runners()
    with runner:
        trained, validated = column(islice(runner, 4)), column(islice(validation, 2))
        states = runner.state(), validation.state()
    runner, validation = runners()
    with runner.restore(states[0]), validation.restore(states[1]):
        assert trained + column(runner) == whole
        assert validated + column(validation) == list(range(10))


def test_a_failing_validation_leaves_the_training_alone() -> None:
    def fails(record: np.ndarray) -> np.ndarray:
        raise OSError("no such image")

    with FeedRunner(Records(40), batch_size=4, processes=1) as runner:
        validation = runner.also(Records(10), batch_size=3, transform=fails)
        batches = iter(runner)
        first = column(islice(batches, 2))
        with pytest.raises(ProducerError, match="no such image"):
            list(validation)
        assert first + column(batches) == list(range(40))


def test_what_a_killed_worker_had_is_made_again_for_both() -> None:
    with FeedRunner(Records(400), batch_size=4, processes=2, on_worker_death="restart") as runner:
        validation = runner.also(Records(100), batch_size=5)
        batches, checks = iter(runner), iter(validation)
        first, validated = list(islice(batches, 5)), list(islice(checks, 3))
        os.kill(int(first[0][0][1]), signal.SIGKILL)
        assert column(first + list(batches)) == list(range(400))
        assert column(validated + list(checks)) == list(range(100))


def test_a_record_that_kills_is_set_aside_and_no_other_one_of_either_feed() -> None:
    def kills(record: np.ndarray) -> np.ndarray:
        if record[0] == 21:
            os._exit(3)
        return record

    with FeedRunner(
        Records(40), batch_size=4, processes=1, on_worker_death="restart", transform=kills
    ) as runner:
        validation = runner.also(Records(100), batch_size=5)
        checks = iter(validation)
        validated = list(islice(checks, 1))
        assert column(runner) == [n for n in range(40) if n != 21]
        assert column([*validated, *checks]) == list(range(100))
        assert len(runner.snapshot().set_aside) == 1
        assert not validation.snapshot().set_aside


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_the_end_of_the_first_runner_is_the_end_of_the_second(mix: dict[str, Any]) -> None:
    with FeedRunner(Records(40), batch_size=4, **mix) as runner:
        validation = runner.also(Records(10), batch_size=3)
        next(iter(validation))
    with pytest.raises(FeedStopped):
        list(validation)


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_the_second_runner_may_end_or_be_forgotten_before_the_first(mix: dict[str, Any]) -> None:
    with FeedRunner(Records(40), batch_size=4, **mix) as runner:
        runner.also(Records(10), batch_size=3)  # forgotten before it was used
        validation = runner.also(Records(10), batch_size=3)
        next(iter(validation))
        validation.stop()
        assert column(runner) == list(range(40))


def test_it_is_called_first_and_on_the_first() -> None:
    with FeedRunner(Records(40), batch_size=4) as runner:
        validation = runner.also(Records(10), batch_size=3)
        with pytest.raises(StateError, match="made by also"):
            validation.also(Records(3), batch_size=1)
        with pytest.raises(OptionError, match="belong to the first runner"):
            runner.also(Records(3), batch_size=1, processes=2)
        with pytest.raises(StateError, match="iterate over it"):
            validation.get_inputs()
        next(iter(runner))
        with pytest.raises(StateError, match="after the start"):
            runner.also(Records(3), batch_size=1)


def test_a_second_runner_has_the_first_ones_workers_and_its_own_options() -> None:
    with FeedRunner(
        Records(40), batch_size=4, processes=1, threads=3, stall_timeout_s=7, seed=5
    ) as runner:
        options = runner.also(Records(10), batch_size=3, threads=1, last_batch="drop").options
    assert (options.processes, options.threads, options.stall_timeout_s, options.seed) == (
        1,
        1,
        7,
        5,
    )
    assert (options.batch_size, options.last_batch) == (3, "drop")

"""A state at the end of a run: loops get nothing more, where a framework counts the epochs the next
run begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, StateError

SINKS: dict[str, Callable[[FeedRunner], Any]] = {
    "a loop": lambda runner: runner,
    "torch": lambda runner: runner.torch(),
    "jax": lambda runner: runner.jax(),
    "put": lambda runner: runner.prefetch_to_device(lambda batch: batch),
    "tensorflow": lambda runner: runner.dataset(),
    "keras": lambda runner: runner.keras(),
}
COUNTED = ("tensorflow", "keras")
in_each_mix = pytest.mark.parametrize("processes", [0, 1])
# with 6 records the end of the run comes after the last batch, with 5 together with it
of_each_end = pytest.mark.parametrize("total", [6, 5])


def runner_of(total: int, processes: int, **options: Any) -> FeedRunner:
    return FeedRunner(
        np.arange(total, dtype=np.int32),
        batch_size=3,
        epochs=2,
        seed=1,
        processes=processes,
        **options,
    )


def state_at_the_end(total: int, processes: int) -> Any:
    with runner_of(total, processes) as runner:
        return [runner.state() for _ in runner][-1]


@in_each_mix
@of_each_end
@pytest.mark.parametrize("name", SINKS)
def test_what_follows_a_run_that_was_delivered(name: str, total: int, processes: int) -> None:
    if name != "a loop" and name != "put":
        pytest.importorskip(name)
    state = state_at_the_end(total, processes)
    with runner_of(total, processes).restore(state) as runner:
        sink = SINKS[name](runner)
        runs = [[int(n) for batch in sink for n in np.asarray(batch)] for _ in range(2)]
    whole = 2 * [*range(total)]
    assert runs == [whole if name in COUNTED else [], whole]


@in_each_mix
@of_each_end
def test_a_session_says_that_nothing_is_left(total: int, processes: int) -> None:
    tf = pytest.importorskip("tensorflow")
    state = state_at_the_end(total, processes)
    with tf.Graph().as_default(), runner_of(total, processes, shuffle=False) as runner:
        runner.restore(state)
        with pytest.raises(StateError, match="the state is at the end of its run"):
            runner.get_inputs()

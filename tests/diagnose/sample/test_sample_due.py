"""Times of samples, beside loops that release the lock only now and then."""

from __future__ import annotations

import random

import pytest

from fastfeed.diagnose.sample.sampler import MAX_DUE, next_due


@pytest.mark.parametrize("held_ms", [10, 20, 80])
def test_looks_do_not_fall_into_step_with_a_loop(held_ms: int) -> None:
    """A loop that holds the lock for `held_ms` and then sleeps for 20 ms delays the samples that
    are due."""
    due_ms, rng, seen = 0.0, random.Random(0), {True: 0, False: 0}
    for _ in range(4000):
        at_ms = due_ms % (held_ms + 20)
        now_ms = due_ms + max(0.0, held_ms - at_ms)
        due_ms, times = next_due(due_ms, now_ms, interval_s=20, rng=rng)
        seen[at_ms < held_ms] += times
    assert seen[True] / sum(seen.values()) == pytest.approx(held_ms / (held_ms + 20), abs=0.02)


def test_a_machine_that_was_asleep_is_not_looked_at_for_all_that_time() -> None:
    due_s, times = next_due(0.0, 3600.0, interval_s=0.02, rng=random.Random(0))
    assert (due_s, times) == (3600.0, MAX_DUE)

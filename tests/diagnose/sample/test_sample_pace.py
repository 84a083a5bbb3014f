"""When the sampler looks, beside loops that let it look only now and then."""

from __future__ import annotations

import random

import pytest

from fastfeed.diagnose.sample.pace import MISSED, due_after


@pytest.mark.parametrize("held_ms", [10, 20, 80])
def test_looks_do_not_fall_into_step_with_a_loop(held_ms: int) -> None:
    """A loop that holds the lock for so long and then sleeps for 20 ms: what is due meanwhile comes
    at the end."""
    due_ms, chance, seen = 0.0, random.Random(0), {True: 0, False: 0}
    for _ in range(4000):
        at_ms = due_ms % (held_ms + 20)
        now_ms = due_ms + max(0.0, held_ms - at_ms)
        due_ms, times = due_after(due_ms, now_ms, nap_s=20, chance=chance)
        seen[at_ms < held_ms] += times
    assert seen[True] / sum(seen.values()) == pytest.approx(held_ms / (held_ms + 20), abs=0.02)


def test_a_machine_that_was_asleep_is_not_looked_at_for_all_that_time() -> None:
    due_s, times = due_after(0.0, 3600.0, nap_s=0.02, chance=random.Random(0))
    assert (due_s, times) == (3600.0, MISSED)

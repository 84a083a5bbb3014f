"""The model of a queue against a simulated one, whose truth is known, on a clock that counts."""

from __future__ import annotations

import heapq
import random
from collections import deque

import pytest

from fastfeed.diagnose.hooks.queue_model import QueueModel

RUN_S = 0.001  # what a put takes that finds room


class Simulation:
    """A queue with producers and a consumer; a model receives every put and step as from a hook."""

    def __init__(
        self, model: QueueModel, *, puts: list[tuple[float, int]], count: int, step_s: float
    ) -> None:
        self.model, self.count, self.step_s = model, count, step_s
        self.events: list[tuple[float, int, str, int]] = []
        self.ties = 0
        self.puts = puts  # by producer: seconds to make a batch, and its elements
        self.level = 0
        # producers that wait for room, with what they still have
        self.full: deque[tuple[int, int]] = deque()
        self.under_way: dict[int, object] = {}
        self.asked_s: float | None = None
        self.waits: list[tuple[float, float]] = []  # the truth and the model's answer

    def at(self, time_s: float, what: str, who: int = 0) -> None:
        self.ties += 1
        heapq.heappush(self.events, (time_s, self.ties, what, who))

    def run(self, steps: int) -> list[tuple[float, float]]:
        for who, (make_s, _) in enumerate(self.puts):
            self.at(make_s * (1 + who / 7), "put", who)
        self.at(0.0, "ask")
        while len(self.waits) < steps:
            now_s, _, what, who = heapq.heappop(self.events)
            getattr(self, what)(now_s, who)
            self.room(now_s)
            self.serve(now_s)
        return self.waits

    def put(self, now_s: float, who: int) -> None:
        self.under_way[who] = self.model.begin_put(now_s, self.puts[who][1])
        self.at(now_s + RUN_S, "enter", who)

    def enter(self, now_s: float, who: int) -> None:
        self.full.append((who, self.puts[who][1]))

    def room(self, now_s: float) -> None:
        while self.full:
            who, left = self.full.popleft()
            moved = min(left, self.model.capacity - self.level)
            self.level += moved
            if moved < left:
                self.full.appendleft((who, left - moved))
                return
            self.model.end_put(self.under_way.pop(who), now_s)
            self.at(now_s + self.puts[who][0], "put", who)

    def ask(self, now_s: float, who: int) -> None:
        self.asked_s = now_s
        self.take = self.model.begin_take(now_s, self.count)

    def serve(self, now_s: float) -> None:
        if self.asked_s is not None and self.level >= self.count + self.model.minimum:
            self.level -= self.count
            self.truth = now_s - self.asked_s
            self.asked_s = None
            self.at(now_s + self.step_s, "over")
            self.room(now_s)

    def over(self, now_s: float, who: int) -> None:
        self.waits.append((self.truth, self.model.end_take(self.take, now_s)))
        self.at(now_s + 0.0001, "ask")


@pytest.mark.parametrize("seed", range(40))
def test_the_model_knows_how_long_each_step_waited(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.choice([1, 8, 32])
    minimum = draw.choice([0, 3 * count])
    rows = draw.choice([1, count, count + 3]) if count < 32 else count
    capacity = minimum + draw.choice([2, 5]) * max(count, rows)
    puts = [(draw.uniform(0.01, 0.1) * rows / count, rows) for _ in range(draw.randint(1, 4))]
    step_s = draw.uniform(0.005, 0.05)
    found = Simulation(QueueModel(capacity, minimum), puts=puts, count=count, step_s=step_s).run(
        100
    )
    # what a put takes is the one thing that only its end tells, so that the clock of the model may
    # be late by so much
    assert all(abs(truth - said) <= RUN_S + 1e-9 for truth, said in found)
    assert (
        abs(sum(truth for truth, _ in found) - sum(said for _, said in found))
        <= 0.05 * 100 * step_s
    )


def test_a_starved_loop_waits_and_a_fed_one_does_not() -> None:
    starved = Simulation(QueueModel(64, 0), puts=[(0.05, 8)], count=8, step_s=0.01).run(50)
    fed = Simulation(QueueModel(64, 0), puts=[(0.05, 8)], count=8, step_s=0.1).run(50)
    assert all(said > 0.03 for _, said in starved[5:])
    assert not any(said > RUN_S for _, said in fed[5:])


def test_a_put_that_is_told_late_counts_from_when_it_was_in() -> None:
    model = QueueModel(64)
    model.end_put(model.begin_put(0.0, 8), 0.001)
    model.end_take(model.begin_take(0.0, 8), 0.5)
    late = model.begin_put(1.0, 8)
    take = model.begin_take(0.9, 8)
    assert model.end_take(take, 1.5) == pytest.approx(0.101)
    model.end_put(late, 2.0)  # its thread got the interpreter lock only now
    assert (model.level, model.unobserved) == (0, 0)


def test_a_closed_queue_gives_what_it_has() -> None:
    model = QueueModel(64, 8)
    model.end_put(model.begin_put(0.0, 8), 0.0)
    take = model.begin_take(1.0, 8)
    model.close(3.0)
    assert model.end_take(take, 4.0) == pytest.approx(2.0)


def test_elements_from_nobody_are_counted_and_a_failed_step_takes_none() -> None:
    model = QueueModel(None)
    assert model.end_take(model.begin_take(0.0, 8), 1.0, done=False) == 0.0
    assert (model.unobserved, model.taken) == (0, 0)
    model.end_take(model.begin_take(1.0, 8), 2.0)
    assert (model.unobserved, model.taken) == (8, 8)


def test_a_put_that_failed_put_nothing() -> None:
    model = QueueModel(64)
    model.end_put(model.begin_put(0.0, 8), 1.0, done=False)
    assert model.level == 0


def test_who_waits_for_elements_is_not_kept_by_a_full_queue() -> None:
    model = QueueModel(8)
    model.end_put(model.begin_put(0.0, 8), 0.0)
    model.begin_put(0.1, 8)
    model.wait_for(100, 60.0)  # would take a minute
    assert model.level == 8

"""Windows of a training, from its counters."""

from __future__ import annotations

from dataclasses import replace

from fastfeed.core.stats import Snapshot, StageRow, total
from fastfeed.tune.count_search import TrainingWindow
from fastfeed.tune.window_meter import WindowMeter


def seen(second: float, rows: list[StageRow], *, steps: float, trainer_s: float = 0.0) -> Snapshot:
    made = total([*rows, StageRow(read_s=trainer_s)])
    consumed = StageRow(batches=int(steps))
    return Snapshot(second, made, consumed, 0, 0, tuple(rows), taken_s=second)


def window(looks: list[Snapshot], meter: WindowMeter) -> TrainingWindow:
    meter.begin(2, looks[0])
    found = [one for now in looks if (one := meter.look(now, lambda _: True)) is not None]
    return found[0]


def test_producers_are_those_of_all_processes_without_the_trainers_reads() -> None:
    looks = []
    for tick in range(40):
        at_s = tick / 10
        row = StageRow(batches=10 * tick, transform_s=at_s / 2, wait_in_s=at_s / 2)
        looks.append(seen(at_s, [row] * 6, steps=60 * tick, trainer_s=0.9 * at_s))
    found = window(looks, WindowMeter(lambda count: 3 * count))
    assert round(found.used, 6) == 0.5
    assert round(found.capacity) == 600  # the trainer's reads hold the producers up


def test_a_window_of_steps_that_do_nothing_but_wait_is_short() -> None:
    def taken(waits: float) -> float:
        looks = []
        for tick in range(20):
            at_s = tick / 10
            now = seen(at_s, [StageRow(batches=4 * tick, read_s=at_s)] * 2, steps=8 * tick)
            looks.append(replace(now, consumed=replace(now.consumed, wait_in_s=waits * at_s)))
        return window(looks, WindowMeter()).seconds

    assert taken(0.0) >= 0.7
    assert 0.25 <= taken(0.95) <= 0.4


def test_producers_that_wait_for_the_trainers_reads_have_room() -> None:
    looks = []
    for tick in range(40):
        at_s = tick / 10
        row = StageRow(batches=5 * tick, transform_s=at_s / 2, wait_in_s=at_s / 2)
        looks.append(seen(at_s, [row] * 2, steps=10 * tick, trainer_s=0.9 * at_s))
    found = window(looks, WindowMeter())._replace(starvation=0.5)
    assert found.used < 0.6 and not found.held_up
    assert found._replace(blocked=0.3).held_up


def test_the_first_steps_are_known_as_a_pause_later() -> None:
    times = [0.0, 0.1, 6.0, *(6.0 + 0.1 * tick for tick in range(1, 40))]
    row = StageRow()
    looks = [seen(at_s, [row], steps=20 * tick) for tick, at_s in enumerate(times)]
    assert round(window(looks, WindowMeter()).rate) == 200

"""Windows of a training, from its counters."""

from __future__ import annotations

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


def test_the_first_steps_are_known_as_a_pause_later() -> None:
    times = [0.0, 0.1, 6.0, *(6.0 + 0.1 * tick for tick in range(1, 40))]
    row = StageRow()
    looks = [seen(at_s, [row], steps=20 * tick) for tick, at_s in enumerate(times)]
    assert round(window(looks, WindowMeter()).rate) == 200

"""The black box of a trainer killed by SIGKILL shows its last minute and the death of a worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastfeed import OptionError
from fastfeed.jobs.blackbox import newest, read
from fastfeed.jobs.job_view import render
from fastfeed.jobs.top import running_boxes
from tests.helpers.dying import until
from tests.helpers.scripts import Script
from tests.jobs.flights import drawn, left
from tests.jobs.flights import flight as black_box

CODE = """
from fastfeed.jobs import observer
observer.SAMPLE_EVERY_S = 0.05

class Records:
    def __len__(self):
        return 10**6
    def __getitem__(self, i):
        return np.full(3, i)

def decode(batch):
    time.sleep(0.001)
    return batch

first = FeedRunner(Records(), batch_size=4, processes=2, on_worker_death="restart")
second = FeedRunner([np.ones((4, 3))] * 10**6, records=False, threads=3, transform=decode)
one, two = iter(first), iter(second)
next(one), next(two)
while len(pids := [one.pid for one in first._feed.status().workers]) < 2 or not all(pids):
    time.sleep(0.002)
say("workers", *pids)
say_tree(3)
while True:
    next(one), next(two)
"""


@pytest.fixture
def trainer(folder: Path) -> Iterator[Script]:
    script = Script(CODE)
    yield script
    script.kill()


def test_the_last_minute_of_a_killed_trainer(trainer: Script, folder: Path) -> None:
    pids = [int(word) for word in trainer.line("workers").split()]
    path = Path(black_box(21).path)
    until(lambda: read(path).samples[-1].batches > 20, "some batches")
    assert read(path).ending == "running"
    assert running_boxes() == [path]
    os.kill(pids[0], signal.SIGKILL)

    def ends_of_worker() -> list[str]:
        texts = [event.text for event in read(path).events]
        return [text for text in texts if f"pid {pids[0]}" in text and "has ended" in text]

    (end,) = until(ends_of_worker, "the death of a worker")
    assert "in its hand: item " in end
    before = read(path).samples[-1].batches
    until(lambda: any("began again" in e.text for e in read(path).events), "its successor")
    until(lambda: read(path).samples[-1].batches > before, "more batches")
    trainer.signal(signal.SIGKILL)
    assert trainer.ended().code == -signal.SIGKILL

    flight = read(newest())
    assert flight.path == str(path) and flight.ending == "killed" and not flight.damaged
    assert flight.header.pid == trainer.pid
    assert list(flight.last_minute) == [0, 1]
    for runner, producers in ((0, 2), (1, 3)):
        samples = flight.last_minute[runner]
        assert samples[-1].batches > max(20, samples[0].batches)
        assert samples[-1].rss > 2**20
        assert flight.table is not None
        assert sum(row.runner == runner for row in flight.table.rows) == producers
    rows = [row for row in flight.table.rows if row.place.startswith("worker")]
    assert pids[1] in [row.pid for row in rows] and pids[0] not in [row.pid for row in rows]
    assert any(row.hand for row in rows) and min(row.rss for row in rows) > 2**20

    text = drawn(render(flight, 150))
    for words in ("did not end cleanly", f"pid {trainer.pid}", "depth", end[:40], "began again"):
        assert words in text
    assert left(folder) == [path.name]
    with pytest.raises(OptionError, match="no process of this user writes a black box"):
        running_boxes()

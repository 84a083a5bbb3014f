"""A black box on a terminal, and files that cannot be shown."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastfeed import OptionError
from fastfeed.jobs.blackbox import (
    BlackBox,
    BlackBoxEvent,
    BlackBoxHeader,
    FlightRecord,
    ProducerTable,
    newest,
    read,
)
from fastfeed.jobs.drawing import decimal, duration, size, sparkline
from fastfeed.jobs.job_view import METRICS, history, render
from fastfeed.jobs.runner_samples import ProducerSample, RunnerSample
from tests.jobs.flights import drawn, producer, sample

START_NS = sample(0).time_ns


def flight(ending: str = "killed", **changes: Any) -> FlightRecord:
    command = "/home/me/train.py --epochs 3"
    whole = FlightRecord(
        path="/state/box",
        header=BlackBoxHeader(4242, START_NS, "node7", "0.1.0", command),
        ending=ending,
        samples=tuple(sample(n) for n in range(61)),
        events=(
            BlackBoxEvent(START_NS, 0, "start processes=2"),
            BlackBoxEvent(
                START_NS + 59 * 10**9,
                0,
                "worker process 1 (pid 4260) has ended; last seen in its hand: item 1198",
            ),
        ),
        table=ProducerTable(START_NS, 2, producers()),
        damaged=0,
        end_ns=START_NS + 60 * 10**9,
    )
    return replace(whole, **changes)


def producers() -> tuple[ProducerSample, ...]:
    """Return a thread at work and a worker process that has ended."""
    dead = producer(1, place="worker 1", pid=4260, state="dead", where="", rss=400_000_000)
    return producer(0), dead._replace(hand="item 1198, record 17")


SHOWN = """train.py (pid 4242 on node7)
killed or crashed
processes=2
runner 0 runs: 1,200 batches, 38,400 records
waited 0:00:30 of 0:01:00
waits for input: 50 %, of which read 40 %, collate 10 %
stages
read 40 %, collate 10 %
12 slots: 6 free, 1 filling, 3 ready, 2 lent
50 %
1.5 GB
decode data.py:41
worker 1, pid 4260
dead
item 1198, record 17
-1.0 s
has ended; last seen in its hand: item 1198
1 damaged line(s)"""
BAD = sample(60, state="failed", error="worker 1 died\nat", errors=2, copied=3, batches=0)
MANY = ProducerTable(START_NS, 300, tuple(producer(n, busy=None) for n in range(40)))


@pytest.mark.parametrize(
    ("changes", "words", "absent"),
    [
        ({"damaged": 1}, SHOWN, "268 more"),
        ({"ending": "cleanly"}, "ended cleanly", "SIGKILL"),
        ({"ending": "with an error"}, "ended with an error", "SIGKILL"),
        ({"ending": "running"}, "is running", "SIGKILL"),
        ({"samples": (), "events": (), "table": None}, "Nothing was seen of its runners", "slots"),
        (
            {"samples": (BAD,), "table": MANY},
            "runner 0 failed\nworker 1 died\n2 errors\n3 batches copied\n268 more",
            "\nat",
        ),
    ],
)
def test_a_flight_is_drawn(changes: dict[str, Any], words: str, absent: str) -> None:
    text = drawn(render(flight(**changes), 150))
    assert [line for line in words.splitlines() if line not in text] == []
    assert absent not in text


def test_a_narrow_terminal() -> None:
    lines = drawn(render(flight(), 80), 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.count("▅") for line in lines if "steps/s" in line] == [0]
    assert [line.count("▅") for line in lines if "starvation" in line] == [30]


def test_a_minute_in_seconds() -> None:
    whole = flight()

    def rates(samples: list[RunnerSample]) -> tuple[list[float | None], list[float | None]]:
        lines = dict(zip(METRICS, history(samples, end_ns=whole.end_ns, columns=60), strict=True))
        return lines["steps/s"], lines["starvation"]

    steps, starvation = rates(list(whole.samples))
    assert steps == pytest.approx([20] * 60) and starvation == pytest.approx([0.5] * 60)
    # Two distant samples cover all of the time between them.
    sparse, _ = rates([sample(30), sample(60)])
    assert [step is None for step in sparse] == [True] * 30 + [False] * 30
    # A new feed of the runner does not yield negative counts.
    again, _ = rates([sample(58), sample(59, batches=0, elapsed_s=0.0, wait_s=0.0), sample(60)])
    assert again[-2] is None and again[-1] is not None


def test_how_it_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    box = BlackBox(tmp_path)
    (tmp_path / "link").symlink_to(box.path)
    assert read(box.path).ending == read(tmp_path / "link").ending == "running"
    (tmp_path / "copy").write_bytes(box.path.read_bytes())
    assert read(tmp_path / "copy").ending == "killed"  # nobody has it locked
    monkeypatch.setenv("FASTFEED_BLACKBOX", str(tmp_path))  # where it is kept
    box.close(False)
    assert read(box.path).ending == "cleanly"


def test_files_that_cannot_be_shown(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is no black box.*FASTFEED_BLACKBOX=DIR"):
        read()
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        read(tmp_path / "nothing")
    with pytest.raises(OptionError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_ended_processes_come_first(folder: Path) -> None:
    boxes = [BlackBox() for _ in range(3)]
    assert (
        newest() == boxes[2].path or os.stat(boxes[2].path).st_mtime == os.stat(newest()).st_mtime
    )
    boxes[0].close(True)
    assert newest() == boxes[0].path
    assert read().ending == "with an error"
    for box in boxes[1:]:
        box.close(False)


def test_numbers_as_they_are_drawn() -> None:
    assert [size(n) for n in (None, 999, 2_500_000)] == ["–", "999 bytes", "2.5 MB"]
    assert [duration(s) for s in (0.4, 75, 7384)] == ["0:00:00", "0:01:15", "2:03:04"]
    assert [decimal(v) for v in (None, 1234.5, 12.34, 0.123, 3.0)] == [
        "–",
        "1,234",
        "12.3",
        "0.12",
        "3",
    ]
    assert sparkline([0.0, None, 1.0, 2.0]) == "▁·▅█" and sparkline([]) == ""
    assert sparkline([0.1, 1.0], top=1.0) == "▁█"

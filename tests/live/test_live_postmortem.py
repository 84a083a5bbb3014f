"""A black box on a terminal, and files that cannot be shown."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fastfeed import OptionError
from fastfeed.core import status
from fastfeed.live.blackbox import BlackBox
from fastfeed.live.postmortem import FlightRecord, newest, read
from fastfeed.live.postmortem_view import METRICS, history, render
from fastfeed.live.record_lines import (
    BlackBoxEvent,
    BlackBoxHeader,
    ProducerRow,
    ProducerTable,
    RunnerSample,
)
from tests.live.places import Folders

START_NS = 1_700_000_000 * 10**9


def sample(second: float, **changes: Any) -> RunnerSample:
    """Return a sample of a runner that takes 20 batches a second and waits half of the time."""
    at = RunnerSample(
        time_ns=START_NS + int(second * 1e9),
        runner=0,
        state=status.FEED_RUNS,
        batches=int(20 * second),
        records=int(640 * second),
        nbytes=int(20e6 * second),
        wait_s=second / 2,
        elapsed_s=second,
        depth=3,
        depth_nbytes=3 * 2**20,
        free=6,
        filling=1,
        ready=3,
        lent=2,
        rss=1_500_000_000,
        errors=0,
        copied=0,
        making=2,
        blocked=1,
        hungry=0,
        dead=0,
    )
    return at._replace(**changes)


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


def producers() -> tuple[ProducerRow, ...]:
    """Return a thread at work and a worker process that has ended."""
    thread = ProducerRow(
        runner=0,
        number=0,
        kind=status.THREAD,
        state=status.MAKING,
        worker=0,
        pid=4242,
        tid=4250,
        stream=-1,
        item=1199,
        record=-1,
        batches=600,
        busy_s=50.0,
        wait_in_s=0.0,
        wait_out_s=9.0,
        rss=0,
        where="decode data.py:41",
    )
    process = thread._replace(
        number=1, kind=status.PROCESS, state=status.DEAD, worker=1, pid=4260, tid=0
    )
    return thread, process._replace(item=1198, record=17, rss=400_000_000, where="")


def drawn(flight: FlightRecord, width: int = 150) -> str:
    file = io.StringIO()
    Console(width=width, file=file, force_terminal=False).print(render(flight, width))
    return file.getvalue()


def test_the_last_minute_is_drawn() -> None:
    text = drawn(flight(damaged=1))
    for words in (
        *(
            "train.py (pid 4242 on node7)",
            "killed or crashed",
            "runner 0 runs: 1,200 batches, 38,400 records",
        ),
        *(
            "12 slots: 6 free, 1 filling, 3 ready, 2 lent",
            "waited 30 s of 1 min 00 s",
            "50 %",
            "1.5 GB",
        ),
        *("decode data.py:41", "item 1198, record 17", "dead", "worker 1, pid 4260", "-1.0 s"),
        *("has ended; last seen in its hand: item 1198", "1 damaged line(s)"),
    ):
        assert words in text
    narrow = drawn(flight(), width=80)
    assert (
        max(map(len, narrow.splitlines())) <= 80 and "▅" * 29 in narrow and "▅" * 31 not in narrow
    )


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("cleanly", "ended cleanly"),
        ("with an error", "ended with an error"),
        ("running", "is still running"),
    ],
)
def test_the_ending_is_shown(ending: str, words: str) -> None:
    text = drawn(flight(ending))
    assert words in text and "SIGKILL" not in text


def test_a_flight_without_samples_is_drawn() -> None:
    assert "before anything was seen" in drawn(flight(samples=(), events=(), table=None))


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


def test_how_it_ended(tmp_path: Path) -> None:
    box = BlackBox(str(tmp_path / "box"))
    (tmp_path / "link").symlink_to(box.path)
    assert read(box.path).ending == read(tmp_path / "link").ending == "running"
    (tmp_path / "copy").write_bytes(box.path.read_bytes())
    assert read(tmp_path / "copy").ending == "killed"  # nobody has it locked
    box.close(False)
    assert read(box.path).ending == "cleanly"


def test_files_that_cannot_be_shown(folders: Folders, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is no black box.*FASTFEED_BLACKBOX=PATH"):
        read()
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        read(tmp_path / "nothing")
    with pytest.raises(OptionError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_ended_processes_come_first(folders: Folders) -> None:
    folders.state.mkdir(parents=True)
    boxes = [BlackBox(str(folders.state / f"{n}.blackbox")) for n in range(3)]
    assert (
        newest() == boxes[2].path or os.stat(boxes[2].path).st_mtime == os.stat(newest()).st_mtime
    )
    boxes[0].close(True)
    assert newest() == boxes[0].path
    assert read().ending == "with an error"
    for box in boxes[1:]:
        box.close(False)

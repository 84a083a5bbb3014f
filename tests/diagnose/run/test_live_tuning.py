"""Numbers of producers that are tried in the running job."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fastfeed import FeedRunner
from fastfeed.cli import main
from fastfeed.diagnose.run.live_tuning import tune_live
from fastfeed.tune.count_tuner import CountTuner
from tests.helpers.dying import until

FASTFEED = (sys.executable, "-c", "from fastfeed.cli import main; main()")
TRAIN = """\
import time
import numpy as np
from fastfeed import FeedRunner

def load(record):
    time.sleep(0.02)
    return np.full(4, record)

with FeedRunner(range(10**6), batch_size=1, transform=load, threads=1) as runner:
    for number, batch in enumerate(runner):
        time.sleep(0.004)
        if runner.options.threads > 1 and not runner.options.tuned or number > 10_000:
            break
print("left", runner.options.threads)
"""


@contextmanager
def training(runner: FeedRunner) -> Iterator[None]:
    over = threading.Event()

    def train() -> None:
        for _ in runner:
            if over.wait(0.001):
                return

    thread = threading.Thread(target=train)
    with runner:
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def waits(limit: int = 10_000) -> Callable[[float], bool]:
    number, event = count(), threading.Event()
    return lambda seconds: next(number) < limit and not event.wait(0.001)


def test_the_best_number_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [2, 4, 3]

    def look(self: Any, now: Any, now_s: float, *, measures: bool = True) -> int:
        self._begin_s, self._now_s = 0.0, now_s
        if numbers:
            before, self._search.wanted = self._search.wanted, numbers.pop(0)
            self._decide(before, self._search.wanted, why="the test")
        self._search.over = not numbers
        return int(self._search.wanted)

    monkeypatch.setattr(CountTuner, "look", look)
    # what is proposed last is no number of producers
    waiting = property(lambda self: "steps wait" * self._search.over)
    monkeypatch.setattr(CountTuner, "held_up", waiting)
    records = np.arange(10**6)
    other = FeedRunner(records, batch_size=1)
    list(islice(other, 2000))
    other.stop()  # it has made more, and trains nothing any more
    runner = FeedRunner(records, batch_size=1, threads=1)
    with training(runner):
        until(lambda: runner.snapshot().consumed.batches > 0, "the first batches")
        decided, why = tune_live(waits())
        assert [one.after for one in decided if not one.proposed] == [2, 4, 3]
        assert not why
        assert runner.options.threads == 3
        assert not runner.options.tuned


def test_what_cannot_be_tuned() -> None:
    assert tune_live(waits()) == ((), "no FeedRunner feeds the job")

    def batches() -> Iterator[Any]:
        yield from (np.zeros(2) for _ in count())

    runner = FeedRunner(batches)
    with training(runner):
        until(lambda: runner.snapshot().consumed.batches > 0, "the first batches")
        decided, why = tune_live(waits())
    assert not decided
    assert "each producer of" in why


def test_a_number_that_is_being_tried_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(self: Any, now: Any, now_s: float, *, measures: bool = True) -> int:
        self._begin_s, self._now_s = 0.0, now_s
        if not self.history:
            self._decide(1, 2, why="the test")
        self._search.wanted = 4
        return 4

    monkeypatch.setattr(CountTuner, "look", look)
    runner = FeedRunner(np.arange(10**6), batch_size=1, threads=1)
    with training(runner):
        until(lambda: runner.snapshot().consumed.batches > 0, "the first batches")

        def pause(seconds: float) -> bool:
            return runner.options.threads != 4

        decided, _ = tune_live(pause)
        assert [one.after for one in decided] == [2]
        assert runner.options.threads == 2


def test_what_looks_for_its_number_goes_on() -> None:
    runner = FeedRunner(np.arange(10**6), batch_size=1, threads="auto")
    with training(runner):
        until(lambda: runner.snapshot().consumed.batches > 0, "the first batches")
        assert 'threads="auto" looks for the number' in tune_live(waits())[1]
        assert runner.options.tuned == ["threads"]


@pytest.mark.parametrize(
    "words", [["--pid", "1"], ["--prove", "--", "train.py"]], ids=["pid", "prove"]
)
def test_what_is_useless_is_refused(words: list[str]) -> None:
    found = CliRunner().invoke(main, ["diagnose", "--live", *words])
    assert found.exit_code == 2
    assert "--live" in found.output


@pytest.mark.slow
def test_a_script_goes_on_with_more_threads(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    out = tmp_path / "out.json"
    command = [*FASTFEED, "diagnose", "--live", "--no-experiments", "--seconds", "3"]
    command += ["--warmup", "0.5", "--json", str(out), "--", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) > 1
    tuning = json.loads(out.read_text())["feed"]["tuning"]
    assert tuning[0]["before"] == 1
    assert tuning[0]["kept"]
    assert "Numbers of producers that were tried" in done.stderr

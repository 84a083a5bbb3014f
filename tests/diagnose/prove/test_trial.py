"""What a run must be to count."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastfeed.diagnose.proof import DIFFERENT, SAME
from fastfeed.diagnose.prove import trial
from fastfeed.diagnose.prove.digests import Digests, compared
from fastfeed.diagnose.prove.search import LEAST_ITEMS
from fastfeed.diagnose.prove.trial import Trials
from fastfeed.diagnose.prove.trial_run import BATCHES, LONE
from fastfeed.diagnose.prove.workspace import Workspace
from fastfeed.diagnose.run.script import Script


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    """Runs of an empty script."""
    monkeypatch.chdir(tmp_path)
    return trials_of(tmp_path, "", end_s=math.inf)


def trials_of(folder: Path, text: str, **options: Any) -> Trials:
    (folder / "train.py").write_text(text)
    scratch = folder / "scratch"
    scratch.mkdir()
    room = Workspace(Script(("train.py",)), scratch=scratch, environment={})
    return Trials(room, seconds=5.0, **options)


def ended(words: list[str], stdout: Any) -> None:
    """Write what a run writes that saw 40 steps."""
    stdout.write(b"AttributeError: dataset\n")
    folder = Path(json.loads(words[3])["folder"])
    found = {"ends": [0.1 * n for n in range(40)], "died": [], "unused": [], "waiting": None}
    found |= {name: Digests().as_json() for name in ("batches", "items")}
    (folder / "run.json").write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("code", "failed"),
    [(0, ""), (None, ""), (1, "AttributeError: dataset"), (-11, "AttributeError: dataset")],
)
def test_a_run_that_fails_after_its_steps_does_not_count(
    code: int | None, failed: str, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one whose patch breaks what comes behind an epoch."""

    def run_session(words: list[str], *, stdout: Any, **options: Any) -> int | None:
        ended(words, stdout)
        return code

    monkeypatch.setattr(trial, "run_session", run_session)
    found = trials.rate((), seconds=5.0, warmup=0.0)
    assert found.failed == failed
    assert failed or found.pace.rate(1.0) == pytest.approx(10.0)


def test_how_long_runs_take_to_start_is_measured(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search leaves the time that its proof takes; one that ends at once says nothing of it."""
    took_s, now_s = iter([12.0, 5.5, 0.2, 8.5]), 100.0

    def run_session(words: list[str], *, stdout: Any, **options: Any) -> int | None:
        nonlocal now_s
        now_s += next(took_s)
        ended(words, stdout)
        return 0

    monkeypatch.setattr(trial, "run_session", run_session)
    monkeypatch.setattr(trial, "time", SimpleNamespace(monotonic=lambda: now_s))
    found = []
    for _ in range(4):
        trials.rate((), seconds=5.0, warmup=0.0)
        found.append(trials.start_s)
    assert found == [7.0, 3.75, 3.75, pytest.approx(11 / 3)]


STREAM = """import numpy as np
from fastfeed import FeedRunner

rows = np.arange(4000.0).reshape(1000, 4)


def draw():
    while True:
        yield rows[np.random.randint(1000, size=8)]


def walk():
    for begin in range(0, 1000, 8):
        yield rows[begin : begin + 8] + np.random.rand()


with FeedRunner({stream}, threads=1) as runner:
    for batch in runner:
        batch.sum()
"""


@pytest.mark.parametrize(("stream", "word"), [("draw", SAME), ("walk", DIFFERENT)])
def test_a_stream_with_a_place_of_its_own_is_seen(
    stream: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random numbers in its batches hide that several producers of it would repeat records."""
    monkeypatch.chdir(tmp_path)
    end_s, text = time.monotonic() + 120.0, STREAM.format(stream=stream)
    trials = trials_of(tmp_path, text, end_s=end_s, most_batches=12)
    found = [trials.batches((), seconds=3.0, purpose=one) for one in (BATCHES, LONE)]
    assert not any(one.failed for one in found)
    assert all(len(one.items.leaves) >= LEAST_ITEMS for one in found)
    assert compared(found[0].items, found[1].items).word == word

"""What a run must be to count."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fastfeed.diagnose.prove import trial
from fastfeed.diagnose.prove.digests import Digests
from fastfeed.diagnose.prove.trial import Trials
from fastfeed.diagnose.prove.workspace import Workspace
from fastfeed.diagnose.run.script import Script


@pytest.mark.parametrize(
    ("code", "failed"),
    [(0, ""), (None, ""), (1, "AttributeError: dataset"), (-11, "AttributeError: dataset")],
)
def test_a_run_that_fails_after_its_steps_does_not_count(
    code: int | None, failed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one whose patch breaks what comes behind an epoch."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")

    def run_session(words: list[str], *, stdout: Any, **options: Any) -> int | None:
        stdout.write(b"AttributeError: dataset\n")
        folder = Path(json.loads(words[3])["folder"])
        found = {"ends": [0.1 * n for n in range(40)], "died": [], "unused": []}
        found["batches"] = Digests().as_json()
        (folder / "run.json").write_text(json.dumps(found))
        return code

    monkeypatch.setattr(trial, "run_session", run_session)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    room = Workspace(Script(("train.py",)), scratch=scratch, environment={})
    trials = Trials(room, seconds=5.0, end_s=math.inf)
    found = trials.rate((), seconds=5.0, warmup=0.0)
    assert found.failed == failed
    assert failed or found.pace.steady == pytest.approx(10.0)

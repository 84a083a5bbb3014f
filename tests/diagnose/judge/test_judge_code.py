"""Changes in the user's own terms: the line, and what to write there."""

from __future__ import annotations

import pytest

from fastfeed.diagnose.evidence import SLEEP, LoopPart
from fastfeed.diagnose.judge.judgement import judge
from tests.diagnose.evidences import CALL, evidence, loop_of, producers, trainer


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("for x, y in train_loader:", "train_loader"),
        ("for i, (x, y) in enumerate(self.batches, 0):", "self.batches"),
        ("for batch in tqdm(enumerate(loader)):", "loader"),
    ],
)
def test_a_data_loader_is_changed_by_its_own_name(text: str, name: str) -> None:
    loop = loop_of([40.0] * 200, kind="torch", buffer=0, where="train.py:41", text=text)
    parts = (LoopPart("input", CALL, 0.8, {SLEEP: 1.0}), LoopPart("step", CALL, 0.2))
    best, *_ = judge(evidence(loop, (trainer(),), parts=parts)).recommendations
    assert best.where == "train.py:41"
    assert best.code.startswith(f"{name} = DataLoader(..., num_workers={best.value}")


@pytest.mark.parametrize("text", ["while True:", "for batch in make(a, b)[0]:", ""])
def test_a_line_without_a_name_gives_no_code(text: str) -> None:
    loop = loop_of([40.0] * 200, text=text)
    best, *_ = judge(evidence(loop, (trainer(), *producers(1, {SLEEP: 1.0})))).recommendations
    assert best.code == ""

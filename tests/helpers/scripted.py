"""Numbers of producers that a tuner decides for, in place of what it measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastfeed.tune.count_tuner import CountTuner


def decide(numbers: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every tuner take the next one of `numbers` with each look, at once."""
    monkeypatch.setattr(CountTuner, "look", _look_at(numbers))
    monkeypatch.setattr("fastfeed.tune.tuning_thread.SEARCH_POLL_S", 0.001)


def _look_at(numbers: list[int]) -> Callable[..., int]:
    def look(self: Any, now: Any, now_s: float, **_: Any) -> int:
        self._now_s, before = now_s, self._search.wanted
        if self._begin_s is None:
            self._begin_s = now_s
        if numbers:
            self._search.wanted = numbers.pop(0)
            self._decide(before, self._search.wanted, why="the test")
        return int(self._search.wanted)

    return look

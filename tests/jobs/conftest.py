"""Black boxes in a folder of the test, with a sample every hundredth of a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastfeed.jobs import observer


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Enable black boxes, in a folder of this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("FASTFEED_BLACKBOX")
    monkeypatch.setattr(observer, "SAMPLE_EVERY_S", 0.01)
    return tmp_path / "state" / "fastfeed"

"""Black boxes and sockets in folders of the test, with a sample every hundredth of a second."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastfeed.live import folders as live_folders
from fastfeed.live import service
from tests.live.places import Folders


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Folders]:
    """Use folders with short names, because the path of a socket has at most 107 bytes."""
    base = Path(tempfile.mkdtemp(prefix="ff-", dir="/tmp"))
    found = Folders(base / "state" / "fastfeed", base / "run" / "fastfeed")
    (base / "run").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(base / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base / "run"))
    monkeypatch.delenv("FASTFEED_BLACKBOX")
    monkeypatch.delenv("FASTFEED_SOCKET")
    monkeypatch.setattr(service, "SAMPLE_EVERY_S", 0.01)
    # Hide the jobs of other users.
    monkeypatch.setattr(live_folders, "SOCKET_FALLBACK", base / "shared")
    yield found
    shutil.rmtree(base)

"""Black boxes and sockets switched on, in folders of the test's own, with looks a hundredth of a
second apart."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastfeed.live import folders as where
from fastfeed.live import service
from tests.live.places import Folders


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Folders]:
    """Short names: that of a socket has room for 107 bytes."""
    base = Path(tempfile.mkdtemp(prefix="ff-", dir="/tmp"))
    found = Folders(base / "state" / "fastfeed", base / "run" / "fastfeed")
    (base / "run").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(base / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base / "run"))
    monkeypatch.delenv("FASTFEED_BLACKBOX")
    monkeypatch.delenv("FASTFEED_SOCKET")
    monkeypatch.setattr(service, "SAMPLE_EVERY_S", 0.01)
    monkeypatch.setattr(
        where, "SOCKET_FALLBACK", base / "shared"
    )  # others have jobs on this machine, too
    yield found
    shutil.rmtree(base)

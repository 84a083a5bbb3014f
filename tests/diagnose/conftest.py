"""What several of these tests stand on."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def untraced() -> Iterator[None]:
    """Nobody traces this thread, before the test and after it."""
    before = sys.gettrace()
    sys.settrace(None)
    yield
    assert sys.gettrace() is None, "nothing is left of it"
    sys.settrace(before)

"""Graphs for the tests of sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def build() -> Iterator[Callable[..., Any]]:
    """Makes graphs, whose sessions are closed afterwards."""
    from tests.diagnose.queued import Graph

    made: list[Graph] = []

    def build(*args: Any, **options: Any) -> Graph:
        made.append(Graph(*args, **options))
        return made[-1]

    yield build
    for one in made:
        one.session.close()

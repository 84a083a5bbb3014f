"""Scripts that do not outlive their test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.scripts import Script, Start


@pytest.fixture
def script() -> Iterator[Start]:
    """Starts scripts; whatever is left of one that failed is killed."""
    started: list[Script] = []

    def start(code: str, *arguments: str, python: tuple[str, ...] = ()) -> Script:
        started.append(Script(code, *arguments, python=python))
        return started[-1]

    yield start
    for one in started:
        one.kill()

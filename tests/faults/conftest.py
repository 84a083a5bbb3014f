"""Scripts that do not outlive their test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.scripts import Script, Start


@pytest.fixture
def script() -> Iterator[Start]:
    """Start scripts; kill what is left of a failed one."""
    started: list[Script] = []

    def start(code: str, *arguments: str, python: tuple[str, ...] = ()) -> Script:
        started.append(Script(code, *arguments, python=python))
        return started[-1]

    yield start
    for one in started:
        one.kill()

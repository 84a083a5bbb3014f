"""A graph for each test, and less time to hang in than elsewhere."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "sinks" in item.path.parts:
            item.add_marker(pytest.mark.timeout(180))


@pytest.fixture
def graph() -> Iterator[Any]:
    """The default graph of the test."""
    tf = pytest.importorskip("tensorflow")
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture(scope="module")
def short_collections() -> Iterator[None]:
    """Of all that TensorFlow has, they take seconds, in which a producer that stop() waits for
    cannot end."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()

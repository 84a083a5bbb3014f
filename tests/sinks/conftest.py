"""A graph for each test, and a shorter time limit than elsewhere."""

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
    """Yield the default graph of the test."""
    tf = pytest.importorskip("tensorflow")
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture(scope="module")
def short_collections() -> Iterator[None]:
    """Freeze the objects of TensorFlow. A collection of all of them takes seconds, during which a
    producer cannot end."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()

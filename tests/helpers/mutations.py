"""Damage to a JSON document: a value lost, replaced by one of another kind or size, or nested."""

from __future__ import annotations

import copy
import random
from typing import Any

VALUES: tuple[Any, ...] = (None, -1, 0, 1, 2**31, 2**63, 2**200, -(2**70), 0.5, -1e300)
VALUES += (float("nan"), float("inf"), True, "", "x", "-7", [], [None], {}, {"x": 1}, [[1, 2]])
DEPTH = 5000  # of lists in lists


def deep() -> list[Any]:
    """Return a list that is nested too deep for a recursive reader."""
    nested: list[Any] = []
    for _ in range(DEPTH):
        nested = [nested]
    return nested


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in a document, as (container, key)."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found = [(value, key) for key, _ in pairs]
    for container, key in tuple(found):
        if isinstance(container[key], (dict, list)):
            found += places(container[key])
    return found


def mutated(document: Any, *, seed: int) -> Any:
    """Return a copy of a document with one to three changes."""
    draw = random.Random(seed)
    document = copy.deepcopy(document)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        found = places(document)
        if not found:
            break
        container, key = draw.choice(found)
        old = container[key]
        change = draw.randrange(8)
        if change == 0:
            del container[key]
        elif change == 1 and isinstance(old, (int, float)):
            container[key] = draw.choice((-old, old + 1, old - 1, old * 10**6, str(old), [old]))
        elif change == 2 and isinstance(old, (str, list)):
            container[key] = old[: len(old) // 2]
        elif change == 3 and isinstance(container, dict):
            container[f"{key}x"] = container.pop(key)
        elif change == 4 and seed % 8 == 0:
            container[key] = deep()
            break  # nothing reads it any more
        else:
            container[key] = copy.deepcopy(draw.choice(VALUES))
    return document

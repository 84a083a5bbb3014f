"""Checks of operations' parameters: each OptionError names the parameter, its value and what is
allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastfeed.errors import OptionError


def pair(size: Any) -> tuple[int, int]:
    """Return (height, width)."""
    return int(size[0]), int(size[1])


def sides_of(op: str, size: Any) -> tuple[int, int]:
    """Return (height, width) from one number or two."""
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, Sequence) or len(sides) != 2:
        raise OptionError(f"{op}(size={size!r}): must be (height, width), or one number for both")
    for side in sides:
        check_size(f"{op}(size", side)
    return pair(sides)


def check_size(name: str, value: Any) -> None:
    """Raise OptionError unless it is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name}={value!r}): must be an integer >= 1")


def check_chance(name: str, value: Any) -> None:
    """Raise OptionError unless it is a probability."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise OptionError(f"{name}={value!r}): must be a probability, from 0 to 1")


def check_fill(op: str, value: Any) -> None:
    """Raise OptionError unless it can be the value of a pixel."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 65535:
        raise OptionError(f"{op}(fill={value!r}): must be a value of the image's dtype, such as 0")


def check_one_of(name: str, value: Any, *, choices: tuple[str, ...]) -> None:
    """Raise OptionError unless it is one of `choices`."""
    if value not in choices:
        raise OptionError(f"{name}={value!r}): must be one of {', '.join(map(repr, choices))}")

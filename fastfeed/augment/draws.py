"""Random numbers that depend only on their purpose: any producer draws the same ones."""

from __future__ import annotations

from collections.abc import Iterable

MASK = 2**64 - 1
# splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014)
GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key_of(parts: Iterable[int]) -> int:
    """Return 64 bits that stand for a record, such as (seed, epoch, index)."""
    key = 0
    for part in parts:
        bits = ((key ^ (part & MASK)) + GOLDEN) & MASK
        bits = ((bits ^ (bits >> 30)) * FIRST) & MASK
        bits = ((bits ^ (bits >> 27)) * SECOND) & MASK
        key = bits ^ (bits >> 31)
    return key


class Draws:
    """A stream of numbers in [0, 1) for one record, the same in every producer. Not for
    cryptography."""

    __slots__ = ("_at",)

    def __init__(self, key: int) -> None:
        self._at = key

    def next(self) -> float:
        """Return the next number, with 53 bits."""
        bits = self._at = (self._at + GOLDEN) & MASK
        # written out twice: after a decoder every call is slow
        bits = ((bits ^ (bits >> 30)) * FIRST) & MASK
        bits = ((bits ^ (bits >> 27)) * SECOND) & MASK
        return ((bits ^ (bits >> 31)) >> 11) * 2.0**-53

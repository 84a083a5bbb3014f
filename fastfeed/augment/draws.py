"""Random numbers that depend only on the record: every producer draws the same ones."""

from __future__ import annotations

from collections.abc import Iterable

MASK_64_BITS = 2**64 - 1
# splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014)
SPLITMIX_INCREMENT = 0x9E3779B97F4A7C15
SPLITMIX_FACTOR_1, SPLITMIX_FACTOR_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key_of(parts: Iterable[int]) -> int:
    """Return 64 bits that stand for a record, such as (seed, epoch, index)."""
    key = 0
    for part in parts:
        bits = ((key ^ (part & MASK_64_BITS)) + SPLITMIX_INCREMENT) & MASK_64_BITS
        bits = ((bits ^ (bits >> 30)) * SPLITMIX_FACTOR_1) & MASK_64_BITS
        bits = ((bits ^ (bits >> 27)) * SPLITMIX_FACTOR_2) & MASK_64_BITS
        key = bits ^ (bits >> 31)
    return key


class Draws:
    """A stream of numbers in [0, 1) for one record, the same in every producer. Not for
    cryptography."""

    __slots__ = ("_state",)

    def __init__(self, key: int) -> None:
        self._state = key

    def next(self) -> float:
        """Return the next number, with 53 bits."""
        bits = self._state = (self._state + SPLITMIX_INCREMENT) & MASK_64_BITS
        # written out again: a call would cost more than the computation
        bits = ((bits ^ (bits >> 30)) * SPLITMIX_FACTOR_1) & MASK_64_BITS
        bits = ((bits ^ (bits >> 27)) * SPLITMIX_FACTOR_2) & MASK_64_BITS
        return ((bits ^ (bits >> 31)) >> 11) * 2.0**-53

"""Where the leaves of a batch lie in a slot, the size of a slot, and the number of slots:
arithmetic only."""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfeed.errors import OptionError
from fastfeed.ring.memory import PAGE, aligned

Array = np.ndarray[Any, Any]
# bytes of slots that are negligible: more small batches in flight cost fewer wake-ups
SMALL_NBYTES = 2**22
MOST_SLOTS = 128
LENGTH = struct.Struct("<q")  # precedes a description


@dataclass(frozen=True)
class MemoryShare:
    """What one worker process may use: `budget` bytes for its slots, and the number of slots
    (`wanted`) that it should have for its `threads` producers if they fit."""

    budget: int
    wanted: int
    threads: int

    @property
    def least(self) -> int:
        """One slot for each producer, one that is ready, one that is lent."""
        return self.threads + 2

    def holds(self, slot_nbytes: int) -> bool:
        """Return True if there is room for the least number of slots."""
        return slot_nbytes * self.least <= self.budget

    def slots(self, slot_nbytes: int, taken: int = 0) -> int:
        """Return how many slots of this size fit beside `taken` bytes. Raise OptionError if the
        budget holds too few."""
        if not self.holds(slot_nbytes):
            raise OptionError(
                f"memory= gives each worker process {self.budget} bytes, which is room for "
                f"{self.budget // slot_nbytes} slots of {slot_nbytes} bytes (a batch): needed "
                f"{self.least}, that is memory={slot_nbytes * self.least} for each process. Raise "
                "memory=, take fewer processes= or threads=, or make smaller batches"
            )
        wanted = max(self.wanted, min(MOST_SLOTS, SMALL_NBYTES // slot_nbytes))
        return max(self.least, min(wanted, (self.budget - taken) // slot_nbytes))


def offsets(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Return the offset of each part, a multiple of 64, and the end of the last one."""
    found, at = [], 0
    for size in sizes:
        found.append(at)
        at += aligned(size)
    return tuple(found), at


def packed_nbytes(sizes: Sequence[int]) -> int:
    """Return the bytes that parts of these sizes take in a slot."""
    return sum(map(aligned, sizes))


def slot_nbytes(nbytes: int) -> int:
    """Return the size of a slot for `nbytes`: whole pages, so that no two slots share one."""
    return max(PAGE, -(-nbytes // PAGE) * PAGE)


def encode(leaves: Sequence[Array]) -> list[Array]:
    """Return a batch whose layout no spec describes (records that vary, bytes) as plain arrays
    after a description.

    Arrays stay as they are; an object array of bytes becomes the length of each and all of them
    concatenated.
    """
    parts: list[Array] = []
    described = []
    for leaf in leaves:
        if leaf.dtype.kind == "O":
            parts += [
                np.array([len(v) for v in leaf.flat], np.int64),
                np.frombuffer(b"".join(leaf.flat), np.uint8),
            ]
        else:
            parts.append(leaf)
        described.append((leaf.dtype, leaf.shape, parts[-1].nbytes))
    text = pickle.dumps(described)
    return [np.frombuffer(LENGTH.pack(len(text)) + text, np.uint8), *parts]


def decode(owner: Any) -> tuple[Array, ...]:
    """Return the leaves that `encode` described at the beginning of the memory of `owner` (a ctypes
    array): views of it, except bytes, which are objects."""
    memory = np.frombuffer(owner, np.uint8)
    (length,) = LENGTH.unpack(memory[: LENGTH.size].tobytes())
    described = pickle.loads(memory[LENGTH.size : LENGTH.size + length].tobytes())
    at = aligned(LENGTH.size + length)
    leaves = []
    for dtype, shape, nbytes in described:
        if dtype.kind == "O":
            lengths = np.ndarray((math.prod(shape),), np.int64, owner, at).copy()
            at += aligned(lengths.nbytes)
            leaves.append(_objects(memory[at : at + nbytes].tobytes(), lengths, shape=shape))
        else:
            leaves.append(np.ndarray(shape, dtype, owner, at))
        at += aligned(nbytes)
    return tuple(leaves)


def _objects(data: bytes, lengths: Array, *, shape: tuple[int, ...]) -> Array:
    out = np.empty(len(lengths), object)
    ends = np.cumsum(lengths).tolist()
    out[:] = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return out.reshape(shape)

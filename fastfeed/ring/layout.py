"""Arithmetic of the ring: offsets of leaves in a slot, size of a slot, number of slots."""

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
# Slots may always take this many bytes: more small batches in flight cost fewer wake-ups.
SMALL_NBYTES = 2**22
MAX_SMALL_SLOTS = 128
LENGTH = struct.Struct("<q")  # precedes a pickled description


@dataclass(frozen=True)
class MemoryShare:
    """Memory of one worker process: `budget` bytes for its slots. It should get `wanted` slots for
    its `threads` producers if they fit, and more of small ones unless `capped`."""

    budget: int
    wanted: int
    threads: int
    capped: bool = False

    @property
    def min_slots(self) -> int:
        """Smallest usable number of slots: one for each producer, one that is ready, one that is
        lent."""
        return self.threads + 2

    def fits(self, slot_nbytes: int) -> bool:
        """Return True if the smallest usable number of slots fits."""
        return slot_nbytes * self.min_slots <= self.budget

    def slots(self, slot_nbytes: int, taken: int = 0) -> int:
        """Return how many slots of this size fit beside `taken` bytes. Raise OptionError if the
        budget holds fewer than `min_slots`."""
        if not self.fits(slot_nbytes):
            raise OptionError(
                f"memory= gives each worker process {self.budget} bytes, which is room for "
                f"{self.budget // slot_nbytes} slots of {slot_nbytes} bytes (one batch). It needs "
                f"at least {self.min_slots}, that is {slot_nbytes * self.min_slots} bytes for each "
                "process. Raise memory=, use fewer processes= or threads=, or smaller batches"
            )
        small = 0 if self.capped else min(MAX_SMALL_SLOTS, SMALL_NBYTES // slot_nbytes)
        wanted = max(self.wanted, small)
        return max(self.min_slots, min(wanted, (self.budget - taken) // slot_nbytes))


def offsets(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Return the offset of each part, a multiple of 64, and the end of the last one."""
    found, at = [], 0
    for size in sizes:
        found.append(at)
        at += aligned(size)
    return tuple(found), at


def slot_nbytes(nbytes: int) -> int:
    """Return the size of a slot that holds `nbytes`: whole pages, so that no two slots share
    one."""
    return max(PAGE, -(-nbytes // PAGE) * PAGE)


def encode(leaves: Sequence[Array]) -> list[Array]:
    """Encode a batch whose layout no spec describes (records of varying shape, bytes) as a
    description followed by plain arrays.

    Arrays stay as they are. An object array of bytes becomes two arrays: the lengths, and the
    joined bytes.
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
    """Return the leaves that `encode` wrote to the memory of `owner` (a ctypes array). They are
    views of it, except for bytes, which are objects."""
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

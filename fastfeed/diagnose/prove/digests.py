"""Checksums of the first batches of a run, and what they say of the batches of two runs."""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fastfeed.diagnose.proof import DIFFERENT, OTHER_DRAWS, OTHER_ORDER, SAME, UNKNOWN

COMPARED_BATCHES = 200
MAX_LATE = 0.1  # of them: those that are made ahead while the last ones are seen, or by chance
Leaves = list[tuple[str, str, int]]  # of a batch: dtype, shape and checksum


class Sameness(NamedTuple):
    """What a comparison of batches found: one of WORDS, and what differs."""

    word: str
    text: str = ""


class Digests:
    """Checksums of the first `most` batches in their order: of each leaf, with what it is, and of
    each record.

    `unknown`: what has no checksum, so that nothing can be said. `ended`: there were no more.
    """

    def __init__(self, most: int = COMPARED_BATCHES) -> None:
        self.most = most
        self.leaves: list[Leaves] = []
        self.records: list[int] = []
        self.losses: list[float] = []
        self.unknown = ""
        self.ended = False

    @property
    def full(self) -> bool:
        """True if there are enough of them."""
        return len(self.leaves) >= self.most

    def add(self, batch: Any) -> None:
        """Add a batch of any framework. Nothing is raised: it is called in the user's loop."""
        if self.full or self.unknown:
            return
        try:
            seen = [_seen(leaf) for leaf in _leaves(batch)]
        except Exception as error:
            self.unknown = f"{type(error).__name__}: {error}"
            return
        if not seen:
            return  # such as the None behind the last batch: nothing to compare
        self.leaves.append([(dtype, str(list(one.shape)), _checksum(one)) for dtype, one in seen])
        counts = {one.shape[:1] for _, one in seen}
        if () in counts or len(counts) > 1:  # no records of one length
            self.records.append(_joined(checksum for _, _, checksum in self.leaves[-1]))
            return
        for row in range(*counts.pop()):
            self.records.append(_joined(_checksum(one[row]) for _, one in seen))

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return dict(vars(self))

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Digests:
        """Return digests from plain values."""
        found = cls()
        vars(found).update(values)
        found.leaves = [[(d, s, c) for d, s, c in batch] for batch in values["leaves"]]
        return found


def compared(before: Digests, after: Digests, *, reseeded: Digests | None = None) -> Sameness:
    """Return what the batches of `after` are, compared with those of `before`; `reseeded`: of the
    same script as `before`, with other random numbers."""
    count = min(len(before.leaves), len(after.leaves))
    unknown = before.unknown or after.unknown
    if unknown or not count:
        return Sameness(UNKNOWN, unknown or "no batch of the loop was seen in both runs")
    if before.ended and count < len(after.leaves):
        return Sameness(
            DIFFERENT, f"there are more batches than the {count} of the script as it is"
        )
    if after.ended and count < len(before.leaves):
        return Sameness(DIFFERENT, f"there are {count} batches, and more of the script as it is")
    one, two = before.leaves[:count], after.leaves[:count]
    if one == two:
        return Sameness(SAME, f"the first {count} are equal")
    rows = min(len(before.records), len(after.records))
    shapes = [[str([leaf[:2] for leaf in batch]) for batch in of] for of in (one, two)]
    if rows and _within(before.records[:rows], after.records[:rows]) and _within(*shapes):
        return Sameness(OTHER_ORDER, f"the first {count} hold the same {rows} records")
    unequal = sum(a != b for a, b in zip(one, two, strict=True))
    drawn = reseeded.leaves if reseeded is not None else []
    for parts in (slice(0, 1), slice(0, 2), slice(0, 3)):  # dtypes, shapes, values
        changed = _leaves_that_differ(one, two, parts=parts)
        if not changed <= _leaves_that_differ(one, drawn, parts=parts):
            return Sameness(
                DIFFERENT, _unlike(one, two) or f"{unequal} of the first {count} differ"
            )
    runs = [one.records for one in (before, reseeded) if one and len(one.records) >= rows]
    distinct = min(len(set(one[:rows])) for one in runs)  # a run may repeat more than another
    repeated = len(set(after.records[:rows]))
    if repeated < (1 - MAX_LATE) * distinct:
        text = f"the first {rows} records are {repeated} different ones in place of {distinct}"
        return Sameness(DIFFERENT, text)
    same = sorted(set(range(len(one[0]))) - changed)
    kept = f", but for leaf {', '.join(map(str, same))}" if same else ""
    text = f"{unequal} of the first {count} differ{kept}, as with other seeds of the original"
    return Sameness(OTHER_DRAWS, text)


def same_losses(before: Digests, after: Digests, *, again: Digests | None) -> str:
    """Return what the losses after the same steps are, in words; "" where they say nothing."""
    count = min(len(before.losses), len(after.losses))
    if not count or again is None or before.losses[:count] != again.losses[:count]:
        return ""  # two runs of the original differ, too
    if before.losses[:count] == after.losses[:count]:
        return f"same loss after {count} steps"
    one, two = before.losses[count - 1], after.losses[count - 1]
    return f"loss {one:.6g} and {two:.6g} after {count} steps"


def _unlike(one: Sequence[Leaves], two: Sequence[Leaves]) -> str:
    """Return how the dtypes or shapes of two lists of batches differ; "" if they do not."""
    for number, (a, b) in enumerate(zip(one, two, strict=True)):
        kinds = [[f"{dtype}{shape}" for dtype, shape, _ in batch] for batch in (a, b)]
        if kinds[0] != kinds[1]:
            return f"batch {number} is {', '.join(kinds[1])} in place of {', '.join(kinds[0])}"
    return ""


def _within(one: Sequence[Any], two: Sequence[Any]) -> bool:
    """Return True if both hold the same values, but for a few at the end, which may have come later
    in the other."""
    end = len(one) - int(MAX_LATE * len(one))
    return all(not Counter(a[:end]) - Counter(b) for a, b in ((one, two), (two, one)))


def _leaves_that_differ(one: Sequence[Leaves], two: Sequence[Leaves], *, parts: slice) -> set[int]:
    """Return the numbers of the leaves whose dtype, shape or checksum differs in any batch."""
    pairs = [(a, b) for a, b in zip(one, two, strict=False) if a != b]
    return {
        number
        for a, b in pairs
        for number in range(max(len(a), len(b)))
        if [leaf[parts] for leaf in a[number : number + 1]]
        != [leaf[parts] for leaf in b[number : number + 1]]
    }


def _leaves(batch: Any) -> list[Any]:
    """Return the leaves of a structure, which may be an object with attributes.

    Raise TypeError for an object without any.
    """
    if batch is None:
        return []
    if isinstance(batch, Mapping):
        parts = list(batch.values())
    elif isinstance(batch, (tuple, list)) and not (
        batch and all(isinstance(one, (int, float)) for one in batch)
    ):
        parts = list(batch)
    elif hasattr(batch, "__array__") or hasattr(batch, "detach") or not hasattr(batch, "__dict__"):
        return [batch]
    else:
        parts = list(vars(batch).values())
        if not parts:
            raise TypeError(f"a batch holds {type(batch).__name__}, which has no checksum")
    return [leaf for part in parts for leaf in _leaves(part)]


def _seen(leaf: Any) -> tuple[str, Any]:
    """Return a leaf's dtype, with the framework of a tensor, and an array that its values decide.

    Raise TypeError for what has no checksum.
    """
    import numpy as np  # not before the script, whose variables may limit its threads

    name = type(leaf).__module__.partition(".")[0].removesuffix("lib")
    owner = f"{name}." if name in ("torch", "jax", "tensorflow") else ""
    if hasattr(leaf, "detach"):
        leaf = leaf.detach().cpu()
        dtype = str(leaf.dtype).removeprefix("torch.")
        try:
            return f"{owner}{dtype}", leaf.numpy()
        except (TypeError, RuntimeError):  # of a dtype that NumPy lacks
            torch = sys.modules["torch"]
            flat = leaf.contiguous().reshape(leaf.shape or (1,)).view(torch.uint8)
            return f"{owner}{dtype}", flat.numpy()
    found = np.asarray(leaf)
    if found.dtype.kind not in "USO":
        return f"{owner}{found.dtype}", found
    sums = [_checksum_of(one) for one in found.ravel()]
    dtype = "object" if found.dtype.kind == "O" else "str"
    return f"{owner}{dtype}", np.array(sums, np.uint32).reshape(found.shape)


def _checksum_of(value: Any) -> int:
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return zlib.crc32(value)
    if not hasattr(value, "__array__") and not isinstance(value, (int, float)):
        raise TypeError(f"a batch holds {type(value).__name__}, which has no checksum")
    return _checksum(_seen(value)[1])


def _checksum(array: Any) -> int:
    return zlib.crc32(array.tobytes())


def _joined(checksums: Iterable[int]) -> int:
    return zlib.crc32(repr(list(checksums)).encode())

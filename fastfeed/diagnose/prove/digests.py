"""Checksums of the first batches of a run, and what they say of the batches of two runs."""

from __future__ import annotations

import contextlib
import random
import sys
import zlib
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fastfeed.diagnose.proof import DIFFERENT, OTHER_DRAWS, OTHER_ORDER, SAME, UNKNOWN

MOST_SHOWN = 4  # leaves of a batch in a text
COMPARED_BATCHES = 200
MAX_LATE = 0.1  # of them: those that are made ahead while the last ones are seen, or by chance
MOST_CHECKSUMS = 4_000_000  # of leaves of records; more are joined to one for each record
DTYPES, SHAPES, VALUES = slice(0, 1), slice(0, 2), slice(0, 3)  # of a leaf
Leaves = list[tuple[str, str, int]]  # of a batch: dtype, shape and checksum


class Sameness(NamedTuple):
    """What a comparison of batches found: one of WORDS, and what differs."""

    word: str
    text: str = ""


class Digests:
    """Checksums of the first `most` batches in their order: of each leaf, with what it is, and of
    each record.

    `rows`: by batch and record, the checksums of its leaves; a batch without records of one length
    has none. `epochs`: how many batches there were at each end of an epoch, if `ends_known`.
    `shortened`: epochs are shorter than those of the script. `shuffled`: random numbers decide the
    order of records, which was kept. `unknown`: what has no checksum, so that nothing can be said.
    `ended`: there were no more. `ahead`: it is not known if the script has taken the last ones.
    `draws`: number of batches before which `random` or `numpy.random` drew; `state`: a checksum of
    these generators at the last batch.
    """

    def __init__(self, most: int = COMPARED_BATCHES) -> None:
        self.most = most
        self.leaves: list[Leaves] = []
        self.rows: list[list[list[int]]] = []
        self.epochs: list[int] = []
        self.losses: list[float] = []
        self.unknown = ""
        self.ended = self.ahead = self.shortened = self.shuffled = False
        self.ends_known = True
        self.draws = self.state = 0

    @property
    def are_drawn(self) -> bool:
        """True if most batches draw from the generators of the process."""
        return 2 * self.draws > len(self.leaves)

    @property
    def full(self) -> bool:
        """True if there are enough of them."""
        return len(self.leaves) >= self.most

    def add(self, batch: Any) -> None:
        """Add a batch of any framework. Nothing is raised: it is called in the user's loop."""
        if self.full or self.unknown:
            return
        try:
            seen, drawn = [_seen(leaf) for leaf in _leaves(batch)], _generators_state()
        except Exception as error:
            self.unknown = f"{type(error).__name__}: {error}"
            return
        if not seen:
            return  # such as the None behind the last batch: nothing to compare
        leaves = [(dtype, str(list(one.shape)), _checksum(one)) for dtype, one in seen]
        counts = {one.shape[:1] for _, one in seen}
        many = range(0) if () in counts or len(counts) > 1 else range(*counts.pop())
        rows = [[_checksum(one[row]) for _, one in seen] for row in many]
        if len(many) * len(seen) * self.most > MOST_CHECKSUMS:
            rows = [[_joined(row)] for row in rows]
        self.draws += bool(self.state) and drawn != self.state
        self.state = drawn
        self.rows.append(rows)
        self.leaves.append(leaves)

    def end_epoch(self) -> None:
        """Note that the loop has had all batches of an epoch."""
        if self.leaves and not self.full and self.epochs[-1:] != [len(self.leaves)]:
            self.epochs.append(len(self.leaves))

    def records(self, begin: int, end: int, *, leaves: Container[int] | None = None) -> list[int]:
        """Return the checksums of the records of some batches, or of these `leaves` of them; of
        each batch without records, its own."""
        found = []
        for batch, rows in zip(self.leaves[begin:end], self.rows[begin:end], strict=True):
            for row in rows or [[checksum for _, _, checksum in batch]]:
                found.append(_joined(c for n, c in enumerate(row) if leaves is None or n in leaves))
        return found

    def kinds(self, begin: int, end: int) -> list[str]:
        """Return the dtypes and shapes of some batches."""
        return [str([leaf[:2] for leaf in batch]) for batch in self.leaves[begin:end]]

    def as_json(self) -> dict[str, Any]:
        """Return plain values, from any thread: a batch that is being added is none yet."""
        leaves = list(self.leaves)
        return vars(self) | {"leaves": leaves, "rows": self.rows[: len(leaves)]}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Digests:
        """Return digests from plain values."""
        found = cls()
        vars(found).update(values)
        found.leaves = [[(d, s, c) for d, s, c in batch] for batch in values["leaves"]]
        return found


def compared(
    before: Digests,
    after: Digests,
    *,
    reseeded: Digests | None = None,
    reordered: Digests | None = None,
) -> Sameness:
    """Return what the batches of `after` are, compared with those of `before`; `reseeded`: of the
    same script as `before`, with other random numbers; `reordered`: also in another order."""
    pair = _Pair(before, after)
    count, unknown = pair.count, before.unknown or after.unknown
    if unknown or not count:
        return Sameness(UNKNOWN, unknown or "no batch of the loop was seen in both runs")
    if pair.ends_elsewhere:
        return Sameness(DIFFERENT, pair.ends_elsewhere)
    one, two = before.leaves[:count], after.leaves[:count]
    if one == two:
        return Sameness(SAME, f"the first {count} are equal")
    if pair.same_records():
        rows = len(before.records(0, pair.ends[-1] if pair.ends else count))
        where = f"the first {len(pair.ends) or count}{' epochs' * bool(pair.ends)}"
        return Sameness(OTHER_ORDER, f"{where} hold the same {rows} records")
    every = set(range(len(one[0])))
    differ = sum(a != b for a, b in zip(one, two, strict=True))
    unequal = f"{differ} of the first {count} batches differ"
    others = [of.leaves for of in (reseeded, reordered) if of is not None]
    kept = pair.shuffled and bool(others)  # the order of the records, under other seeds
    if kept:
        fixed = every - _leaves_that_differ(one, others[0], parts=VALUES)
        if reordered is not None:  # but for what depends on the others of its batch, or is left out
            another = _Pair(before, reordered)
            fixed = {number for number in fixed if another.same_records({number})}
        if fixed and not pair.same_records(fixed):
            text = f"epochs hold others in leaf {_listed(fixed)}, which no random number decides"
            return Sameness(DIFFERENT, text)
    for parts in (DTYPES, SHAPES, VALUES):
        known = {n for other in others for n in _leaves_that_differ(one, other, parts=parts)}
        known |= every if kept and parts == VALUES else set()
        if not _leaves_that_differ(one, two, parts=parts) <= known:
            return Sameness(DIFFERENT, _unlike(one, two) or unequal)
    rows, distinct, repeated = pair.distinct(reseeded)
    if repeated < (1 - MAX_LATE) * distinct:
        text = f"the first {rows} records are {repeated} different ones in place of {distinct}"
        return Sameness(DIFFERENT, text)
    same = every - _leaves_that_differ(one, two, parts=VALUES)
    but = f", but for their leaf {_listed(same)}" if same else ""
    return Sameness(OTHER_DRAWS, f"{unequal}{but}, as they do when the script has other seeds")


class _Pair:
    """Two runs, as far as both go.

    `ends` of epochs that both have had; `shuffled`: random numbers decide the order within these.
    """

    def __init__(self, before: Digests, after: Digests) -> None:
        self.before, self.after = before, after
        self.count = min(len(before.leaves), len(after.leaves))
        self.knows_ends = before.ends_known and after.ends_known
        both = [one for one in before.epochs if one in after.epochs and one <= self.count]
        self.ends = both if self.knows_ends else []
        self.shuffled = before.shuffled and bool(self.ends)

    @property
    def ends_elsewhere(self) -> str:
        """What of one run ends where the other goes on; "" if nothing."""
        more = self.count < len(self.after.leaves) and not self.after.ahead
        if self.before.ended and more:
            return f"there are more batches than the {self.count} of the script as it is"
        if self.after.ended and self.count < len(self.before.leaves):
            return f"there are {self.count} batches, and more of the script as it is"
        odd = {one for one in {*self.before.epochs} ^ {*self.after.epochs} if one < self.count}
        where = f"an epoch ends after {min(odd)} batches in one run only" if odd else ""
        return where if self.knows_ends else ""

    def same_records(self, leaves: Container[int] | None = None) -> bool:
        """Return True if each epoch holds the same records, or the same of these leaves of them;
        without epochs, if all batches do, but for a few at the end, which may have come later in
        one of them."""
        pair, count = (self.before, self.after), self.count
        for span in zip([0, *self.ends], self.ends, strict=False):
            if not _equal_counts(*(of.records(*span, leaves=leaves) for of in pair)):
                return False
            if leaves is None and not _equal_counts(*(of.kinds(*span) for of in pair)):
                return False
        if self.ends:  # what follows is of another epoch of the same records
            ours, theirs = (set(of.records(self.ends[-1], count, leaves=leaves)) for of in pair)
            one, two = (set(of.records(0, count, leaves=leaves)) for of in pair)
            return ours <= two and theirs <= one
        one_s, two_s = (of.records(0, count) for of in pair)
        rows = min(len(one_s), len(two_s))
        return _within(one_s[:rows], two_s[:rows]) and _within(*(of.kinds(0, count) for of in pair))

    def distinct(self, reseeded: Digests | None) -> tuple[int, int, int]:
        """Return how many records were compared, and how many different ones these are, before and
        after; a run may repeat more than another."""
        runs = [self.before, self.after, *([] if reseeded is None else [reseeded])]
        one, two, *others = (of.records(0, self.count) for of in runs)
        rows = min(len(one), len(two))
        known = [one, *(of for of in others if len(of) >= rows)]
        return rows, min(len(set(of[:rows])) for of in known), len(set(two[:rows]))


def may_keep_order(before: Digests, after: Digests) -> bool:
    """Return True if other seeds need not change the order: it is known what each epoch holds."""
    return _Pair(before, after).shuffled


def _equal_counts(one: Sequence[Any], two: Sequence[Any]) -> bool:
    return Counter(one) == Counter(two)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


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
            was, now = (
                ", ".join(one[:MOST_SHOWN] + ["..."] * (len(one) > MOST_SHOWN)) for one in kinds
            )
            return f"batch {number} is {now} in place of {was}"
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


def is_number(value: Any) -> bool:
    """Return True for a single number or text, such as a learning rate: it is no batch."""
    return isinstance(value, (int, float, str)) or getattr(value, "shape", None) == ()


def as_fed(key: Any, value: Any) -> Any:
    """Return what a placeholder gets of a value: a session casts it to the dtype."""
    import numpy as np  # not before the script, whose variables may limit its threads

    dtype = getattr(getattr(key, "dtype", None), "as_numpy_dtype", None)
    with contextlib.suppress(TypeError, ValueError):  # which the session says better
        if dtype is not None and np.dtype(dtype).kind != "O":
            return np.asarray(value, dtype)
    return value


def _generators_state() -> int:
    """Return a checksum of the states of the generators that all code of the process shares."""
    of_numpy: Any = getattr(sys.modules.get("numpy.random"), "get_state", tuple)()
    return hash((random.getstate(), str(of_numpy)))


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
    owner = "list." if isinstance(leaf, (list, tuple)) else owner  # [1] + [2] is no sum
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

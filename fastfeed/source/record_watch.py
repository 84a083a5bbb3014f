"""Refusal of records that change after they came: of one object that is filled again for each of
them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fastfeed.errors import SpecError
from fastfeed.source.stream_comparison import digest_of


class RecordWatch:
    """The last record of a batch: it must be the same when the next one has come."""

    def __init__(self) -> None:
        self._last: Any = None
        self._digest: int | None = None

    def add(self, record: Any, place: str) -> None:
        """Raise SpecError if the record before has changed meanwhile."""
        if self._digest is not None and _digest(self._last) not in (None, self._digest):
            raise SpecError(
                f"{place}: the record before it has changed since it came. The source, or "
                "transform=, fills one object again for each record, and a batch would hold its "
                "last values many times: make a new object for each, or copies, such as "
                "array.copy() or dict(record)"
            )
        self._last, self._digest = record, _digest(record)


def _digest(record: Any) -> int | None:
    """Return a digest; None for what cannot be read, which has another one each time."""
    found = digest_of(record)
    return found if found == digest_of(record) else None


def watched(records: Iterable[Any], place: str) -> Iterator[Any]:
    """Yield records. Raise SpecError for one that changes the one before."""
    watch = RecordWatch()
    for record in records:
        watch.add(record, place)
        yield record


def is_watched(number: int) -> bool:
    """Return True for the numbers of the batches whose records are watched: few, and all kinds."""
    return number & (number - 1) == 0

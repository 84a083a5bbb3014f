"""A batch for the length of a `with` block, whose memory is reused after the block."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from fastfeed.core.batch import Batch


class BatchLease:
    """A batch for the length of a block: `with runner.take() as batch`.

    After the block its memory is reused, unless a reference to it is left: a list that holds the
    batch, a view or a tensor of one of its arrays, a second name for an array. These keep the
    memory as usual.
    """

    def __init__(self, batch: Batch, value: Any) -> None:
        self._batch: Batch | None = batch
        self._value = value

    def __enter__(self) -> Any:
        return self._value

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        batch, value = self._batch, self._value
        self._batch = self._value = None
        if batch is None or batch.lease is None:
            return
        # Expected references: to the outermost object from this function and the block's name; to
        # an array from the batch, too. sys.getrefcount counts its own argument.
        if sys.getrefcount(value) <= 3 + any(leaf is value for leaf in batch.leaves) and not _held(
            value, batch
        ):
            batch.lease.end()


def _held(value: Any, batch: Batch) -> bool:
    """Return True if there are references to what is inside the containers of `value`."""
    if not isinstance(value, (tuple, list, dict)):
        return False
    # Expected references to what is inside: the container, the name here and the argument; to an
    # array the batch, too.
    for part in value.values() if isinstance(value, dict) else value:
        if sys.getrefcount(part) > 3 + any(leaf is part for leaf in batch.leaves) or _held(
            part, batch
        ):
            return True
    return False

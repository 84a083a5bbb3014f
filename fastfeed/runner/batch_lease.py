"""A batch for the length of a block, whose memory is used again where the block ends."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from fastfeed.core.batch import Batch


class BatchLease:
    """A batch for the length of a block: `with runner.take() as batch`.

    After the block its memory is used again, unless somebody still holds it: a list that the batch
    was put into, a view or a tensor made of one of its arrays, a second name for an array. They
    keep it as they always do.
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
        # Known holders: of the outermost object this function and the block's name; of an array the
        # batch, too. sys.getrefcount counts its own argument.
        if sys.getrefcount(value) <= 3 + any(leaf is value for leaf in batch.leaves) and not _held(
            value, batch
        ):
            batch.lease.end()


def _held(value: Any, batch: Batch) -> bool:
    """Whether anybody has something that is inside the containers of `value`."""
    if not isinstance(value, (tuple, list, dict)):
        return False
    # Known holders of what is inside: the container, the name here and the argument; of an array
    # the batch, too.
    for part in value.values() if isinstance(value, dict) else value:
        if sys.getrefcount(part) > 3 + any(leaf is part for leaf in batch.leaves) or _held(
            part, batch
        ):
            return True
    return False

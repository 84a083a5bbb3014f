"""What those who start workers tell the feed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fastfeed.producers.process.handle import WorkerHandle


class WorkerEvents(NamedTuple):
    """Calls of a launcher of workers.

    `exited(handles, status)` for each ended worker returns the handles of each worker to start in
    its place. `failed(error)`: workers cannot be started. `tick()` comes from time to time,
    `over()` when no worker will follow.
    """

    exited: Callable[[Sequence[WorkerHandle], int], Iterable[Sequence[WorkerHandle]]]
    failed: Callable[[Exception], None]
    tick: Callable[[], None]
    over: Callable[[], None]

"""Messages of a remote producer to the trainer, and the groups in which they travel."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fastfeed.core.stats import StageRow

Array = np.ndarray[Any, Any]
SPEC = 100  # a kind beside those of ring.token: `body` is the pickled spec
# The forms of a batch: its leaves lie in the block of the group, each at a multiple of 64 from
# `body` on; `body` is the leaves; `body` is the pickled leaves.
PACKED, DIRECT, PICKLED = range(3)


class RemoteMessage(NamedTuple):
    """A token of `ring.token` on its way, with what the ring would hold. `form` and `rows` are
    those of a batch. `body` is its content, or an encoded error."""

    kind: int
    stream: int
    key: int
    item: int
    rows: int = 0
    form: int = PACKED
    body: Any = None


class MessageGroup(NamedTuple):
    """Messages that travel as one object: an object costs a millisecond, a message next to
    nothing. `block` holds the packed batches, `row` the counters of the producer."""

    row: StageRow
    messages: list[RemoteMessage]
    block: Array

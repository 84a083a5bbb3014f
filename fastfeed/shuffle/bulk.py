"""Several batches of a shuffle pool in one go: the same ones, for a thread that no signal handler interrupts."""

from __future__ import annotations

import numpy as np

from fastfeed.batch import Batch, nbytes_of
from fastfeed.collate import Pad
from fastfeed.options import Shuffle
from fastfeed.shuffle.pool import ShufflePool
from fastfeed.shuffle.slots import Slots


class BulkPool(ShufflePool):
    """A pool that copies up to `at_once` batches out at a time.

    Of the room, as much as at_once - 1 batches take is not drawn from: there lies what came before it was needed. So
    what is drawn does not depend on how many batches are drawn at a time, and that may depend on the time.
    """

    def __init__(
        self, shuffle: Shuffle, *, batch_size: int, at_once: int, last_batch: str, seed: int, pad: Pad = None
    ) -> None:
        slack = (at_once - 1) * batch_size
        room = Shuffle(shuffle.capacity - slack, shuffle.min_after_dequeue) if slack else shuffle
        super().__init__(room, batch_size=batch_size, last_batch=last_batch, seed=seed, pad=pad)
        self._slack = slack
        self._at_once = at_once

    def draw_some(self) -> list[Batch]:
        """What draw() and given() in turn would give until the pool wants() more; nothing where an epoch ends.

        Padded records are padded to the largest of all that is drawn. An exception amidst it loses records.
        """
        chosen: list[Slots] = []
        while len(chosen) < self._at_once and not (chosen and self.wants()) and self._chosen():
            self._settled()
            chosen.append(self._passed_on())
        if not chosen:
            return []
        # The slots are free, and nobody has written to them since: one copy for all of them.
        every = np.concatenate(chosen)
        leaves = self._store.take(every).leaves
        self._store.forget(every)
        ends = np.cumsum([len(slots) for slots in chosen]).tolist()
        parts = [tuple([leaf[e - len(s) : e] for leaf in leaves]) for s, e in zip(chosen, ends, strict=True)]
        return [Batch(part, len(part[0]), sum(map(nbytes_of, part))) for part in parts]

"""The end of each epoch for data sets that change there, as those of Keras do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fastfeed.core.status import INPUT, waiting
from fastfeed.errors import OptionError, StateError
from fastfeed.options import FeedOptions


class EpochEnds:
    """Calls `call` between two epochs: after the last item of one epoch is made, and before the
    first item of the next one is begun. The feeds of a runner have one each, and count their calls
    together, so that an epoch which is left early ends, too."""

    def __init__(self, call: Callable[[], None], *, before: EpochEnds | None = None) -> None:
        self.call = call
        self._in_hand = 0
        self._changed = threading.Condition()
        self._calling: threading.Lock = before._calling if before else threading.Lock()
        self._calls: list[int] = before._calls if before else [0]
        self._feeds: list[int] = before._feeds if before else [0]
        with self._calling:  # a call of the feed before is over, and it makes no more
            self._feeds[0] += 1
            self._number = self._feeds[0]

    def taken(self) -> None:
        """Note that a producer begins an item."""
        with self._changed:
            self._in_hand += 1

    def made(self) -> None:
        """Note that a producer asks for another item, or has ended."""
        with self._changed:
            self._in_hand -= 1
            self._changed.notify_all()

    def end_before(self, epoch: int) -> None:
        """Wait for the other producers, and call once for each epoch before `epoch` whose end was
        not called. Raise what the call raises."""
        with self._changed, waiting(INPUT):
            self._changed.wait_for(lambda: not self._in_hand)
        with self._calling:
            while self._number == self._feeds[0] and self._calls[0] < epoch:
                self.call()
                self._calls[0] += 1


def changes_by_epoch(data: Any) -> bool:
    """Return True if the class of a data set, and not that of Keras, has an on_epoch_end."""
    own = getattr(type(data), "on_epoch_end", None)
    return own is not None and not getattr(own, "__module__", "").startswith("keras.")


def epoch_ends_of(
    data: Any, options: FeedOptions, *, before: EpochEnds | None = None
) -> EpochEnds | None:
    """Return the ends of the epochs of `data`, or None if nothing happens there; `before` are those
    of another feed. Raise OptionError where the copies of a data set would no longer be the
    same."""
    if not changes_by_epoch(data):
        return None
    copies = {
        "shard=": options.own_shard is not None or options.stealing,
        "remote=": options.remote is not None,
    }
    for name in (name for name, given in copies.items() if given):
        raise OptionError(
            f"{name} with {type(data).__name__}, whose on_epoch_end changes it after each epoch: "
            "its copies elsewhere would not change alike. Where it only shuffles, leave it out: "
            "let the source return single records, and set batch_size= and shuffle=True"
        )
    return EpochEnds(data.on_epoch_end, before=before)


def refuse_state_of(source: Any) -> None:
    """Raise StateError for a source whose order nobody can bring back."""
    if getattr(source, "ends", None) is not None:
        raise StateError(
            "state(): the source has an on_epoch_end, which may change its records and their order "
            "after each epoch, and a new run could not continue with them. Where it only shuffles, "
            "leave it out: let the source return single records, and set batch_size= and "
            "shuffle=True"
        )

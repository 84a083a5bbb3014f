"""Which epochs may be begun: a pass makes its own, and the next one only when somebody is sure to
want it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

POLL_S = 0.2


@dataclass(frozen=True)
class EpochPlan:
    """What a feed runs through: the root seed, every epoch that there can be, how many of them may
    be begun before `allow` says more, and, for each stream of a callable, the items of the first
    one that were had before."""

    seed: int
    epochs: range
    allowed: int
    passed: tuple[int, ...] = ()


class EpochGate:
    """`allow` from the consumer's side, `admit` in the producers, `close` from anywhere."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self._closed = False
        self._changed = threading.Condition()

    def allow(self, epochs: int) -> None:
        """So many epochs in all may be begun now."""
        with self._changed:
            self.allowed = max(self.allowed, epochs)
            self._changed.notify_all()

    def close(self) -> None:
        """No other epoch is begun. A signal handler may call this inside `allow`: those that wait
        look up by themselves."""
        self._closed = True
        if self._changed.acquire(timeout=0):
            self._changed.notify_all()
            self._changed.release()

    def admit(self, position: int) -> bool:
        """Waits until the epoch at `position` may be begun; False once the gate is closed."""
        with self._changed:
            while position >= self.allowed and not self._closed:
                self._changed.wait(POLL_S)
        return not self._closed

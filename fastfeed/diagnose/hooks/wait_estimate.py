"""What of a step was waiting, where only its duration is seen and what it computes is known from
others."""

from __future__ import annotations

import statistics
from collections import deque

ENOUGH = 3  # computing times from which the waits of others can be told
RECENT = 9  # of them count: a machine that others use is now faster, now slower
# of the computing time: so much longer, at least, is waiting; what is far longer always is
LEAST, MOST = 0.05, 0.25
DEBT = 0.5  # of the computing time, at most, by which faster steps make up for slower ones


class WaitEstimator:
    """Tells waiting from computing by duration: what is longer than the computing of late, and than
    that ever varied, was a wait, less what steps before it were shorter, so that a computing time
    that varies adds up to no wait."""

    def __init__(self) -> None:
        self._computing: deque[float] = deque(maxlen=RECENT)
        self._debt = 0.0

    @property
    def known(self) -> bool:
        """Whether enough is known of the computing time."""
        return len(self._computing) >= ENOUGH

    @property
    def usual_s(self) -> float:
        """Seconds of computing of late; 0 while nothing is known."""
        return statistics.median(self._computing) if self._computing else 0.0

    def computed(self, seconds: float) -> None:
        """A step without its wait was seen to take so long."""
        self._computing.append(seconds)

    def wait_s(self, duration: float) -> float:
        """Of a step that took `duration`, the seconds that it waited."""
        if not self.known:
            return 0.0
        usual = self.usual_s
        varies = min(max(max(self._computing) - usual, LEAST * usual), MOST * usual)
        excess, debt = duration - usual, self._debt
        wait_s = max(0.0, excess - debt) if excess > varies else 0.0
        self._debt = min(max(0.0, debt - excess), DEBT * usual)
        return wait_s

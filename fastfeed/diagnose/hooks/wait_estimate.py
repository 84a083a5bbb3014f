"""An estimate of how long a step waited, if only its duration is observed and its computing time is
known from other steps."""

from __future__ import annotations

import statistics
from collections import deque

ENOUGH = 3  # computing times that are needed for an estimate
RECENT = 9  # computing times that count: on a shared machine the speed varies
# Of the computing time: what is longer by the first share may be waiting; by the second, always.
LEAST, MOST = 0.05, 0.25
DEBT = 0.5  # of the computing time, at most, by which faster steps compensate slower ones


class WaitEstimator:
    """Separates waiting from computing by duration: time beyond the recent computing time and its
    variation was a wait, less what earlier steps were shorter, so that a varying computing time
    does not add up to waits."""

    def __init__(self) -> None:
        self._computing: deque[float] = deque(maxlen=RECENT)
        self._debt = 0.0

    @property
    def known(self) -> bool:
        """True if enough is known of the computing time."""
        return len(self._computing) >= ENOUGH

    @property
    def usual_s(self) -> float:
        """Seconds of recent computing; 0 while unknown."""
        return statistics.median(self._computing) if self._computing else 0.0

    def computed(self, seconds: float) -> None:
        """Note the computing time of a step."""
        self._computing.append(seconds)

    def wait_s(self, duration: float) -> float:
        """Return the seconds that a step of `duration` waited."""
        if not self.known:
            return 0.0
        usual = self.usual_s
        varies = min(max(max(self._computing) - usual, LEAST * usual), MOST * usual)
        excess, debt = duration - usual, self._debt
        wait_s = max(0.0, excess - debt) if excess > varies else 0.0
        self._debt = min(max(0.0, debt - excess), DEBT * usual)
        return wait_s

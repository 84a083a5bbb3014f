"""Estimate of the waits of steps whose duration is observed, from the computing time of others."""

from __future__ import annotations

import statistics
from collections import deque

MIN_COMPUTING_TIMES = 3  # computing times that an estimate needs
MAX_COMPUTING_TIMES = 9  # latest computing times that count: the speed of a shared machine varies
# Time beyond the usual computing time, as a share of it: less is never a wait, more always is one.
# The variation of the computing times sets the limit between them.
MIN_WAIT, MAX_VARIATION = 0.05, 0.25
MAX_DEBT = 0.5  # share of the computing time by which faster steps may offset slower ones


class WaitEstimator:
    """Separates waiting from computing by duration.

    Time beyond the recent computing time and its variation was a wait, less the time by which steps
    before it were shorter. A varying computing time therefore adds up to no wait.
    """

    def __init__(self) -> None:
        self._computing: deque[float] = deque(maxlen=MAX_COMPUTING_TIMES)
        self._debt_s = 0.0

    @property
    def known(self) -> bool:
        """True if enough computing times are known."""
        return len(self._computing) >= MIN_COMPUTING_TIMES

    @property
    def usual_s(self) -> float:
        """Recent computing time in seconds; 0 while it is unknown."""
        return statistics.median(self._computing) if self._computing else 0.0

    def add(self, computing_s: float) -> None:
        """Add the computing time of a step, which is its duration without its wait."""
        self._computing.append(computing_s)

    def wait_s(self, duration_s: float) -> float:
        """Return the seconds that a step of `duration_s` waited; 0 while that is unknown."""
        if not self.known:
            return 0.0
        usual_s, debt_s = self.usual_s, self._debt_s
        variation_s = max(self._computing) - usual_s
        limit_s = min(max(variation_s, MIN_WAIT * usual_s), MAX_VARIATION * usual_s)
        excess_s = duration_s - usual_s
        self._debt_s = min(max(0.0, debt_s - excess_s), MAX_DEBT * usual_s)
        return max(0.0, excess_s - debt_s) if excess_s > limit_s else 0.0

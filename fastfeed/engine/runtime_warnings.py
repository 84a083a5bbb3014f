"""Warnings about a running feed, each given once: producers that slow the training step, batches
that the consumer keeps."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Sequence

from fastfeed.core.stats import StageRow, total
from fastfeed.errors import FeedWarning
from fastfeed.options import FeedOptions
from fastfeed.probes.lock import CONTENDED_S, LockProbe

LOG = logging.getLogger("fastfeed")
RUN_IN_S = 1.0  # start-up holds the lock, too
BUSY = 0.3  # of a core, by all producers: less of it keeps nobody waiting
NAPS = 100


class RuntimeWarnings:
    """Checks a feed from time to time."""

    def __init__(
        self, options: FeedOptions, rows: Callable[[], Sequence[StageRow]], *, shares: bool = False
    ) -> None:
        self._options = options
        self._rows = rows
        self.said: set[str] = set()  # warnings that were given, of all feeds of a runner
        self._probe: LockProbe | None = None
        if not (options.workers or shares):
            self._probe = LockProbe(times=NAPS)
        # the time, and the producers' CPU seconds, at the start of the probe
        self._begun: tuple[float, float] | None = None

    def share(self, said: set[str]) -> None:
        """Give each warning once for all feeds that share `said`."""
        self.said = said

    def look(self, now_s: float, *, copied: int, first_s: float) -> None:
        """Check the feed after a batch; `first_s`: when the first one was delivered."""
        if copied and "copied" not in self.said:
            self.said.add("copied")
            LOG.warning(
                "the consumer keeps so many batches that the workers have no memory left for "
                "others: from now on it gets copies, which cost a pass over the memory each "
                "(snapshot().consumed.copied counts them). Release batches that were used, or copy "
                "what you keep"
            )
        probe = self._probe
        if probe is None or now_s - first_s < RUN_IN_S or "lock" in self.said:
            return
        if self._begun is None:
            self._begun = now_s, total(self._rows()).cpu_s
            probe.thread.start()
        elif (late_s := probe.median_s) is not None:
            self._probe = None
            self._judge(late_s, now_s)

    def stop(self) -> None:
        """End the probe, from any thread."""
        if self._probe is not None:
            self._probe.stop()

    @property
    def threads(self) -> list[threading.Thread]:
        """The threads of this process that it runs."""
        return [self._probe.thread] if self._probe is not None and self._begun is not None else []

    def _judge(self, late_s: float, now_s: float) -> None:
        start_s, cpu_s = self._begun or (0.0, 0.0)
        busy = (total(self._rows()).cpu_s - cpu_s) / (now_s - start_s)
        if late_s > CONTENDED_S and busy > BUSY:
            self.said.add("lock")
            warnings.warn(
                "the producer threads hold the interpreter lock: a thread that asks for it waits "
                f"{late_s * 1e3:.1f} ms, and a training step wants it several times "
                f"({self._options.threads:d} producers, {busy:.0%} of a core). Make the batches in "
                f"worker processes: processes={self._options.threads!r}, threads=1",
                FeedWarning,
                stacklevel=2,
            )

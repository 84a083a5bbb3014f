"""What a step and its batch cost, who makes the batches, and the time from step to step that
follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fastfeed.model.workload import (
    LIMIT_CORES,
    LIMIT_DISK,
    LIMIT_LOCK,
    LIMIT_PRODUCERS,
    LIMIT_STEP,
    Producers,
)

NOBODY, LEAST_S = Producers(0), 1e-9


@dataclass(frozen=True)
class FeedCosts:
    """Mean seconds of a step and of its batch.

    A step: `step` with its input at hand, the `host`'s work beside it, a `pause`, a wait at the
    `start` of an epoch, and what the training thread spends on a batch: `converted` and `handover`.
    Of the step, `step_lock` is bytecode, and `step_cpu` are core seconds. A batch: `wait` off the
    cores, `disk`, `lock` (bytecode), `native`, and `queued`: ready to run, without a core. An
    `epoch` has that many steps. `slowed` and `held`: seconds that a step loses for each second that
    producers are on a core, and that they hold its interpreter lock. `late`: waits for the few slow
    batches of a tail. `unexplained`: waits that no limit explains. `reader`: seconds for which one
    producer at a time reads a batch from a single iterator.

    Without producers (0) the training thread makes the batches. `copying`, `reading` and `crowded`
    are shares of a batch's work: in copies, for what is read from disks, and lost to pools of too
    many threads. `foreign`: shares of the step and of the batch that other processes, on `others`
    cores, take.
    """

    step: float
    host: float = 0.0
    pause: float = 0.0
    start: float = 0.0
    converted: float = 0.0
    handover: float = 0.0
    step_lock: float = 0.0
    step_cpu: float = 0.0
    wait: float = 0.0
    disk: float = 0.0
    lock: float = 0.0
    native: float = 0.0
    queued: float = 0.0
    reader: float = 0.0
    epoch: float = float("inf")
    slowed: float = 0.0
    held: float = 0.0
    late: float = 0.0
    unexplained: float = 0.0
    producers: Producers = NOBODY
    cores: float = 1.0
    disks: float = float("inf")
    copying: float = 0.0
    reading: float = 0.0
    crowded: float = 0.0
    foreign: tuple[float, float] = (0.0, 0.0)
    others: float = 0.0

    @property
    def batch(self) -> float:
        """Seconds of a producer for a batch."""
        return self.wait + self.disk + self.lock + self.native + self.queued

    @property
    def other_work(self) -> float:
        """Share of a batch's work that is neither bytecode nor native code of its own."""
        return min(1.0, self.copying + self.reading)

    @property
    def demands(self) -> dict[str, float]:
        """Seconds of each resource for a step and its batch, by its capacity.

        No resource serves more than its time allows (the operational laws of Denning and Buzen,
        1978): the largest is the time from step to step, apart from what stops all of them.
        """
        cpu, count = self.lock + self.native, self.producers.count
        used = self.step + self.host + self.converted + self.handover
        if not count:
            return {LIMIT_STEP: used + self.batch}
        locks = self.producers.processes
        return {
            LIMIT_STEP: used + self.slowed * cpu + self.held * self.lock * (not locks),
            LIMIT_PRODUCERS: max(self.batch / count, self.reader),
            LIMIT_LOCK: self.lock / locks if locks else self.lock + self.step_lock,
            LIMIT_CORES: (cpu + self.step_cpu) / max(1.0, self.cores - self.others),
            LIMIT_DISK: self.disk / self.disks,
        }

    @property
    def limit(self) -> str:
        """The resource that limits the feed."""
        return max(self.demands, key=lambda name: self.demands[name])

    @property
    def period(self) -> float:
        """Seconds from step to step."""
        stops = self.pause + self.start + self.late + self.unexplained
        return max(LEAST_S, max(self.demands.values()) + stops)

    def batches(self, every: float = 1.0, **parts: float) -> FeedCosts:
        """Return it with `every` part of a batch, or some, times a factor. Less work on the cores
        waits less for one."""
        names = ("wait", "disk", "lock", "native")
        found = replace(self, **{n: getattr(self, n) * parts.get(n, every) for n in names})
        work, left = self.lock + self.native, found.lock + found.native
        found = replace(found, queued=self.queued * (left / work if work else every))
        return replace(found, reader=self.reader * found.batch / max(LEAST_S, self.batch))


Change = Callable[[FeedCosts], FeedCosts]


def lost(feed: FeedCosts, change: Change) -> float:
    """Return the share (0 to 1) of the time that what a change removes takes."""
    return max(0.0, 1 - change(feed).period / feed.period)

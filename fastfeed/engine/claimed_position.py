"""Position of a rank that shares out the batches of its job with others as it goes."""

from __future__ import annotations

import threading
from typing import Any

from fastfeed.core.position import Position
from fastfeed.core.shard_address import ShardAddress
from fastfeed.engine.epoch_schedule import ResumePoint
from fastfeed.options import FeedOptions
from fastfeed.ranks.job_claims import JobClaims
from fastfeed.source import IndexedSource


class ClaimedPosition(Position):
    """Reports consumed batches to the server, which tells every rank of the job what is left.

    A batch is consumed when the loop comes back for the next one. Raise what JobClaims raises.
    """

    def __init__(
        self, source: IndexedSource, options: FeedOptions, *, seed: int, resume: ResumePoint
    ) -> None:
        super().__init__(resume.epoch, counts=resume.counts)
        run = 1 if resume.per_run is None and resume.each else resume.per_run
        job = {**source.job(options), "seed": seed, "run": run or 0}
        address = ShardAddress.parse(str(options.shard))
        self._claims = JobClaims(address, job, state=resume.claims)
        self._consumed: list[int] = []  # and not reported
        self._arrived = 0  # batches
        # a sink may acknowledge in one thread and take in another; `close` comes from any
        self._settling = threading.RLock()
        source.claim_from(self._claims.next)

    @property
    def waits_for_others(self) -> bool:
        """True while only other ranks of the job hold batches: the server says so, and no producer
        of this rank works on one."""
        return self._claims.waits and self._arrived >= self._claims.claimed

    def arrived(self, stream: int, item: int, *, rows: int) -> None:
        """Note a batch. Report one without records, which no delivery follows: two ranks that hold
        such batches would wait for each other."""
        super().arrived(stream, item, rows=rows)
        self._arrived += 1
        if not rows:
            self.commit()

    def delivered(self, rows: int, batches: int = 1) -> None:
        """Note that `rows` records were delivered, in so many batches."""
        with self._settling:
            super().delivered(rows, batches)

    def commit(self) -> None:
        """Report all that was delivered."""
        self._claims.report(self._settled())

    def close(self, *, failed: bool = False) -> None:
        """Leave the job, and report all that was delivered. If the loop has `failed`, another rank
        repeats the batch of its step."""
        if not failed:
            self.commit()
        self._claims.close()

    def state(self) -> dict[str, Any]:
        """Return the position of the whole job: ranks that are in a step repeat it."""
        claims = self._claims.state(self._settled())
        with self._settling:
            position = super().state()
        return {**position, "epoch": claims["epoch"], "streams": {}, "claims": claims}

    def _settled(self) -> list[int]:
        with self._settling:
            self._settle()
            found, self._consumed = self._consumed, []
        return found

    def _mark_delivered(self, stream: int, item: int) -> None:
        super()._mark_delivered(stream, item)
        self._consumed.append(item)

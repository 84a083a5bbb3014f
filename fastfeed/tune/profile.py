"""Cost of the batches of a source, and the producers that suit it."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from fastfeed.core.machine import cores_of_rank
from fastfeed.core.stats import Decision, StageRow
from fastfeed.core.unix import ON_LINUX
from fastfeed.engine.feed import Feed
from fastfeed.engine.runtime_warnings import BUSY
from fastfeed.errors import FeedTimeout, OptionError
from fastfeed.model.workload import (
    BATCH_PARTS,
    STEP_PARTS,
    Producers,
    Workload,
    demands,
    rows_of,
)
from fastfeed.options import Auto, FeedOptions, options_from
from fastfeed.probes.lock import LockProbe
from fastfeed.source import CallableSource, Source, source_from
from fastfeed.tune.limits import fitting, most_in_memory

PROFILE_LIMIT_S = 2.0
ENOUGH_BATCHES, ENOUGH_S = 30, 0.5  # from which a batch is known well enough
MOST_PROFILED = 16  # producers, where nothing says how many a training needs
BETTER = 1.1  # rate of processes, as a factor of that of threads, that is worth their copies


@dataclass(frozen=True)
class FeedProfile:
    """Seconds that one producer takes for a batch: by stage, on a core, and with the interpreter
    lock. `nbytes`: of a batch; 0 if unknown."""

    batches: int
    stages: dict[str, float]
    cpu_s: float
    lock_s: float
    cores: int
    nbytes: int = 0

    @property
    def batch_s(self) -> float:
        """Seconds that one producer takes for a batch."""
        return sum(self.stages.values())

    def rate(self, producers: Producers) -> float:
        """Return the steps/s that these producers allow: the bound of the resource that has most to
        do (operational laws of Denning and Buzen, 1978)."""
        batch = {"wait": max(0.0, self.batch_s - self.cpu_s), "lock": self.lock_s}
        batch["native"] = max(0.0, self.cpu_s - self.lock_s)
        workload = Workload(
            rows_of(BATCH_PARTS, **batch),
            rows_of(STEP_PARTS),
            cores=self.cores,
        )
        return 1 / max(1e-9, *demands(workload, producers).values())

    def best(self, *, processes: bool) -> Producers:
        """Return the fewest threads, or worker processes, that are as fast as any up to 16."""
        kinds = [
            Producers(1, n) if processes else Producers(n) for n in range(1, MOST_PROFILED + 1)
        ]
        most = max(map(self.rate, kinds))
        return next(one for one in kinds if self.rate(one) > most * 0.98)

    @property
    def choice(self) -> Producers:
        """The producers that suit the source: threads, unless processes are a tenth faster, or the
        threads fill the cores. A step in the same process would then wait for their lock, and its
        native pools spin against theirs."""
        threads, processes = self.best(processes=False), self.best(processes=True)
        gains = self.rate(processes) > BETTER * self.rate(threads)
        # what is still faster with the most threads waits, and no step needs so many
        fills = self.rate(threads) * self.cpu_s > BUSY and threads.count < MOST_PROFILED
        return processes if ON_LINUX and (gains or (fills and lock_is_on())) else threads

    @property
    def why(self) -> str:
        """The reason of the choice, in words."""
        of = self.batch_s or 1.0
        threads, processes = self.best(processes=False), self.best(processes=True)
        return (
            f"a batch takes {self.batch_s * 1e3:.3g} ms, {self.cpu_s / of:.0%} of it "
            f"on a core and {self.lock_s / of:.0%} with the interpreter lock; {threads} make "
            f"{self.rate(threads):.3g} batches/s at most, {processes} {self.rate(processes):.3g}"
        )

    def __str__(self) -> str:
        lines = [
            f"{self.choice}: {self.why}",
            *(f"  {name:10} {s * 1e3:9.3f} ms" for name, s in self.stages.items()),
        ]
        counts = [2**n for n in range(MOST_PROFILED.bit_length())]
        for made in (*(Producers(n) for n in counts), *(Producers(1, n) for n in counts)):
            lines.append(f"  {made!s:22} {self.rate(made):9.1f} batches/s at most")
        return "\n".join(lines)


def profile(source: Any, *, seconds: float = PROFILE_LIMIT_S, **options: Any) -> FeedProfile:
    """Measure for `seconds` at most what the batches of a source cost with the options of a
    FeedRunner, in one thread, and return it.

    The first batches are made and thrown away. Raise OptionError for options and sources that
    cannot work, and for an iterator, whose batches would be lost; SpecError, ProducerError and
    FeedTimeout as a FeedRunner does.
    """
    return profiled(source, options_from(options), seconds=seconds)


def profiled(source: Any, options: FeedOptions, *, seconds: float = PROFILE_LIMIT_S) -> FeedProfile:
    """Return what `profile` returns, of options."""
    if not source_from(source, options).repeatable:
        raise OptionError(
            "the profile of an iterator, which can be read only once, would lose its batches: pass "
            "the function that makes it, or an object with len() and [index]"
        )
    limit_s = min(seconds, options.stall_timeout_s)
    alone = replace(options, threads=1, processes=0, remote=None, epochs=1, metrics=None)
    if options.stealing:  # what is thrown away is no part of the job
        alone = replace(alone, shard=None)
    feed = Feed(source, replace(alone, stall_timeout_s=limit_s), seed=options.seed or 0)
    feed.warnings.share({"lock"})  # the profile says it
    probe = LockProbe()
    probe.thread.start()
    begin_s, begin_cpu_s, taken = time.perf_counter(), time.process_time(), 0
    try:
        feed.start()
        while (took_s := time.perf_counter() - begin_s) < seconds:
            if (taken >= ENOUGH_BATCHES and took_s >= ENOUGH_S) or feed.take() is None:
                break
            taken += 1
    except FeedTimeout:
        if limit_s < seconds:
            raise
    finally:
        seen = feed.snapshot()
        made = seen.produced
        probe.stop()
        feed.stop()  # the next feed may not run beside it
        probe.thread.join()
    if not made.batches:  # the first one takes longer
        took_s = time.perf_counter() - begin_s
        made = StageRow(read_s=took_s, cpu_s=time.process_time() - begin_cpu_s)
    return _profile_of(made, probe.late_share)


def _profile_of(made: StageRow, held: float) -> FeedProfile:
    batches = max(1, made.batches)
    cpu_s = min(made.cpu_s, made.busy_s) / batches
    return FeedProfile(
        batches=made.batches,
        stages={name: seconds / batches for name, seconds in made.stages.items()},
        cpu_s=cpu_s,
        lock_s=min(cpu_s, held * made.busy_s / batches) if lock_is_on() else 0.0,
        cores=cores_of_rank(),
        nbytes=made.nbytes // batches,
    )


def chosen(given: Any, source: Source, *, options: FeedOptions) -> tuple[FeedOptions, Decision]:
    """Return options without "auto" for what cannot change while a feed runs, the kind of producers
    and the streams of a callable, and the decision. Raise what `profile` raises."""
    knobs = options.tuned
    knob, count, nbytes = knobs[0], 1, 0
    each = 1 if "threads" in knobs else options.threads  # threads of a worker process
    why = "an iterator cannot be read twice to see what a batch costs"
    if source.repeatable:
        found = profiled(given, options)
        best = found.choice if len(knobs) > 1 else found.best(processes=knob != "threads")
        if best.processes and "processes" in knobs:
            made = _can_be_made(source, options, nbytes=found.nbytes)
            knob = "processes" if made else knob
        count, nbytes, why = best.count, found.nbytes, found.why
    number: int
    if source.ordered:
        number = Auto(1)
    else:
        own = isinstance(source, CallableSource) and source.takes_worker
        number = math.ceil(count / each) if knob == "processes" else count
        number = min(number, fitting(options, nbytes, knob=knob)) if own else 1
        why += ". It stays: " + ("each producer has its stream" if own else "there is one stream")
    decision = Decision(0.0, knob, 1, int(number), True, why)
    if knob == "producers":
        return options.with_workers(options.processes, number), decision
    if knob == "threads":
        return replace(options, threads=number, processes=0), decision
    return replace(options, threads=each, processes=number), decision


def _can_be_made(source: Source, options: FeedOptions, *, nbytes: int) -> bool:
    """Return True if memory= has room for a worker process, which can be given the source and its
    functions."""
    if not most_in_memory(options, nbytes, knob="processes"):
        return False
    # a fifth of the time that `import fastfeed` would take
    from fastfeed.producers.process.ship import pack

    given = source.function if isinstance(source, CallableSource) else source.reader
    with contextlib.suppress(OptionError):
        pack((given, options.shipped()), what="the source").close()
        return True
    return False


def lock_is_on() -> bool:
    """Return False in an interpreter whose threads need no lock."""
    with contextlib.suppress(AttributeError):
        return bool(sys._is_gil_enabled())  # type: ignore[attr-defined,unused-ignore]
    return True

"""Combine the observations of hooks and samples, and have them judged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.evidence import PRODUCER, Evidence
from fastfeed.diagnose.hooks.context import Context
from fastfeed.diagnose.hooks.experiments import BURSTS
from fastfeed.diagnose.judge.signals import CALLED, GIL_LATE_S
from fastfeed.diagnose.run.hidden_thread import HiddenThread
from fastfeed.diagnose.run.launch import (
    BLOCKED,
    CRASH,
    DEAD,
    STEPLESS,
    ReportRequest,
)
from fastfeed.diagnose.sample.iterations import SAMPLED, IterationTracker
from fastfeed.diagnose.sample.sampler import (
    ASKS,
    FITS,
    STEPS,
    Sampler,
)
from fastfeed.steps.timeline import Loop, Step, Timeline

SEEK_S = 1.0
GONE_S = 5.0  # without an iteration, after which a loop may be over
DEAD_S = 5.0  # without a step, after which a feed that was dead still is
KNOWN = ("exact", "modelled")  # waits
CALLS = ("session", "call", "keras")  # loops whose steps are calls, with time between them


class DiagnosisObserver:
    """Samples while a script runs; calls `say` with every diagnosis, and the files that were
    written."""

    def __init__(
        self,
        say: Callable[[Diagnosis, list[Path]], None],
        *,
        json: Path | None = None,
        html: Path | None = None,
        trace: Path | None = None,
    ) -> None:
        self._say = say
        self._files = {"json": json, "html": html, "trace": trace}
        self._sampler = Sampler()
        self._context: Context | None = None
        self._turns: IterationTracker | None = None
        self._final = False
        self._died: tuple[str, ...] = ()

    def watch(self, context: Context) -> None:
        """Begin, before the script starts."""
        self._context = context
        self._sampler.ours, self._sampler.deaths = context.ours, context.deaths
        context.contended = self._contended
        self._sampler.start()
        self._sampler.begin(asking=False)
        self._search = HiddenThread(context, self._seek, name="the search for a loop")
        self._search.start()

    def measure(self, start_s: float) -> None:
        """Begin to measure: warm-up is over."""
        loop = self._context.main if self._context is not None else None
        if loop is not None:
            self._sampler.loop = loop.thread
            if loop.kind != SAMPLED:
                self._stop_turns()
        self._sampler.begin()

    def report(self, seen: ReportRequest) -> bool:
        """Judge, write and report; return True if there was a report."""
        if self._final or (
            seen.why == STEPLESS and seen.loop is None and self._sampler.repeated() is None
        ):
            return False  # there will be another one, at the latest when the script ends
        # imported late, because they import numpy: the script may first set how many threads its
        # libraries use
        from fastfeed.diagnose.judge.judge import judge
        from fastfeed.diagnose.report import html, json, trace

        writers = {"json": json.write, "html": html.write, "trace": trace.write}
        evidence = self._evidence(seen)
        self._final = seen.why != BLOCKED
        if self._final:
            self._stop_turns()
            self._sampler.stop()
        if seen.why in (DEAD, BLOCKED, CRASH):
            self._died = seen.died
        died = self._died if seen.why in (DEAD, CRASH) or seen.waiting_now_s >= DEAD_S else ()
        diagnosis = judge(evidence, script=seen.script, died=died)
        files = {kind: _ranked(path, seen.rank) for kind, path in self._files.items()}
        for kind, path in files.items():
            if path is not None:
                writers[kind](diagnosis, path)
        if not seen.rank:
            self._say(diagnosis, [path for path in files.values() if path is not None])
        return True

    def _contended(self) -> int:
        late_s, _ = self._sampler.lock()
        if late_s is not None and late_s > GIL_LATE_S:
            return BURSTS
        return int(self._sampler.full)

    def _seek(self) -> None:
        """Search for a loop in the samples, and for its iterations, while no hook has found one."""
        while self._search.pause(SEEK_S) and self._context is not None and not self._final:
            loops = list(self._context.timeline.loops.values())
            if any(len(loop.steps) > 1 and loop.kind != SAMPLED for loop in loops):
                return
            if self._turns is not None:
                self._turns.wake()
            if self._turns is not None and (self._turns.given_up or self._turns.goes_on(GONE_S)):
                continue
            found = self._sampler.turning(self._context.timeline)
            if found is not None and not (self._turns is not None and found.same(self._turns)):
                self._stop_turns()  # of a loop that is over: files were read, and now it trains
                self._turns = found
                found.start()

    def _stop_turns(self) -> None:
        if self._turns is not None:
            self._turns.stop()

    def _evidence(self, seen: ReportRequest) -> Evidence:
        sampler = self._sampler
        loop = seen.loop or self._repeated()
        late_s, late_p90_s = sampler.lock()
        began_s = loop.steps[0].begin_s if loop is not None and loop.steps else 0.0
        how = {"keras": FITS, **dict.fromkeys(CALLED, STEPS)}.get(
            loop.kind if loop is not None else "", ASKS
        )
        parts = (
            sampler.parts(loop.where or None, since_s=began_s, how=how) if loop is not None else ()
        )
        tasks = sampler.tasks(
            parts, steps=list(loop.steps) if loop is not None and loop.waits in KNOWN else ()
        )
        first_s = (
            loop.steps[0].begin_s + loop.steps[0].wait_s
            if loop is not None and loop.steps
            else None
        )
        return Evidence(
            loop=_told(loop, trims=seen.timeline.trims),
            marks=tuple(sorted(seen.timeline.marks, key=lambda mark: mark.start_s)),
            tasks=tasks,
            machine=sampler.machine(),
            start_s=seen.start_s,
            end_s=seen.end_s,
            parts=parts,
            gil_late_s=late_s,
            gil_late_p90_s=late_p90_s,
            pools=dict(sampler.pools()),
            missing=tuple(dict.fromkeys((*seen.missing, *sampler.missing, *self._untold()))),
            overhead_s=sampler.overhead_s,
            first_batch_s=None if first_s is None else first_s - seen.begin_s,
            warmup_s=seen.warmup_s,
            beside=beside(loop, seen.timeline, start_s=seen.start_s),
            threads=max(1, sum(task.role == PRODUCER for task in tasks)),
            waiting_now_s=seen.waiting_now_s,
        )

    def _untold(self) -> list[str]:
        return (
            [f"each turn of the loop: {self._turns.given_up}"]
            if self._turns and self._turns.given_up
            else []
        )

    def _repeated(self) -> Loop | None:
        """Return the loop of a script that no hook knows."""
        loop = self._sampler.repeated()
        return (
            None
            if loop is None
            else replace(loop, thread=loop.thread or threading.main_thread().ident or 0)
        )


def _told(loop: Loop | None, *, trims: bool) -> Loop | None:
    """Return the loop with what its feed reports of itself now, and what is known of the
    process."""
    if loop is None:
        return None
    note = "; ".join(filter(None, (loop.note, loop.status() if loop.status is not None else "")))
    return replace(loop, note=note, status=None, trims=trims)


def _ranked(path: Path | None, rank: int | None) -> Path | None:
    """Return a file name of this rank's own."""
    if path is None or rank is None:
        return path
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def beside(loop: Loop | None, timeline: Timeline, *, start_s: float) -> tuple[Step, ...]:
    """Return the calls that a loop makes beside its steps: of the generator of a GAN, of the run
    that fetches a batch for the run that trains."""
    if loop is None or loop.kind not in CALLS:
        return ()
    others = [one for one in list(timeline.loops.values()) if one is not loop and one.kind in CALLS]
    steps = [step for one in others if one.thread == loop.thread for step in list(one.steps)]
    return tuple(sorted(step for step in steps if step.begin_s >= start_s))

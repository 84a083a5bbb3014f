"""Puts what hooks and samples have seen together, and has it judged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.evidence import PRODUCER, Evidence
from fastfeed.diagnose.hooks.context import Context
from fastfeed.diagnose.judge import judge
from fastfeed.diagnose.launch import DEAD, STEPLESS, Seen
from fastfeed.diagnose.measure.sampler import Sampler
from fastfeed.diagnose.report import html, json, trace
from fastfeed.timeline import Loop


class Watcher:
    """Samples while a script runs; `say` is given every diagnosis that is made, and the files that were written."""

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
        self._began_s = 0.0

    def watch(self, context: Context) -> None:
        """Before the script starts."""
        self._context = context
        self._sampler.start()
        self._sampler.begin()

    def measure(self, start_s: float) -> None:
        """Warm-up is over."""
        loop = self._context.timeline.main() if self._context is not None else None
        if loop is not None:
            self._sampler.loop = loop.thread
        self._sampler.begin()

    def report(self, seen: Seen) -> None:
        """Judges, writes and says."""
        evidence = self._evidence(seen)
        if seen.why != STEPLESS:
            self._sampler.stop()
        died = seen.died if seen.why == DEAD or (seen.waiting_now_s and seen.died) else ()
        diagnosis = judge(evidence, script=seen.script, died=died)
        written = [path for path in (_ranked(path, seen.rank) for path in self._files.values()) if path is not None]
        for write, path in zip((json.write, html.write, trace.write), self._files.values(), strict=True):
            if path is not None:
                write(diagnosis, _ranked(path, seen.rank) or path)
        if not seen.rank:
            self._say(diagnosis, written)

    def _evidence(self, seen: Seen) -> Evidence:
        sampler = self._sampler
        loop = seen.loop or self._repeated()
        tasks = sampler.tasks()
        late_s, late_p90_s = sampler.lock()
        parts = sampler.parts(loop.thread, loop.where or None) if loop is not None else ()
        first_s = loop.steps[0].begin_s + loop.steps[0].wait_s if loop is not None and loop.steps else None
        return Evidence(
            loop=loop,
            marks=tuple(sorted(seen.timeline.marks, key=lambda mark: mark.start_s)),
            tasks=tasks,
            machine=sampler.machine(),
            start_s=seen.start_s,
            end_s=seen.end_s,
            parts=parts,
            gil_late_s=late_s,
            gil_late_p90_s=late_p90_s,
            pools=dict(sampler.pools()),
            missing=(*seen.missing, *sampler.missing),
            overhead_s=sampler.overhead_s,
            first_batch_s=None if first_s is None else first_s - seen.begin_s,
            warmup_s=seen.warmup_s,
            threads=max(1, sum(task.role == PRODUCER for task in tasks)),
            waiting_now_s=seen.waiting_now_s,
        )

    def _repeated(self) -> Loop | None:
        """The loop of a script that no hook knows."""
        loop = self._sampler.repeated()
        return None if loop is None else replace(loop, thread=loop.thread or threading.main_thread().ident or 0)


def _ranked(path: Path | None, rank: int | None) -> Path | None:
    """Each of several ranks writes files of its own."""
    if path is None or rank is None:
        return path
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")

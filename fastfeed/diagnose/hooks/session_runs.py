"""Runs of sessions: what each does with its input, how long it waits for it, and its loop."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastfeed.diagnose.hooks.graph_waits import MIN_WAIT_S, GraphWaits, trace_arguments
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.patches import MIN_MARK_S
from fastfeed.diagnose.hooks.session_burst import QueueBurst, QueuePuts
from fastfeed.diagnose.hooks.session_plan import (
    RunPlan,
    converts,
    fed_leaves,
    feed_key,
    fetch_key,
    plan_of,
    queue_facts,
    queue_of,
)
from fastfeed.steps.recorder import site_of
from fastfeed.steps.timeline import Loop, Mark, Step


class SessionInfo:
    """Everything that is known of one session. Its dictionaries are filled by atomic calls: the
    first of several threads sets a value."""

    def __init__(self, number: int, log: HookLog) -> None:
        self._number = number
        self._log = log
        self._plans: dict[Any, RunPlan] = {}
        self._converts: dict[int, bool] = {}  # by the id of a loop
        self._waits: dict[int, GraphWaits] = {}  # by the id of a loop
        self._puts: dict[str, QueuePuts] = {}  # by the name of a queue
        self._bursts: dict[int, QueueBurst] = {}  # by the id of a loop
        self.last_put_s: dict[int, float] = {}  # by thread: when its last put ended

    def run(self, graph: Any, fetches: Any, *, feeds: Mapping[Any, Any] | None) -> SessionRun:
        """Return a run, whose loop is that of the runs of this thread with the same fetches and
        feeds. It is held as long as a burst needs it."""
        key, thread = (fetch_key(fetches), feed_key(feeds)), threading.get_ident()
        plan = self._plans.get(key) or plan_of(graph, fetches, feeds=feeds or ())
        self._plans[key] = plan
        loop = None
        if not plan.feeds:
            loop = self._log.find_loop(
                ("session", self._number, key, thread),
                lambda: _new_loop(plan, feeds, thread=thread),
            )
        puts = [self._puts.setdefault(name, QueuePuts()) for name in plan.puts]
        run = SessionRun(plan, loop, puts)
        if loop is not None and feeds:
            # of the first run: checks of arrays that need no conversion are a part of the step
            known = self._converts.get(id(loop))
            run.converts = converts(graph, feeds) if known is None else known
            self._converts[id(loop)] = run.converts
        if loop is not None and plan.waits:
            run.waits = self._waits.setdefault(id(loop), GraphWaits(plan.waits))
            run.burst = self._burst(loop, plan)
            run.free = run.burst is not None and run.burst.before_step()
        return run

    def _burst(self, loop: Loop, plan: RunPlan) -> QueueBurst | None:
        """Return the bursts of a loop, if it reads a queue that other threads fill."""
        puts = self._puts.get(queue_of(plan.take).name) if plan.take is not None else None
        if puts is None or threading.get_ident() in self.last_put_s:
            return None
        return self._bursts.setdefault(id(loop), QueueBurst(self._log, loop, puts=puts))

    def end_put(self) -> None:
        """Record the end of a put of this thread, which a burst may hold here."""
        for burst in list(self._bursts.values()):
            burst.after_put()
        self.last_put_s[threading.get_ident()] = time.perf_counter()

    def release(self) -> None:
        """End every burst."""
        for burst in list(self._bursts.values()):
            burst.release()


@dataclass(eq=False)
class SessionRun:
    """A run under way. `loop` is None for a put, or if there are too many loops."""

    plan: RunPlan
    loop: Loop | None
    puts: list[QueuePuts]
    converts: bool = False
    waits: GraphWaits | None = None
    burst: QueueBurst | None = None
    free: bool = False
    begin_s: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)  # additional arguments, for a trace

    def step(self, loop: Loop, end_s: float, *, converted_s: float) -> tuple[Step, str]:
        """Return the run as a step, and `Loop.waits`; a step that waited is not free."""
        step = Step(self.begin_s, end_s, 0.0, converted_s=converted_s)
        if self.waits is None:
            return step, loop.waits
        duration_s = end_s - self.begin_s - converted_s
        wait_s = self.waits.wait_s(self.options.get("run_metadata"), duration_s)
        free = self.free and wait_s <= MIN_WAIT_S
        known = self.waits.estimator.known
        return step._replace(wait_s=wait_s, free=free), "modelled" if known else "hidden"


class _ThreadState(threading.local):
    """When the last feed of a thread was converted, and its last run ended."""

    converted_s = 0.0
    ended_s = 0.0


class SessionTracker:
    """All sessions of the process."""

    def __init__(self, log: HookLog) -> None:
        self._log = log
        self._thread = _ThreadState()
        self._numbers = itertools.count(1)
        self._infos: weakref.WeakKeyDictionary[Any, SessionInfo] = weakref.WeakKeyDictionary()

    def begin(
        self,
        session: Any,
        fetches: Any,
        *,
        feeds: Mapping[Any, Any] | None,
        may_trace: bool = False,
    ) -> SessionRun | None:
        """Begin a run, with `options` if it may be traced; return None if it cannot be followed."""
        try:
            info = self._info(session)
            run = info.run(session.graph, fetches, feeds=feeds)
            if may_trace and run.waits is not None and run.waits.is_due(time.perf_counter()):
                run.options = trace_arguments()
            run.begin_s = now_s = time.perf_counter()
            for puts in run.puts:
                puts.begin(now_s)
            last_s = info.last_put_s.get(threading.get_ident()) if run.plan.feeds else None
            if last_s is not None:
                self._log.add_mark(Mark("batch", last_s, now_s, threading.current_thread().name))
            if run.plan.waits:
                self._log.begin_wait(now_s)
        except Exception as error:
            self._log.failed("a session's runs", error)
            return None
        return run

    def end_conversion(self, *args: Any, **options: Any) -> None:
        """The feed of this thread's run is converted."""
        self._thread.converted_s = time.perf_counter()

    def end(self, session: Any, run: SessionRun | None, *, done: bool) -> None:
        """End a run, `done` or with an error."""
        if run is None:
            return
        self._thread.ended_s = end_s = time.perf_counter()
        try:
            self._log.end_wait()
            for puts in run.puts:
                puts.end(end_s, done=done)
            if run.burst is not None:
                run.burst.after_step(done=done)
            if run.loop is not None and done:
                converted_s = max(0.0, self._thread.converted_s - run.begin_s) * run.converts
                step, waits = run.step(run.loop, end_s, converted_s=converted_s)
                self._log.add_step(run.loop, step, waits=waits)
            if run.puts:
                self._info(session).end_put()
        except Exception as error:
            self._log.failed("a session's runs", error)

    def end_hooks(self) -> None:
        """Record the time of the hooks of a monitored session after its run."""
        end_s = time.perf_counter()
        if end_s - self._thread.ended_s > MIN_MARK_S:
            self._log.add_mark(Mark("callback", self._thread.ended_s, end_s, "hooks"))

    def release(self, session: Any) -> None:
        """End the bursts of a session."""
        info = self._infos.get(session)
        if info is not None:
            info.release()

    def release_all(self) -> None:
        """End the bursts of all sessions."""
        for session in list(self._infos):
            self.release(session)

    def _info(self, session: Any) -> SessionInfo:
        known = self._infos.get(session)
        # atomic: the first of several threads sets it
        return known or self._infos.setdefault(session, SessionInfo(next(self._numbers), self._log))


def _new_loop(plan: RunPlan, feeds: Mapping[Any, Any] | None, *, thread: int) -> Loop:
    """Return the loop of a plan, with a description of its input."""
    note, buffer = "", None if plan.iterates else 0
    if plan.take is not None:
        note, buffer = queue_facts(plan.take)
    elif plan.iterates:
        note = "a tf.data iterator in the graph"
    return Loop(
        f"Session.run({plan.name})",
        "session",
        thread,
        waits="hidden" if plan.waits else "none",
        where=site_of(sys._getframe(1)),
        buffer=buffer,
        leaves=fed_leaves(feeds) if feeds else (),
        trains=plan.updates or bool(plan.waits),
        note=note,
    )

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

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.patches import MIN_MARK_S
from fastfeed.diagnose.hooks.session_burst import QueueBurst, QueuePuts
from fastfeed.diagnose.hooks.session_plan import (
    RunPlan,
    cast_note,
    fed_leaves,
    feed_key,
    fetch_key,
    is_monitored,
    plan_of,
    queue_facts,
    queue_of,
)
from fastfeed.diagnose.hooks.session_trace import MIN_WAIT_S, GraphWaits, trace_arguments
from fastfeed.steps.recorder import site_of
from fastfeed.steps.timeline import Loop, Mark, Step


class SessionInfo:
    """Everything that is known of one session."""

    def __init__(self, number: int, log: HookLog) -> None:
        self.number = number
        self._log = log
        self._plans: dict[Any, RunPlan] = {}
        self._graph_waits: dict[int, GraphWaits] = {}  # by the id of a loop
        self._puts: dict[str, QueuePuts] = {}  # by the name of a queue
        self._bursts: dict[int, QueueBurst] = {}  # by the id of a loop
        self._last_put_s: dict[int, float] = {}  # by thread: when its last put ended

    def plan(self, key: Any, graph: Any, *, fetches: Any, feeds: Any) -> RunPlan:
        """Return the plan of a run, whose fetches and feeds have this key."""
        if key not in self._plans:
            self._plans[key] = plan_of(graph, fetches, feeds=feeds or ())
        return self._plans[key]

    def graph_waits(self, loop: Loop, plan: RunPlan) -> GraphWaits:
        """Return the waits inside the runs of a loop."""
        return self._graph_waits.setdefault(id(loop), GraphWaits(plan.waits))

    def puts(self, plan: RunPlan) -> list[QueuePuts]:
        """Return the puts into the queues that a run puts into."""
        # atomic: the first of several threads sets it
        return [self._puts.setdefault(name, QueuePuts()) for name in plan.puts]

    def burst(self, loop: Loop | None, plan: RunPlan) -> QueueBurst | None:
        """Return the bursts of a loop, if it reads a queue that other threads fill."""
        puts = self._puts.get(queue_of(plan.take).name) if plan.take is not None else None
        if loop is None or puts is None or self.last_put_s() is not None:
            return None
        if id(loop) not in self._bursts:
            self._bursts[id(loop)] = QueueBurst(self._log, loop, puts=puts)
        return self._bursts[id(loop)]

    def last_put_s(self) -> float | None:
        """Return when the last put of this thread ended."""
        return self._last_put_s.get(threading.get_ident())

    def end_put(self) -> None:
        """Record the end of a put of this thread, which a burst may hold here."""
        for burst in list(self._bursts.values()):
            burst.after_put()
        self._last_put_s[threading.get_ident()] = time.perf_counter()

    def release(self) -> None:
        """End every burst."""
        for burst in list(self._bursts.values()):
            burst.release()


@dataclass(eq=False)
class SessionRun:
    """A run under way. `loop` is None for a put, or if there are too many loops."""

    info: SessionInfo
    plan: RunPlan
    loop: Loop | None
    monitored: bool = False
    feeds: bool = False  # it has a feed
    begin_s: float = 0.0
    converted_s: float = 0.0
    burst: QueueBurst | None = None
    free: bool = False
    options: dict[str, Any] = field(default_factory=dict)  # additional arguments, for a trace

    def hold(self) -> None:
        """Hold the run as long as a burst needs it."""
        self.burst = self.info.burst(self.loop, self.plan)
        self.free = self.burst is not None and self.burst.before_step()

    def begin(self, now_s: float) -> None:
        """Begin the run, with its puts."""
        self.begin_s = now_s
        for puts in self.info.puts(self.plan):
            puts.begin(now_s)

    def trace(self) -> None:
        """Let the run be traced, if a trace is due."""
        if self.loop is None or not self.plan.waits:
            return
        if self.info.graph_waits(self.loop, self.plan).is_due(time.perf_counter()):
            self.options = trace_arguments()

    def end(self, end_s: float, *, done: bool) -> None:
        """End the run and its puts."""
        for puts in self.info.puts(self.plan):
            puts.end(end_s, done=done)
        if self.burst is not None:
            self.burst.after_step(done=done)

    def step(self, loop: Loop, end_s: float) -> tuple[Step, str]:
        """Return the run as a step, and `Loop.waits`; a step that waited is not free."""
        step = Step(self.begin_s, end_s, 0.0, converted_s=self.converted_s)
        if not self.plan.waits:
            return step, loop.waits
        waits = self.info.graph_waits(loop, self.plan)
        wait_s = waits.wait_s(
            self.options.get("run_metadata"), end_s - self.begin_s - self.converted_s
        )
        step = step._replace(wait_s=wait_s, free=self.free and wait_s <= MIN_WAIT_S)
        return step, "modelled" if waits.estimator.known else "hidden"


class _ThreadState(threading.local):
    """Begin and end of the last run of a monitored session in a thread, and when a feed was
    converted last."""

    monitored_s: tuple[float, float] | None = None
    converted_s = 0.0


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
            key = (fetch_key(fetches), feed_key(feeds))
            plan = info.plan(key, session.graph, fetches=fetches, feeds=feeds)
            loop = self._loop(info, key, plan=plan, feeds=feeds)
            run = SessionRun(info, plan, loop, is_monitored(fetches), bool(feeds))
            run.hold()
            if may_trace:
                run.trace()
            now_s = time.perf_counter()
            run.begin(now_s)
            last_s = info.last_put_s() if plan.feeds else None
            if last_s is not None:
                self._log.add_mark(Mark("batch", last_s, now_s, threading.current_thread().name))
            if plan.waits:
                self._log.begin_wait(now_s)
        except Exception as error:
            self._log.failed("a session's runs", error)
            return None
        return run

    def end_conversion(self, *args: Any, **options: Any) -> None:
        """The feed of this thread's run is converted."""
        self._thread.converted_s = time.perf_counter()

    def end(self, run: SessionRun | None, *, done: bool) -> None:
        """End a run, `done` or with an error."""
        if run is None:
            return
        end_s = time.perf_counter()
        try:
            self._log.end_wait()
            if run.monitored:
                self._thread.monitored_s = (run.begin_s, end_s)
            if run.feeds:
                run.converted_s = max(0.0, self._thread.converted_s - run.begin_s)
            run.end(end_s, done=done)
            if run.loop is not None and done:
                step, waits = run.step(run.loop, end_s)
                self._log.add_step(run.loop, step, waits=waits)
            if run.plan.puts:
                run.info.end_put()
        except Exception as error:
            self._log.failed("a session's runs", error)

    def begin_monitored(self) -> None:
        """Begin a run of a monitored session with its hooks."""
        self._thread.monitored_s = None

    def end_monitored(self, start_s: float, end_s: float) -> None:
        """Record the time of the hooks of a monitored session before and after its run."""
        if self._thread.monitored_s is None:
            return
        begin_run_s, end_run_s = self._thread.monitored_s
        for hook_s in ((start_s, begin_run_s), (end_run_s, end_s)):
            if hook_s[1] - hook_s[0] > MIN_MARK_S:
                self._log.add_mark(Mark("callback", *hook_s, "hooks"))

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

    def _loop(self, info: SessionInfo, key: Any, *, plan: RunPlan, feeds: Any) -> Loop | None:
        if plan.feeds:
            return None
        thread = threading.get_ident()
        return self._log.find_loop(
            ("session", info.number, key, thread), lambda: _new_loop(plan, feeds, thread=thread)
        )


def _new_loop(plan: RunPlan, feeds: Mapping[Any, Any] | None, *, thread: int) -> Loop:
    """Return the loop of a plan, with a description of its input."""
    notes: list[str] = []
    buffer: int | None = None
    if plan.take is not None:
        facts = queue_facts(plan.take)
        buffer = facts.buffer
        notes.append(facts.note)
    elif plan.iterates:
        notes.append("a tf.data iterator in the graph")
    else:
        buffer = 0
    if feeds:
        notes.append(cast_note(feeds))
    return Loop(
        f"Session.run({plan.name})",
        "session",
        thread,
        waits="hidden" if plan.waits else "none",
        where=site_of(sys._getframe(1)),
        buffer=buffer,
        leaves=fed_leaves(feeds) if feeds else (),
        trains=plan.updates or bool(plan.waits),
        note="; ".join(filter(None, notes)),
    )

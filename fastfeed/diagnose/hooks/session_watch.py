"""Runs of sessions: what each does to queues, how long it waits there, and its loop."""

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
from fastfeed.diagnose.hooks.queue_model import PendingPut, PendingTake, QueueModel
from fastfeed.diagnose.hooks.session_burst import QueueBursts
from fastfeed.diagnose.hooks.session_plan import (
    RunPlan,
    cast_note,
    elements_put,
    fed_leaves,
    feed_key,
    fetch_key,
    is_monitored,
    plan_of,
    queue_limits,
)
from fastfeed.diagnose.hooks.session_trace import GraphWaits, trace_arguments
from fastfeed.steps.recorder import site_of
from fastfeed.steps.timeline import Loop, Mark, Step

# largest share of elements taken without an observed put with which the model of a queue is used
MAX_UNOBSERVED = 0.05


class SessionInfo:
    """Everything that is known of one session."""

    def __init__(self, number: int, log: HookLog) -> None:
        self.number = number
        self.bursts = QueueBursts(log)
        self.unknown: set[str] = set()  # queues with puts of unknown size
        self._plans: dict[Any, RunPlan] = {}
        self._models: dict[str, QueueModel] = {}
        self._graph_waits: dict[int, GraphWaits] = {}  # by the id of a loop
        self._last_put_s: dict[int, float] = {}  # by thread: when its last put ended

    def plan(self, key: Any, graph: Any, *, fetches: Any, feeds: Any) -> RunPlan:
        """Return the plan of a run, whose fetches and feeds have this key."""
        if key not in self._plans:
            self._plans[key] = plan_of(graph, fetches, feeds=feeds or ())
        return self._plans[key]

    def model(self, queue: Any) -> QueueModel:
        """Return the model of a queue."""
        known = self._models.get(queue.name)
        # atomic: the first of several threads sets it
        return known or self._models.setdefault(queue.name, QueueModel(*queue_limits(queue)))

    def knows_waits(self, plan: RunPlan) -> bool:
        """Return True if the waits of a run at queues follow from the observations."""
        models = [self.model(flow.queue) for flow in plan.takes]
        known = all(
            flow.elements is not None and flow.queue.name not in self.unknown for flow in plan.takes
        )
        return known and all(model.unobserved <= MAX_UNOBSERVED * model.taken for model in models)

    def graph_waits(self, loop: Loop, plan: RunPlan) -> GraphWaits:
        """Return the waits inside the runs of a loop."""
        return self._graph_waits.setdefault(id(loop), GraphWaits(plan.waits))

    def last_put_s(self) -> float | None:
        """Return when the last put of this thread ended."""
        return self._last_put_s.get(threading.get_ident())

    def end_put(self, now_s: float) -> None:
        """Record the end of a put of this thread."""
        self._last_put_s[threading.get_ident()] = now_s


@dataclass(eq=False)
class SessionRun:
    """A run under way. `loop` is None for a put, or if there are too many loops."""

    info: SessionInfo
    plan: RunPlan
    loop: Loop | None
    monitored: bool = False
    begin_s: float = 0.0
    free: bool = False
    metadata: Any = None  # of a run that is traced
    takes: list[tuple[QueueModel, PendingTake]] = field(default_factory=list)
    puts: list[tuple[QueueModel, PendingPut]] = field(default_factory=list)

    def begin(self, now_s: float, feeds: Mapping[Any, Any] | None) -> None:
        """Begin the run, with its puts and takes."""
        self.begin_s = now_s
        for flow in self.plan.puts:
            count = elements_put(flow, feeds)
            if count is None:
                self.info.unknown.add(flow.queue.name)
            else:
                model = self.info.model(flow.queue)
                self.puts.append((model, model.begin_put(now_s, count)))
        for flow in self.plan.takes:
            if flow.elements is not None:
                model = self.info.model(flow.queue)
                self.takes.append((model, model.begin_take(now_s, flow.elements)))

    def restart(self, now_s: float) -> None:
        """Set the time at which the puts and takes begin."""
        for _, pending in (*self.takes, *self.puts):
            pending.restart(now_s)

    def hold(self) -> None:
        """Hold the run as long as a burst needs it."""
        plan, bursts = self.plan, self.info.bursts
        if plan.puts:
            bursts.before_put()
        # a thread that fills the queue itself would wait for itself
        if not plan.takes or self.loop is None or self.info.last_put_s() is not None:
            return
        count = plan.takes[0].elements
        if count and self.info.knows_waits(plan):
            model = self.info.model(plan.takes[0].queue)
            self.free = bursts.before_step(self.loop, model, count=count)

    def trace(self) -> dict[str, Any]:
        """Return the arguments that request a trace, if the waits are unknown without it."""
        plan = self.plan
        at_queues = plan.takes and self.info.knows_waits(plan)
        if self.loop is None or not plan.waits or at_queues:
            return {}
        due = self.info.graph_waits(self.loop, plan).is_due(self.begin_s)
        arguments = trace_arguments() if due else {}
        self.metadata = arguments.get("run_metadata")
        return arguments

    def end(self, end_s: float, *, done: bool) -> list[float]:
        """End the puts and takes of the run; return the seconds that each take waited."""
        for model, put in self.puts:
            model.end_put(put, end_s, done=done)
        for queue in self.plan.closes if done else ():
            self.info.model(queue).close(end_s)
        queue_waits_s = [model.end_take(take, end_s, done=done) for model, take in self.takes]
        if self.plan.puts:
            self.info.end_put(end_s)
        if self.plan.takes:
            self.info.bursts.after_step(done=done)
        return queue_waits_s

    def wait_s(self, loop: Loop, queue_waits_s: list[float], *, end_s: float) -> tuple[float, str]:
        """Return the seconds that the run waited, as far as is known, and `Loop.waits`."""
        if not self.plan.waits:
            return 0.0, loop.waits
        if self.plan.takes and self.info.knows_waits(self.plan):
            return max(queue_waits_s, default=0.0), "modelled"
        waits = self.info.graph_waits(loop, self.plan)
        wait_s = waits.wait_s(self.metadata, end_s - self.begin_s)
        return wait_s, "modelled" if waits.estimator.known else "hidden"


class _ThreadState(threading.local):
    """The run that a thread is in, and begin and end of its last run of a monitored session."""

    run: SessionRun | None = None
    monitored_s: tuple[float, float] | None = None


class SessionTracker:
    """All sessions of the process."""

    def __init__(self, log: HookLog) -> None:
        self._log = log
        self._thread = _ThreadState()
        self._numbers = itertools.count(1)
        self._infos: weakref.WeakKeyDictionary[Any, SessionInfo] = weakref.WeakKeyDictionary()

    def begin(
        self, session: Any, fetches: Any, *, feeds: Mapping[Any, Any] | None
    ) -> SessionRun | None:
        """Begin a run; return None if it cannot be followed."""
        try:
            info = self._info(session)
            key = (fetch_key(fetches), feed_key(feeds))
            plan = info.plan(key, session.graph, fetches=fetches, feeds=feeds)
            loop = self._loop(info, key, plan=plan, feeds=feeds)
            run = SessionRun(info, plan, loop, is_monitored(fetches))
            run.hold()
            now_s = time.perf_counter()
            run.begin(now_s, feeds)
            last_s = info.last_put_s() if plan.puts and not plan.takes else None
            if last_s is not None:
                self._log.add_mark(Mark("batch", last_s, now_s, threading.current_thread().name))
            if plan.takes or plan.iterates:
                self._log.begin_wait(now_s)
            self._thread.run = run
        except Exception as error:
            self._log.failed("a session's runs", error)
            return None
        return run

    def trace(self, run: SessionRun | None) -> dict[str, Any]:
        """Return additional arguments for a run that is about to begin; see `SessionRun.trace`."""
        try:
            return {} if run is None else run.trace()
        except Exception as error:
            self._log.failed("the waiting in a session's graph", error)
            return {}

    def enter_graph(self, *args: Any) -> None:
        """Record that the run of this thread goes on without the interpreter lock.

        It may have waited for the lock during its preparations in Python.
        """
        if self._thread.run is not None:
            self._thread.run.restart(time.perf_counter())

    def end(self, run: SessionRun | None, *, done: bool) -> None:
        """End a run, `done` or with an error."""
        self._thread.run = None
        if run is None:
            return
        end_s = time.perf_counter()
        try:
            self._log.end_wait()
            if run.monitored:
                self._thread.monitored_s = (run.begin_s, end_s)
            queue_waits_s = run.end(end_s, done=done)
            if run.loop is not None and done:
                wait_s, waits = run.wait_s(run.loop, queue_waits_s, end_s=end_s)
                step = Step(run.begin_s, end_s, wait_s, run.free)
                self._log.add_step(run.loop, step, waits=waits)
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
        """End the burst of a session, if there is one."""
        info = self._infos.get(session)
        if info is not None:
            info.bursts.release()

    def release_all(self) -> None:
        """End the bursts of all sessions."""
        for session in list(self._infos):
            self.release(session)

    def _info(self, session: Any) -> SessionInfo:
        known = self._infos.get(session)
        # atomic: the first of several threads sets it
        return known or self._infos.setdefault(session, SessionInfo(next(self._numbers), self._log))

    def _loop(self, info: SessionInfo, key: Any, *, plan: RunPlan, feeds: Any) -> Loop | None:
        if (plan.puts or plan.closes) and not plan.takes:
            return None
        thread = threading.get_ident()
        return self._log.find_loop(
            ("session", info.number, key, thread), lambda: _new_loop(plan, feeds, thread=thread)
        )


def _new_loop(plan: RunPlan, feeds: Mapping[Any, Any] | None, *, thread: int) -> Loop:
    """Return the loop of a plan, with a description of its input."""
    notes: list[str] = []
    buffer: int | None = None
    if plan.takes:
        flow = plan.takes[0]
        capacity, minimum = queue_limits(flow.queue)
        if capacity is not None and flow.elements:
            buffer = max(0, capacity - minimum) // flow.elements
        taken = flow.elements or "some"
        notes.append(f"takes {taken} of a {flow.queue.type} of {capacity}, at least {minimum} kept")
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
        waits="modelled" if plan.takes else "hidden" if plan.iterates else "none",
        where=site_of(sys._getframe(1)),
        buffer=buffer,
        leaves=fed_leaves(feeds) if feeds else (),
        trains=plan.updates or bool(plan.waits),
        note="; ".join(filter(None, notes)),
    )

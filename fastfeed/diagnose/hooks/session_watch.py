"""Follow the runs of sessions: what each does to queues, how long it waited there, and which loop
it belongs to."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastfeed.diagnose.hooks.patches import keep
from fastfeed.diagnose.hooks.queue_model import PendingPut, PendingTake, QueueModel
from fastfeed.diagnose.hooks.session_burst import QueueBurst
from fastfeed.diagnose.hooks.session_plan import (
    RunPlan,
    cast_note,
    fed_leaves,
    feed_key,
    fetch_key,
    plan_of,
    queue_limits,
    rows,
)
from fastfeed.diagnose.hooks.session_trace import GraphWaits, tracing
from fastfeed.steps.recorder import site_of
from fastfeed.steps.timeline import Loop, Mark, Step

if TYPE_CHECKING:
    from fastfeed.diagnose.hooks.hook_log import HookLog

# a script that makes new operations all the time has a new "loop" for each of them
MOST_LOOPS = 256
# share of elements taken without an observed put, from which on the model is not used
STRANGERS = 0.05


@dataclass(eq=False)
class Run:
    """A run under way."""

    seen: SessionInfo
    plan: RunPlan
    loop: Loop | None  # None: a put, or one of too many
    begin_s: float = 0.0
    takes: list[tuple[QueueModel, PendingTake]] = field(default_factory=list)
    puts: list[tuple[QueueModel, PendingPut]] = field(default_factory=list)
    free: bool = False
    hooked: bool = False
    metadata: Any = None  # of a run that is traced


class SessionInfo:
    """Everything that is known of one session."""

    def __init__(self, number: int, log: HookLog) -> None:
        self.number = number
        self.plans: dict[Any, RunPlan] = {}
        self.models: dict[str, QueueModel] = {}
        self.unknown: set[str] = set()  # queues with puts of unknown size
        self.last_put: dict[int, float] = {}  # when a thread's last put ended
        self.graph_waits: dict[
            int, GraphWaits
        ] = {}  # by the id of a loop: the waits inside its runs
        self.burst = QueueBurst(log)
        self.lock = threading.Lock()

    def model(self, queue: Any) -> QueueModel:
        """Return the model of a queue."""
        with self.lock:
            if queue.name not in self.models:
                capacity, minimum = queue_limits(queue)
                self.models[queue.name] = QueueModel(capacity, minimum)
            return self.models[queue.name]

    def known(self, plan: RunPlan) -> bool:
        """Return True if the waiting of a step follows from the observations."""
        models = [self.model(flow.queue) for flow in plan.takes]
        clear = all(
            flow.elements is not None and flow.queue.name not in self.unknown for flow in plan.takes
        )
        return clear and all(model.unseen <= STRANGERS * model.taken for model in models)


class ThreadRuns(threading.local):
    """The run that a thread is in, and when its last one of a monitored session began and ended."""

    run: Run | None = None
    hooked: tuple[float, float] | None = None


class SessionTracker:
    """All sessions of the process."""

    def __init__(self, log: HookLog) -> None:
        self.local = ThreadRuns()
        self._log = log
        self._numbers = itertools.count(1)
        self._seen: weakref.WeakKeyDictionary[Any, SessionInfo] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def begin(self, session: Any, fetches: Any, *, feeds: Mapping[Any, Any] | None) -> Run | None:
        """Note the start of a run; return None if it cannot be followed."""
        try:
            seen = self._of(session)
            key = (fetch_key(fetches), feed_key(feeds))
            plan = seen.plans.get(key)
            if plan is None:
                plan = seen.plans[key] = plan_of(session.graph, fetches, feeds=feeds or ())
            run = Run(seen, plan, self._loop(seen, key, feeds=feeds, plan=plan))
            run.hooked = isinstance(fetches, dict) and "caller" in fetches
            self._flows(run, feeds)
            self.local.run = run
        except Exception as error:
            self._log.failed("a session's runs", error)
            return None
        return run

    def tracing(self, run: Run | None) -> dict[str, Any]:
        """Return additional arguments of a run that is about to begin: none, or those that request
        the times of its operations, if its waits are unknown otherwise."""
        if (
            run is None
            or run.loop is None
            or not run.plan.waits
            or (run.plan.takes and run.seen.known(run.plan))
        ):
            return {}
        try:
            inside = run.seen.graph_waits.setdefault(id(run.loop), GraphWaits(run.plan.waits))
            more = tracing() if inside.due(run.begin_s) else {}
        except Exception as error:
            self._log.failed("the waiting in a session's graph", error)
            return {}
        run.metadata = more.get("run_metadata")
        return more

    def enters(self) -> None:
        """Note that the run of this thread has made its preparations in Python, for which it may
        have lost the interpreter lock, and goes on without it."""
        run = self.local.run
        if run is not None:
            now_s = time.perf_counter()
            for _, take in run.takes:
                take.begin_s = now_s
            for _, put in run.puts:
                put.begin_s = now_s

    def end(self, run: Run | None, *, done: bool) -> None:
        """Note the end of a run, `done` or with an error."""
        self.local.run = None
        if run is None:
            return
        end_s = time.perf_counter()
        try:
            self._ended(run, end_s, done=done)
        except Exception as error:
            self._log.failed("a session's runs", error)

    def forget(self, session: Any) -> None:
        """Forget a session that is being closed."""
        seen = self._seen.get(session)
        if seen is not None:
            seen.burst.release()

    def release(self) -> None:
        """End every burst."""
        for seen in list(self._seen.values()):
            seen.burst.release()

    def _of(self, session: Any) -> SessionInfo:
        seen = self._seen.get(session)
        if seen is None:
            with self._lock:
                seen = self._seen.setdefault(session, SessionInfo(next(self._numbers), self._log))
        return seen

    def _loop(self, seen: SessionInfo, key: Any, *, plan: RunPlan, feeds: Any) -> Loop | None:
        if (plan.puts or plan.closes) and not plan.takes:
            return None
        thread = threading.get_ident()
        loops = self._log.timeline.loops
        name = ("session", seen.number, key, thread)
        loop = loops.get(name)
        if loop is None and len(loops) < MOST_LOOPS:
            loop = self._log.timeline.loop(
                name, name=f"Session.run({plan.name})", kind="session", thread=thread
            )
            loop.where = site_of(sys._getframe(1))
            self._describe(loop, plan, feeds=feeds)
        return loop

    def _describe(self, loop: Loop, plan: RunPlan, *, feeds: Mapping[Any, Any] | None) -> None:
        notes = []
        if plan.takes:
            flow = plan.takes[0]
            capacity, minimum = queue_limits(flow.queue)
            if capacity is not None and flow.elements:
                loop.buffer = max(0, capacity - minimum) // flow.elements
            taken = flow.elements or "some"
            notes.append(
                f"takes {taken} of a {flow.queue.type} of {capacity}, at least {minimum} kept"
            )
        elif plan.iterates:
            notes.append("a tf.data iterator in the graph")
        else:
            loop.buffer = 0
        loop.waits = "modelled" if plan.takes else "hidden" if plan.iterates else "none"
        if feeds:
            loop.leaves = fed_leaves(feeds)
            notes.append(cast_note(feeds))
        loop.note = "; ".join(note for note in notes if note)

    def _flows(self, run: Run, feeds: Mapping[Any, Any] | None) -> None:
        seen, plan, loop = run.seen, run.plan, run.loop
        if plan.puts:
            seen.burst.before_put()
        thread = threading.get_ident()
        # a thread that fills the queue itself would wait for itself
        alone = thread in seen.last_put
        if (
            plan.takes
            and loop is not None
            and not alone
            and plan.takes[0].elements
            and seen.known(plan)
        ):
            flow = plan.takes[0]
            run.free = seen.burst.before_step(
                loop, seen.model(flow.queue), count=plan.takes[0].elements
            )
        now_s = time.perf_counter()
        for flow in plan.puts:
            count = rows(flow, feeds)
            if count is None:
                seen.unknown.add(flow.queue.name)
            else:
                run.puts.append(
                    (seen.model(flow.queue), seen.model(flow.queue).begin_put(now_s, count))
                )
        for flow in plan.takes:
            if flow.elements is not None:
                run.takes.append(
                    (
                        seen.model(flow.queue),
                        seen.model(flow.queue).begin_take(now_s, flow.elements),
                    )
                )
        if plan.puts and not plan.takes:
            last_s = seen.last_put.get(thread)
            if last_s is not None:
                name = threading.current_thread().name
                self._log.timeline.marks.append(Mark("batch", last_s, now_s, name))
        if plan.takes or plan.iterates:
            self._log.waiting[thread] = now_s
        run.begin_s = now_s

    def _ended(self, run: Run, end_s: float, *, done: bool) -> None:
        thread = threading.get_ident()
        self._log.waiting.pop(thread, None)
        if run.hooked:
            self.local.hooked = (run.begin_s, end_s)
        for model, put in run.puts:
            model.end_put(put, end_s, done=done)
        for queue in run.plan.closes if done else ():
            run.seen.model(queue).close(end_s)
        waits = [model.end_take(take, end_s, done=done) for model, take in run.takes]
        if run.plan.puts:
            run.seen.last_put[thread] = end_s
        if run.plan.takes:
            run.seen.burst.after_step(done=done)
        if run.loop is not None and done:
            wait = self._wait_s(run, run.loop, waits=waits, duration=end_s - run.begin_s)
            keep(run.loop, Step(run.begin_s, end_s, wait, run.free), most=self._log.max_steps)

    def _wait_s(self, run: Run, loop: Loop, *, waits: list[float], duration: float) -> float:
        """Return the seconds that a run of `duration` waited, as far as is known."""
        if not run.plan.waits:
            return 0.0
        if run.plan.takes and run.seen.known(run.plan):
            loop.waits = "modelled"
            return max(waits, default=0.0)
        inside = run.seen.graph_waits.get(id(loop))
        if inside is None:  # a run that cannot be traced
            loop.waits = "hidden"
            return 0.0
        wait_s = (
            inside.excess.wait_s(duration)
            if run.metadata is None
            else inside.traced(run.metadata, duration)
        )
        loop.waits = "modelled" if inside.excess.known else "hidden"
        return wait_s

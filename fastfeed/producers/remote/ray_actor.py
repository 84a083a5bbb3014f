"""An actor of Ray that runs a remote worker: its calls, and the streams of its producers."""

from __future__ import annotations

import contextlib
import math
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import fastfeed
from fastfeed.producers.remote.actor import CONTROL, MAX_STREAMS, RemoteWorker
from fastfeed.producers.remote.remote_outlet import MessageGroup

# Groups of one producer in the object store: one travels while the next one is made.
STORED_GROUPS = 2
LOOK_S = 1.0  # an object that does not come for so long may have died with its node
# An actor is lost when it and its node do not answer for so long. Ray itself would wait for a
# minute.
CUT_OFF_S = 10.0
ACTOR_ANSWER_S = 0.5  # of a healthy actor, which answers within milliseconds
NAMESPACE = "fastfeed"
# A trainer that is silent for so long loses its share of an actor that several trainers use.
LEASE_S, RENEW_S = 20.0, 4.0


class ActorPlace(NamedTuple):
    """Where an actor runs: what it reserves, on `node` if there is room (None: where Ray likes).
    `name` is that of an actor which several trainers share, or "" for one of its own."""

    cpus: float
    node: str | None
    name: str = ""


class RayActor:
    """An actor for the `tasks` of this trainer, which Ray starts as soon as there is room. `given`
    are references to the packed source of each; `answers` tells whether a node can be reached."""

    def __init__(
        self,
        ray: Any,
        tasks: Sequence[Any],
        *,
        given: Sequence[Any],
        place: ActorPlace,
        answers: Callable[[str], bool],
    ) -> None:
        self._ray = ray
        self._answers = answers
        self._node = ""  # its name, once the actor has started
        self._silent_since_s = math.inf
        self._is_client = bool(ray.util.client.ray.is_connected())
        self._alone = len(tasks) == 1
        self._shared = bool(place.name)
        self._trainer = uuid.uuid4().hex
        self._renewed_s = time.monotonic()
        self._gone = False
        self._failure: Exception | None = None  # of a call
        self._calls: deque[Any] = deque()  # whose answers nobody has seen
        self._actor = self._create(place, max(1, len(tasks)))
        self._attached = self._call(
            "attach", tasks, *given, version=fastfeed.__version__, paths=sys.path
        )

    def whereabouts(self) -> tuple[int, str] | None:
        """Return the process id and the address of the node, or None before the start."""
        if not self._ray.wait([self._attached], timeout=0)[0]:
            return None
        try:
            pid, address, self._node = self._ray.get(self._attached)
        except self._ray.exceptions.RayError as error:
            self._fail(error)
            return None
        return pid, f"node {address}"

    def deliver(self, number: int, content: Any) -> None:
        """Send items for a task; return at once."""
        self._calls.append(self._call("deliver", number, content=content))

    def allow(self, number: int, epochs: int) -> None:
        """Let `epochs` epochs in all of a task begin; return at once."""
        self._calls.append(self._call("allow", number, epochs=epochs))

    def groups(self, number: int) -> Iterator[MessageGroup]:
        """Yield what the producer of a task sends. Raise what Ray raises when the actor is
        lost, or when a call of it has failed."""
        refs = self._called(number) if self._is_client else self._streamed(number)
        try:
            for ref in refs:
                group = self._value_of(ref)
                del ref
                if group is None:
                    return
                self._silent_since_s = math.inf
                yield group
                del group
        except self._ray.exceptions.RayError:
            if self._failure is not None:
                raise self._failure from None
            raise
        if self._failure is not None:
            raise self._failure

    def stacks(self) -> str:
        """Return where its producers are, as text."""
        try:
            return str(self._ray.get(self._call("stacks"), timeout=ACTOR_ANSWER_S))
        except Exception:  # whatever has happened to it
            return "  no answer"

    def kill(self) -> None:
        """End the actor, which may have ended before, or leave it to the trainers that share it."""
        self._gone = True
        with contextlib.suppress(Exception):
            if self._shared:
                self._call("detach")
            else:
                self._ray.kill(self._actor)

    def _create(self, place: ActorPlace, threads: int) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy: Any = "SPREAD"
        if place.node is not None:
            strategy = NodeAffinitySchedulingStrategy(place.node, soft=True)
        kind = self._ray.remote(concurrency_groups={CONTROL: 1}, max_restarts=0)(RemoteWorker)
        options: dict[str, Any] = {"num_cpus": place.cpus, "scheduling_strategy": strategy}
        if not self._shared:
            return kind.options(max_concurrency=threads, **options).remote()
        return kind.options(
            name=place.name,
            namespace=NAMESPACE,
            lifetime="detached",  # the first trainer may be the first to end
            get_if_exists=True,
            max_concurrency=MAX_STREAMS,
            **options,
        ).remote(LEASE_S)

    def renew(self) -> None:
        """Tell an actor that others use, too, that this trainer is alive, and see which calls have
        failed; return at once."""
        waiting = [self._calls.popleft() for _ in range(len(self._calls))]
        if waiting:
            ready, left = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
            self._calls.extendleft(reversed(left))
            for ref in ready:
                try:
                    self._ray.get(ref)
                except self._ray.exceptions.RayError as error:
                    self._fail(error)
        now = time.monotonic()
        if self._shared and now - self._renewed_s > RENEW_S:
            self._renewed_s = now
            self._call("renew")

    def _fail(self, error: Exception) -> None:
        """Have who reads the streams meet the error, which the actor does not survive."""
        self._failure = self._failure or error
        self.kill()

    def _call(self, method: str, *given: Any, **named: Any) -> Any:
        who = () if method == "hello" else (self._trainer,)
        return getattr(self._actor, method).remote(*who, *given, **named)

    def _streamed(self, number: int) -> Iterator[Any]:
        run = self._actor.run.options(
            num_returns="streaming", _generator_backpressure_num_objects=STORED_GROUPS
        )
        refs = run.remote(self._trainer, number)
        while not self._gone:
            # an actor that has no place, or is inside the user's code, sends nothing
            if not self._ray.wait([refs], timeout=LOOK_S, fetch_local=False)[0]:
                self._refuse_dead()
                continue
            ref = next(refs, None)
            if ref is None:
                return
            yield ref
            del ref

    def _called(self, number: int) -> Iterator[Any]:
        """Yield references to one group after another. A client of Ray has no streams."""
        ahead = STORED_GROUPS if self._alone and not self._shared else 1
        refs = deque(self._actor.more.remote(self._trainer, number) for _ in range(ahead))
        while refs:
            yield refs.popleft()
            refs.append(self._actor.more.remote(self._trainer, number))

    def _value_of(self, ref: Any) -> MessageGroup | None:
        """Return a group. Raise what Ray raises if it has died with its node, which Ray itself
        would find out much later."""
        while True:
            try:
                found: MessageGroup | None = self._ray.get(ref, timeout=LOOK_S)
                return found
            except self._ray.exceptions.GetTimeoutError:
                if self._gone:
                    return None
                self._refuse_dead()

    def _refuse_dead(self) -> None:
        """Raise what Ray raises if the actor has died, or ConnectionError if its node is cut off.

        An actor that is inside the user's code may not answer, but its node does.
        """
        try:
            self._ray.get(self._call("hello"), timeout=LOOK_S)
        except self._ray.exceptions.GetTimeoutError:
            if self._node and not self._answers(self._node):
                now = time.monotonic()
                self._silent_since_s = min(self._silent_since_s, now)
                if now - self._silent_since_s < CUT_OFF_S:
                    return
                raise ConnectionError(f"its node has not answered for {CUT_OFF_S:g} s") from None
        self._silent_since_s = math.inf

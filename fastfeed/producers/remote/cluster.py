"""A cluster of Ray, which starts on this machine if the user names no other one: its actors, and
the choice of their nodes, away from the trainer and spread by free CPUs."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import fastfeed
from fastfeed.errors import OptionError, required
from fastfeed.options.option_values import parse_address
from fastfeed.producers.remote.actor import CONTROL, Dispatched, RemoteWorker
from fastfeed.producers.remote.remote_outlet import MessageGroup

LOG = logging.getLogger("fastfeed")
CONNECT_S = 10.0  # an address that does not answer for so long is refused
NODE_ANSWER_S = 0.5  # of a node that lives, on the network of the cluster
# Groups of one producer in the object store: one travels while the next one is made.
STORED_GROUPS = 2
LOOK_S = 1.0  # an object that does not come for so long may have died with its node
# An actor is lost when it and its node do not answer for so long. Ray itself would wait for a
# minute.
CUT_OFF_S = 10.0
ACTOR_ANSWER_S = 0.5  # of a healthy actor, which answers within milliseconds
CLIENT_PREFIX = "ray://"


@dataclass(frozen=True)
class RayNode:
    """A living node: its CPUs, how many of them are free, and True for the trainer's own."""

    node_id: str
    address: str
    cpus: float
    free: float
    own: bool = False


def place(nodes: Sequence[RayNode], count: int, *, cpus: float) -> list[str | None]:
    """Return a node for each of `count` producers that need `cpus` each; None leaves it to Ray,
    which may add a node, or wait.

    The trainer's own node is taken last: its CPUs belong to the training. Among the others, each
    producer goes where most CPUs are free, so nodes of different sizes fill evenly.
    """
    free = {node.node_id: node.free for node in nodes}
    own = {node.node_id for node in nodes if node.own}
    placed: list[str | None] = []
    for _ in range(count):
        fitting = [node for node in free if free[node] >= cpus]
        best = max(fitting, key=lambda node: (node not in own, free[node]), default=None)
        if best is not None:
            free[best] -= cpus or 1e-6  # so that producers without a reservation spread, too
        placed.append(best)
    return placed


def describe_nodes(nodes: Sequence[RayNode]) -> str:
    """Return what is free on each node, as text."""
    parts = [f"{node.free:g} of {node.cpus:g} CPUs on {node.address}" for node in nodes]
    return "free are " + (", ".join(parts) if parts else "no CPUs: no node is alive")


class RayActor:
    """An actor with a RemoteWorker for the `tasks` of this trainer, which Ray starts as soon as
    there is room, on `node` if it can (None: where it likes). `given` are references to the packed
    source of each task; `answers` tells whether a node can be reached."""

    def __init__(
        self,
        ray: Any,
        tasks: Sequence[dict[str, Any]],
        *,
        given: Sequence[Any],
        cpus: float,
        node: str | None,
        answers: Callable[[str], bool],
    ) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray = ray
        self._answers = answers
        self._node = ""  # its name, once the actor has started
        self._silent_since_s = math.inf
        self._is_client = bool(ray.util.client.ray.is_connected())
        self._alone = len(tasks) == 1
        self._gone = False
        self._failure: Exception | None = None  # of a call
        kind = ray.remote(concurrency_groups={CONTROL: 1}, max_restarts=0)(RemoteWorker)
        strategy = "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node, soft=True)
        self._actor = kind.options(
            num_cpus=cpus, scheduling_strategy=strategy, max_concurrency=len(tasks)
        ).remote(tasks, *given, version=fastfeed.__version__, paths=sys.path)
        self._started = self._actor.hello.remote()
        self._calls = deque([self._started])  # whose answers nobody has seen
        self._place: tuple[int, str] | None = None
        self._looking = threading.Lock()

    def look(self) -> tuple[int, str] | None:
        """Return the process id and the node, or None before the start, and see which calls have
        failed; return at once."""
        with self._looking:
            waiting = [self._calls.popleft() for _ in range(len(self._calls))]
            ready, left = (
                self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
                if waiting
                else ([], [])
            )
            self._calls.extendleft(reversed(left))
        try:
            for ref in ready:
                found = self._ray.get(ref)
                if ref == self._started:
                    pid, address, self._node = found
                    self._place = pid, f"node {address}"
        except self._ray.exceptions.RayError as error:
            # Who reads the streams meets the error, which the actor does not survive.
            self._failure = self._failure or error
            self.kill()
        return self._place

    def send(self, number: int, message: Dispatched) -> None:
        """Send what the dispatcher sends for a task; return at once."""
        self._calls.append(self._actor.receive.remote(number, message))

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
            return str(self._ray.get(self._actor.stacks.remote(), timeout=ACTOR_ANSWER_S))
        except Exception:  # whatever has happened to it
            return "  no answer"

    def kill(self) -> None:
        """End the actor, which may have ended before."""
        self._gone = True
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)

    def _streamed(self, number: int) -> Iterator[Any]:
        run = self._actor.run.options(
            num_returns="streaming", _generator_backpressure_num_objects=STORED_GROUPS
        )
        refs = run.remote(number)
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
        ahead = STORED_GROUPS if self._alone else 1
        refs = deque(self._actor.more.remote(number) for _ in range(ahead))
        while refs:
            yield refs.popleft()
            refs.append(self._actor.more.remote(number))

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
            self._ray.get(self._actor.hello.remote(), timeout=LOOK_S)
        except self._ray.exceptions.GetTimeoutError:
            if self._node and not self._answers(self._node):
                now = time.monotonic()
                self._silent_since_s = min(self._silent_since_s, now)
                if now - self._silent_since_s < CUT_OFF_S:
                    return
                raise ConnectionError(f"its node has not answered for {CUT_OFF_S:g} s") from None
        self._silent_since_s = math.inf


class RayCluster:
    """A connection to Ray. Raise OptionError if there is no cluster, or another one than `remote`
    names; MissingExtra without Ray."""

    def __init__(self, remote: str) -> None:
        with required("ray", "ray"):
            import ray
            import ray.util.client
        self.ray: Any = ray
        self._remote = remote
        if not ray.is_initialized():
            self._connect()
        self.is_client = bool(ray.util.client.ray.is_connected())
        self._refuse_other()

    def nodes(self) -> list[RayNode]:
        """Return the living nodes."""
        own, free = self._own_node(), self._free()
        nodes = []
        for node in filter(itemgetter("Alive"), self.ray.nodes()):
            name, cpus = node["NodeID"], node["Resources"].get("CPU", 0.0)
            unused = free.get(name, {}).get("CPU", 0.0) if free else cpus
            address = node["NodeManagerAddress"]
            nodes.append(RayNode(name, address, cpus, unused, own=name == own))
        return nodes

    def answers(self, node_id: str) -> bool:
        """Return True if a node still listens: a dead one is listed as alive until Ray has missed
        enough of its heartbeats. A client of Ray cannot know."""
        if self.is_client:
            return True
        node = next((node for node in self.ray.nodes() if node["NodeID"] == node_id), None)
        if node is None:
            return False
        place = node["NodeManagerAddress"], node["NodeManagerPort"]
        try:
            socket.create_connection(place, timeout=NODE_ANSWER_S).close()
        except OSError:
            return False
        return True

    def store_nbytes(self) -> int:
        """Return the size of the object store on this machine, 0 if it has none."""
        own = self._own_node()
        sizes = [
            node["Resources"].get("object_store_memory", 0.0)
            for node in self.ray.nodes()
            if node["NodeID"] == own and node["Alive"]
        ]
        return int(sum(sizes))

    def refuse_too_small(self, cpus: float) -> None:
        """Raise OptionError if no node can ever hold a producer of `cpus`."""
        nodes = self.nodes()
        if not any(node.cpus >= cpus for node in nodes):
            raise OptionError(
                f"Remote(..., cpus={cpus:g}): no node of the cluster has so many; "
                f"{describe_nodes(nodes)}. Lower cpus=, or add a larger node"
            )

    def put(self, value: Any) -> Any:
        """Put a value into the object store. Return the reference."""
        return self.ray.put(value)

    def start_actor(
        self,
        tasks: Sequence[dict[str, Any]],
        *,
        given: Sequence[Any],
        cpus: float,
        node: str | None,
    ) -> RayActor:
        """Create an actor for `tasks`; return at once."""
        return RayActor(self.ray, tasks, given=given, cpus=cpus, node=node, answers=self.answers)

    def _connect(self) -> None:
        start = time.perf_counter()
        self._refuse_silence()
        if self._remote == "local":
            self._initialise(address="local", include_dashboard=False)
            LOG.warning(
                "Ray was started on this machine in %.1f s, for remote producers. It stays until "
                "this process ends, or ray.shutdown()",
                time.perf_counter() - start,
            )
        else:
            _within(CONNECT_S, self._remote, do=lambda: self._initialise(address=self._remote))

    def _initialise(self, **given: Any) -> None:
        try:
            self.ray.init(log_to_driver=True, logging_level=logging.WARNING, **given)
        except ConnectionError as error:
            raise OptionError(f"remote={self._remote!r}: no cluster answers. {error}") from error
        except Exception as error:  # other versions of Python or Ray, refused authentication
            raise OptionError(
                f"remote={self._remote!r}: Ray refuses the connection. {error}"
            ) from error

    def _refuse_silence(self) -> None:
        """Raise OptionError if nothing listens at the address. Ray itself would try for up to a
        minute."""
        place = parse_address(self._remote)
        if place is None:
            return
        try:
            socket.create_connection(place, timeout=CONNECT_S).close()
        except OSError as error:
            raise OptionError(
                f"remote={self._remote!r}: no cluster answers at {place[0]} port {place[1]} "
                f'({error}). Start one with `ray start --head`, or use remote="local"'
            ) from error

    def _refuse_other(self) -> None:
        """Raise OptionError if this process is connected to another cluster than the one that the
        user names."""
        place = parse_address(self._remote)
        if place is None:
            return
        wants_client = self._remote.startswith(CLIENT_PREFIX)
        if self.is_client or wants_client:
            if self.is_client and wants_client:
                return
            here = "as a client" if self.is_client else "as a part of the cluster"
            raise OptionError(
                f"remote={self._remote!r}: this process is connected to Ray {here} already: call "
                "ray.shutdown() first, or leave out ray.init()"
            )
        address = self.ray.get_runtime_context().gcs_address
        host, _, port = address.rpartition(":")
        if int(port) != place[1] or _ip_of(host) != _ip_of(place[0]):
            raise OptionError(
                f"remote={self._remote!r}: this process is connected to the cluster at {address} "
                'already: call ray.shutdown() first, or say remote="auto" for that one'
            )

    def _own_node(self) -> str:
        if self.is_client:  # this machine is no part of the cluster
            return ""
        return str(self.ray.get_runtime_context().get_node_id())

    def _free(self) -> dict[str, dict[str, float]]:
        """Return what is free on each node; nothing where a client cannot know it."""
        if self.is_client:
            return {}
        found: dict[str, dict[str, float]] = self.ray._private.state.available_resources_per_node()
        return found


def _ip_of(host: str) -> str:
    try:
        found = socket.gethostbyname(host)
    except OSError:
        return host
    # this machine has an address of its own, too
    if found.startswith("127."):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
    return found


def _within(limit_s: float, remote: str, *, do: Callable[[], None]) -> None:
    """Call `do` in a thread. Raise what it raises, or OptionError after `limit_s`."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            do()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="fastfeed-connect", daemon=True)
    thread.start()
    thread.join(limit_s)
    if failed:
        raise failed[0]
    if thread.is_alive():
        raise OptionError(
            f"remote={remote!r}: something listens there, and no cluster of Ray has answered in "
            f"{limit_s:.0f} s. If there is one, it wants a token (RAY_AUTH_MODE=token, and "
            "RAY_AUTH_TOKEN or the head's ~/.ray/auth_token here), or has another version of Ray"
        )

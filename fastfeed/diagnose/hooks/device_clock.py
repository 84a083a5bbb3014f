"""The accelerator's own clock: how long a fetch of input leaves it without work. While the host
waits for a batch, the accelerator may still compute the steps before."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple, cast

from fastfeed.steps.timeline import DeviceGap, Loop

MAX_PENDING = 4096  # pairs of events that the device has not reached yet
MAX_ASKING_SHARE = 0.002  # of the time, to ask which arrays are ready
MAX_WAITING_SHARE = 0.01  # of the time, to wait for them


class BegunFetch(NamedTuple):
    """A fetch that has begun: its clock, what that has noted, and when the host began to fetch."""

    clock: Any
    entry: Any
    asked_s: float


class DeviceClock:
    """Times fetches on the accelerator that is in use, if there is one; `failed` reports errors."""

    def __init__(self, failed: Callable[[str, Exception], None]) -> None:
        self._failed = failed
        self._over = False
        self._clock: CudaEvents | ArrayReadiness | None = None

    def fetch(self, loop: Loop, get: Callable[[], Any], *, begin_s: float) -> Any:
        """Return or raise what `get` does; the gap is added to the loop, now or later."""
        begun = self.begin()
        item = get()
        if begun is not None:
            self.end(begun, loop=loop, begin_s=begin_s)
        return item

    def begin(self) -> BegunFetch | None:
        """Return what `end` needs, before a fetch; None if nothing can be said of it."""
        clock: Any = None if self._over else self._tried(self._chosen)
        entry = None if clock is None else self._tried(clock.enter)
        return None if entry is None else BegunFetch(clock, entry, perf_counter())

    def end(self, begun: BegunFetch, *, loop: Loop, begin_s: float | None = None) -> None:
        """Add the gap of a fetch to its loop, now or later; `begin_s`: when its step began."""
        begin_s = begun.asked_s if begin_s is None else begin_s
        fetched = DeviceGap(begin_s, perf_counter() - begun.asked_s)
        self._tried(lambda: begun.clock.leave(begun.entry, loop=loop, fetched=fetched))

    def _chosen(self) -> CudaEvents | ArrayReadiness | None:
        cuda, jax = cuda_in_use(), _jax_in_use()
        if self._clock is None and cuda is not None:
            self._clock = CudaEvents(cuda)
        elif self._clock is None and jax is not None:
            self._clock = ArrayReadiness(jax.live_arrays)
        return self._clock

    def _tried(self, call: Callable[[], Any]) -> Any:
        """Return what a call does. The first error ends the measurement, and not the script."""
        try:
            return call()
        except Exception as error:  # another version, or a device that has failed
            self._over = True
            self._failed("the accelerator's clock", error)
            return None


class CudaEvents:
    """Pairs of events of torch on the current stream of the thread that fetches.

    An event has the time at which the device has done what was queued before. So there is no gap
    between a pair that is queued while the device still works.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._pending: deque[tuple[Loop, float, Any, Any]] = deque()

    def enter(self) -> Any:
        """Return an event before the fetch; None while a graph is captured, which may hold none."""
        full = len(self._pending) >= MAX_PENDING
        return None if full or self._cuda.is_current_stream_capturing() else self._event()

    def leave(self, entry: Any, *, loop: Loop, fetched: DeviceGap) -> None:
        """Queue the event after the fetch, and add the gaps of what the device has passed."""
        self._pending.append((loop, fetched.begin_s, entry, self._event()))
        while self._pending:
            passed, begin_s, first, last = pair = self._pending.popleft()
            if not last.query():
                self._pending.appendleft(pair)
                break
            passed.device_gaps.append(DeviceGap(begin_s, max(0.0, first.elapsed_time(last) / 1e3)))

    def _event(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event


class ReadinessEntry(NamedTuple):
    """Arrays that were still computed before a fetch, and the seconds that it took to wait for
    them; None: nobody waited."""

    arrays: list[Any]
    waited_s: float | None


class ArrayReadiness:
    """Arrays of JAX that are still computed before and after a fetch. `live` returns all arrays;
    there may be thousands, so that it is not asked at each fetch.

    Once a device has become ready within a fetch, nobody knows when. From then on the fetch begins
    when the arrays are ready, and the seconds until then are those that it would have been busy.
    """

    def __init__(self, live: Callable[[], Iterable[Any]]) -> None:
        self._live = live
        self._next_s = 0.0
        self._waits = False

    def enter(self) -> ReadinessEntry | None:
        """Return the arrays that are still computed; None if it is too early to ask again."""
        begin_s = perf_counter()
        if begin_s < self._next_s:
            return None
        found = [array for array in self._live() if not _is_ready(array)]
        asked_s, waited_s = perf_counter(), None
        if found and self._waits:
            _await_arrays(found)
            waited_s = perf_counter() - asked_s
        pause_s = (asked_s - begin_s) / MAX_ASKING_SHARE + (waited_s or 0.0) / MAX_WAITING_SHARE
        self._next_s = begin_s + pause_s
        return ReadinessEntry(found, waited_s)

    def leave(self, entry: ReadinessEntry, *, loop: Loop, fetched: DeviceGap) -> None:
        """Add the gap: the whole wait if the device had nothing to do before, none if it still
        works."""
        busy_s = 0.0
        if entry.waited_s is not None:
            busy_s = entry.waited_s
        elif entry.arrays:
            if all(map(_is_ready, entry.arrays)):
                self._waits = True
                return
            busy_s = fetched.seconds
        loop.device_gaps.append(fetched._replace(seconds=max(0.0, fetched.seconds - busy_s)))


def cuda_in_use() -> Any:
    """Return torch.cuda if it is in use: its steps go on after their calls."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _jax_in_use() -> Any:
    """Return JAX if it has made a backend; a question to JAX before would make one."""
    made = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None)
    return sys.modules["jax"] if made else None


def all_done() -> Callable[[], None] | None:
    """Return what waits until all that was called is computed; None where calls compute it."""
    cuda, jax = cuda_in_use(), _jax_in_use()
    if cuda is not None:
        return cast("Callable[[], None]", cuda.synchronize)
    return None if jax is None else lambda: _await_arrays(jax.live_arrays())


def _await_arrays(arrays: Iterable[Any]) -> None:
    for array in arrays:
        with suppress(RuntimeError):  # it was given to a step meanwhile
            array.block_until_ready()


def _is_ready(array: Any) -> bool:
    try:
        return bool(array.is_ready())
    except RuntimeError:  # it was given to a step meanwhile
        return True

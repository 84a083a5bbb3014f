"""The thread that changes the number of producers of a runner while its training runs."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

from fastfeed.core.stats import Decision, Snapshot
from fastfeed.core.status import INPUT, MAKING, STARTING
from fastfeed.errors import FeedError
from fastfeed.options import Auto, FeedOptions
from fastfeed.tune.count_tuner import CountTuner
from fastfeed.tune.limits import ProducerLimits

LOG = logging.getLogger("fastfeed")
SEARCH_POLL_S, STEADY_POLL_S = 0.1, 0.5  # a look takes 0.1 ms, 1 ms in a session
START_LIMIT_S = 30.0  # most that a new producer is waited for
JOIN_S = 1.0
WINDOW = 64  # of the order that is proposed
PROPOSAL = f"order=Reorder(window={WINDOW}) would let batches that are ready pass a late one"


class TunedStream(Protocol):
    """The stream of a runner, as far as it is tuned."""

    options: FeedOptions
    feed: Any
    stopped: bool

    def snapshot(self) -> Snapshot:
        """Return the present counters."""

    def resize(self, wanted: Mapping[str, int | str]) -> None:
        """Change the number of producers."""


class TuningThread:
    """Thread that looks at a stream, which it does not keep alive, until `stop`."""

    def __init__(self, stream: TunedStream, knob: str, *, past: tuple[Decision, ...] = ()) -> None:
        self._stream = weakref.ref(stream)
        self.knob = knob
        self._feed: weakref.ref[Any] | None = None
        self._limits = ProducerLimits(knob, stream.options, pids=self._pids)
        self._options = stream.options
        self._tuner = CountTuner(
            knob, count_of(self._options, knob), limits=self._limits.most, producers=self._in_all
        )
        self._past = past  # decisions of earlier threads
        self._begin_s = time.perf_counter() - (past[-1].seconds if past else 0.0)
        self._changed_s = -START_LIMIT_S
        self._proposed = any(one.proposed for one in past)
        self._searches = True  # until the number that was found is there
        self._over = threading.Event()
        self._ending = threading.Lock()
        self._ended = False
        weakref.finalize(stream, self._over.set).atexit = False
        self._thread = threading.Thread(target=self._run, name="fastfeed-tuner", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, from any thread."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)

    @property
    def runs(self) -> bool:
        """True until the thread has seen that it is to end."""
        with self._ending:
            return not self._ended

    @property
    def searches(self) -> bool:
        """True while a number is looked for."""
        return self.runs and self._searches

    @property
    def history(self) -> tuple[Decision, ...]:
        """What was decided, oldest first."""
        return (*self._past, *self._tuner.history)

    def _run(self) -> None:
        try:
            while not self._over.wait(SEARCH_POLL_S if self._tuner.searches else STEADY_POLL_S):
                stream = self._stream()
                with self._ending:  # a knob that is "auto" again gets a new thread, or this one
                    if stream is None or stream.stopped or self.knob not in stream.options.tuned:
                        self._ended = True
                        return
                self._look(stream)
                del stream
        except Exception as error:
            LOG.warning("%s= stays what it is from now on: %s", self.knob, error, exc_info=True)
        finally:
            self._ended = True

    def _in_all(self, count: int) -> int:
        """Return the producers of every kind where there are so many of this one."""
        options = self._options
        each = options.threads if self.knob == "processes" else 1
        return options.parallel + each * (count - count_of(options, self.knob))

    def _pids(self) -> list[int]:
        """Return the worker processes on this machine."""
        stream = self._stream()
        workers = stream.feed.status().workers if stream is not None and stream.feed else []
        return [one.pid for one in workers if one.pid and not one.node]

    def _look(self, stream: TunedStream) -> None:
        feed = stream.feed
        if feed is None or feed.error is not None:
            return
        if self._feed is None or self._feed() is not feed:
            self._tuner.begin_feed()
            self._limits.begin_feed()
            self._feed = weakref.ref(feed)
        self._options = self._limits.options = stream.options
        now_s = time.perf_counter() - self._begin_s
        measures = now_s >= self._changed_s + START_LIMIT_S
        if not measures:  # a new producer cannot show yet what it gains
            begins = (STARTING, MAKING, INPUT)
            made = [one.counters.batches for one in feed.status().producers if one.state in begins]
            if measures := 0 not in made:
                self._changed_s = -START_LIMIT_S
        wanted = self._tuner.look(stream.snapshot(), now_s, measures=measures)
        if wanted != count_of(stream.options, self.knob):
            self._changed_s = now_s
            try:
                stream.resize({self.knob: Auto(wanted)})
            except FeedError as error:  # the feed ends, or the system has no room
                LOG.info("%s=%d: %s", self.knob, wanted, error)
                self._limits.refuse(count_of(stream.options, self.knob))
        self._searches = self._tuner.searches
        held_up = "" if self._proposed or stream.options.order != "kept" else self._tuner.held_up
        if held_up:
            self._proposed = True
            self._tuner.propose("order", WINDOW, why=f"{held_up}; {PROPOSAL}")
        for decision in self._tuner.history[-2:]:
            if decision.seconds == now_s:
                LOG.info("%s", decision)


def count_of(options: FeedOptions, knob: str) -> int:
    """Return the present number of producers `knob`."""
    return options.remote_producers if knob == "producers" else int(getattr(options, knob))

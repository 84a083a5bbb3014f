"""The feeds of one runner, one after another: the place where the next one begins, and its
workers."""

from __future__ import annotations

import importlib
import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from fastfeed.core.collate import Rebatcher, SizeChecker
from fastfeed.core.position import Position
from fastfeed.core.stats import Decision, Snapshot, StageRow
from fastfeed.engine.epoch_schedule import ResumePoint
from fastfeed.engine.feed import Feed, as_json
from fastfeed.engine.order_stage import CutStage, Cutter, OrderStage, run_is_over
from fastfeed.engine.shuffle_stage import ShuffleStage
from fastfeed.errors import FeedStopped, FeedWarning, OptionError, StateError
from fastfeed.jobs.observer import observe, unobserve
from fastfeed.jobs.runner_samples import WatchedRunner
from fastfeed.options import AUTO, Auto, FeedOptions, Shuffle, refuse_too_many
from fastfeed.producers.process.supervisor import SharedWorkers
from fastfeed.runner.checkpoint import (
    fingerprint,
    merged_state,
    refuse_own_orders,
    resume_from,
    seed_of,
    state_of,
    warn_of_costs,
)
from fastfeed.source import (
    CachedRecords,
    CallableSource,
    IndexedSource,
    SharedSource,
    Source,
    arrays_from,
    cached,
    refuse_cache,
    source_from,
    uncached,
)
from fastfeed.tune.tuning_thread import TuningThread, count_of

LOG = logging.getLogger("fastfeed")
MAX_FOLLOWERS = 24  # a message to a worker process has no room for more file descriptors


class Finalizer:
    """Stops a feed when its runner is garbage or the interpreter ends."""

    def __init__(self, feed: Feed) -> None:
        self._feed: Feed | None = feed
        self._threads: Sequence[threading.Thread] = ()

    def run(self) -> None:
        """Stop the feed. At the exit of the interpreter also wait for its threads: one in native
        code would abort the process."""
        join_s = 0 if threading.main_thread().is_alive() else 1.0
        if self._feed is not None:
            self._feed.stop(join_s, failed=True)
        for thread in self._threads:
            if thread.ident is not None:  # else it was never started
                thread.join(join_s)

    def release(self) -> None:
        """Forget a feed that has failed and ends by itself. Keeping it would keep the runner alive:
        feed -> error -> traceback -> frames -> runner."""
        if self._feed is not None:
            self._threads = self._feed.threads
            self._feed = None


def releasing(finalizer: Finalizer) -> Callable[[], None]:
    """Return a `release` that the feed may hold. It keeps no reference to the finalizer, which
    would form a cycle that keeps the memory of the feed until garbage is collected."""
    release = weakref.WeakMethod(finalizer.release)

    def release_if_alive() -> None:
        method = release()
        if method is not None:
            method()

    return release_if_alive


STREAMS: list[weakref.ref[Stream]] = []  # of all runners of this process


class Stream:
    """A source with its options, and its feeds. Raise OptionError for options that cannot work."""

    def __init__(self, source: Any, options: FeedOptions) -> None:
        refuse_too_many(options.threads, options.processes)
        self.options = options
        source = arrays_from(source, options)
        self.source = source_from(source, options)
        if options.augment is not None and options.packed:
            importlib.import_module("fastfeed.augment.dali")  # raises MissingExtra without DALI
        refuse_cache(source, self.source, options=options)
        if options.lengths and not self.source.reader.records:
            raise OptionError(
                "Pad(lengths=True): must be single records (records=True, batch_size=32), got "
                "batches"
            )
        self.seed = seed_of(options)
        self.feed: Feed | None = None
        self._given = source
        self.stopped = False
        self._starting = threading.RLock()  # two threads may ask for the first feed at once
        self.resizing = threading.Lock()  # while a feed or its producers are made
        self._given_warnings: set[str] = set()
        self.resumed = False  # True if the first run begins in its middle
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._resume = ResumePoint()  # where the next feed begins
        self.given: dict[str, Any] | None = None  # mark of a loop that is behind
        # of `also()`: the stream whose workers produce these batches, and those that share them
        self._leader: Stream | None = None
        self._followers: list[weakref.ref[Stream]] = []
        self._session_snapshot: Callable[[], Snapshot] | None = None
        self._rebatcher: Rebatcher | None = None  # of the present feed
        self._watch: WatchedRunner | None = None  # from the first start on
        self._tuning: TuningThread | None = None
        self._decided: tuple[Decision, ...] = ()  # before the first feed
        STREAMS.append(weakref.ref(self, STREAMS.remove))
        self._sink = ""  # the name of the one that takes the batches

    def current_feed(self, *, each: bool = False) -> Feed:
        """Return the feed for a loop over whole runs, or over `each` epoch.

        Raise FeedStopped after the end of an iterator, or of the runner that owns the workers.
        """
        with self._starting:
            per_run = self.options.epochs if each else self.options.epochs or 1
            if self._leader is not None and self._leader.stopped:
                raise FeedStopped(
                    "the runner that shares its workers was stopped: make new runners to go on"
                )
            # not started yet, or left in the last epoch of its run
            if self._leader is not None and self._leader.feed is None:
                self._leader.current_feed()
            if self.feed is not None and not self.feed.ended:
                self.feed.schedule.change(per_run, each=each)
                return self.feed
            if self.feed is not None and not self.source.repeatable:
                raise FeedStopped(
                    "the source is an iterator and has ended: pass the function that makes it, to "
                    "iterate again"
                )
            return self._loop_feed(replace(self._resume, per_run=per_run, each=each))

    def for_session(self) -> Feed:
        """Return the feed for the queue of a session: one run, without end unless epochs= is given.

        Raise StateError for a restored state that a session cannot continue.
        """
        resume = replace(self._resume, per_run=self.options.epochs, once=True)
        if resume.pool is not None:
            raise StateError(
                "the state has records in the shuffle pool of a loop, which a session's queue does "
                "not have: continue in a loop, or save with shuffle=False"
            )
        if resume.left == 0:
            raise run_is_over()
        return self._new_feed(resume)

    def pass_over(self, feed: Feed, epoch: int, *, counts: tuple[int, int]) -> Feed | None:
        """Return the feed for the epoch after one that was left early; None after the last."""
        if self._skip_to(feed, epoch + 1, counts=counts):
            return None if feed.schedule.over else feed
        over = self._resume.run_first == self._resume.epoch
        return None if over else self.current_feed(each=True)

    def next_run(self) -> Feed:
        """Return the feed for a loop that begins a run. The rest of the present run is skipped."""
        feed = self.current_feed()
        counts = feed.counts
        if feed.take() is not None:
            self._skip_to(feed, feed.schedule.first + (self.options.epochs or 1), counts=counts)
        return self.current_feed()

    @property
    def sized(self) -> bool:
        """True if the length of an epoch is known, even if the number of its batches is not."""
        return isinstance(self.source, IndexedSource)

    @property
    def run_batches(self) -> int | None:
        """Batches of every run that a loop takes from its beginning; None if unknown."""
        items, size = self._epoch_items, self.options.batch_size or 1
        if items is None or (self._rebatcher is not None and self._rebatcher.grown):
            return None
        last = size - 1 if self.options.last_batch == "keep" else 0
        return (items + last) // size * (self.options.epochs or 1)

    @cached_property
    def batch_rows(self) -> int | None:
        """Records of every batch that a loop takes; None where batches differ."""
        size, records = self.options.batch_size, self._epoch_items
        even = records is not None and size is not None and not records % size
        return size if even or self.options.last_batch == "drop" else None

    @property
    def _epoch_items(self) -> int | None:
        """The records of every epoch, or the batches that are delivered as they are; None where
        epochs differ, records may be left out, or batches are cut anew."""
        options, source = self.options, self.source
        skips = options.skips or options.on_worker_death != "raise"
        recut = not source.reader.records and options.batch_size is not None
        skips = skips or options.filter is not None or options.stealing
        if skips or recut or not isinstance(source, IndexedSource):
            return None
        return source.epoch_items

    def share(self, other: Stream) -> None:
        """Let the workers of this stream also produce the batches of `other`. Raise OptionError for
        an iterator, which cannot be iterated again, and for too many streams."""
        if len(self._followers) == MAX_FOLLOWERS:
            raise OptionError(
                f"also(): {MAX_FOLLOWERS} runners share these workers already: make a FeedRunner"
            )
        if not other.source.repeatable:
            raise OptionError(
                "also() of an iterator, which can be read only once: pass the function that makes "
                "it, or an object with len() and [index]"
            )
        other.follow(self)
        self._followers.append(weakref.ref(other))

    def follow(self, leader: Stream) -> None:
        """Let the workers of `leader` produce these batches."""
        self._leader = leader

    def begin_stop(self) -> bool:
        """Let every later request raise FeedStopped. Return True the first time."""
        # set before the feeds are stopped: a thread that starts one meanwhile checks it afterwards
        first, self.stopped = not self.stopped, True
        return first

    def stop_followers(self) -> None:
        """End the feeds that share these workers, for good."""
        for follower in self.living_followers():
            if follower.feed is not None:
                follower.feed.stop(0)
                follower.unwatch()

    def release_cache(self) -> None:
        """Give the memory of a cache back: the feeds were stopped for good."""
        data = self.__dict__.get("_data")
        if isinstance(data, CachedRecords):
            data.release()

    def measure_session(self, snapshot: Callable[[], Snapshot]) -> None:
        """Take snapshots from `snapshot`: the queue of a session measures its consumer in the
        graph."""
        self._session_snapshot = snapshot

    def snapshot(self) -> Snapshot:
        """Return the counters of every stage; all are 0 before anything was started."""
        feed = self.feed
        if feed is None:
            rows = tuple(StageRow() for _ in range(self.options.parallel))
            return Snapshot(0.0, StageRow(), StageRow(), 0, 0, rows)
        found, data = (self._session_snapshot or feed.snapshot)(), self._data
        return replace(
            found,
            remade=data.remade if isinstance(data, CachedRecords) else 0,
            one_reader=self._has_one_reader,
            tuning=self.tuning,
        )

    @property
    def _has_one_reader(self) -> bool:
        """True if more producers would wait for one iterator, or read copies of one stream."""
        source = self.source
        stream = isinstance(source, CallableSource) and not source.takes_worker
        return isinstance(source, SharedSource) or (stream and self.options.parallel == 1)

    @property
    def tuning(self) -> tuple[Decision, ...]:
        """What was decided where the number of producers is "auto", oldest first."""
        return self._decided if self._tuning is None else self._tuning.history

    @property
    def searches(self) -> bool:
        """True while a number of producers that is "auto" is looked for."""
        return self._tuning is not None and self._tuning.searches

    def _choose(self) -> None:
        """Choose what is "auto" and cannot change while a feed runs: the kind of producers, and the
        number of a callable's streams."""
        knobs = self.options.tuned
        if knobs and not self.shares and (len(knobs) > 1 or not self.source.ordered):
            # a quarter of the time that `import fastfeed` would take
            from fastfeed.tune.profile import chosen

            self.options, decision = chosen(self._given, self.source, options=self.options)
            self._lead()
            self._decided = (*self._decided, decision)
            LOG.info("%s", decision)

    def _tune(self) -> None:
        """Begin to change the number of producers that is "auto", of a feed that runs."""
        for knob in self.options.tuned if self.feed is not None and not self.shares else ():
            if self._tuning is None or self._tuning.knob != knob or not self._tuning.runs:
                self._tuning = TuningThread(self, knob, past=self.tuning)
                self._tuning.start()

    @property
    def source_name(self) -> str:
        """The type of the source, or the name of a callable."""
        return str(getattr(self._given, "__qualname__", type(self._given).__qualname__))

    @property
    def activity(self) -> str:
        """ "not started", "running", "ended" or "stopped"."""
        if self.stopped:
            return "stopped"
        if self.feed is None:
            return "not started"
        return "ended" if self.feed.ended else "running"

    def unwatch(self) -> None:
        """End the observation of the feed by the black box and metrics, and its tuning."""
        if self._tuning is not None:
            self._tuning.stop()
        watch, self._watch = self._watch, None
        if watch is not None:
            unobserve(watch)

    @property
    def shares(self) -> bool:
        """True if the workers are those of another stream."""
        return self._leader is not None

    def state(self, position: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the state of the consumer, at `position` if a sink knows it exactly."""
        if position is None:
            position = as_json(self.mark() if self.given is None else self.given)
        return state_of(
            position, seed=self.seed, stream=self._fingerprint, streams=self._resume.streams
        )

    def mark(self) -> dict[str, Any]:
        """Return the position behind the batch that was taken last; `given` is that of the loop,
        where batches are taken ahead of it."""
        return _position_of(self._resume) if self.feed is None else self.feed.mark()

    def restore(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Begin where `state` was saved, or the states of all ranks. Raise StateError after the
        start, OptionError for the state of another stream."""
        if self.feed is not None:
            raise StateError("restore() after the start: call it first, on a new FeedRunner")
        if isinstance(state, (list, tuple)):
            state = merged_state(state, self.source, options=self.options, stream=self._fingerprint)
        self._resume, self.seed = resume_from(
            state, stream=self._fingerprint, seed=self.options.seed
        )
        self.resumed = True
        warn_of_costs(self.source, self._resume, producers=self.options.parallel)

    def resize(self, wanted: Mapping[str, int | str]) -> None:
        """Change the numbers of producers to those of `wanted`, by the names of the options. Raise
        what `FeedRunner.resize` raises."""
        if self.shares:
            raise StateError(
                "resize() of a runner made by also(): its workers are those of the first runner, "
                "which can be resized"
            )
        with self.resizing:
            numbers = {name: _number_of(n, self.options, knob=name) for name, n in wanted.items()}
            found = {name for name, n in wanted.items() if isinstance(n, Auto)}
            if not found <= set(self.options.tuned):
                return  # the user has set a number meanwhile
            _refuse_kinds(self.options, numbers)
            for other in (self, *self.living_followers()):
                if not other.source.ordered:
                    raise OptionError(
                        f"resize({_in_words(numbers)}): each producer of {other.source_name}, a "
                        "callable, has a stream of its own, which no other can go on with. Pass an "
                        "iterable or an indexable; or save state(), and restore() it with another "
                        "number"
                    )
            self._have(numbers)
            self._tune()

    def _have(self, numbers: Mapping[str, int]) -> None:
        """Go on with so many producers, by the names of the options."""
        before = self.options
        options = before.with_workers(
            numbers.get("processes", before.processes),
            numbers.get("producers", before.remote_producers),
        )
        options = replace(options, threads=numbers.get("threads", options.threads))
        running = before if self.feed is not None else None
        refuse_too_many(options.threads, options.processes, running=running)
        if self.feed is not None:
            self.feed.resize(uncached(options))
        self.options = options
        self._lead()

    def _lead(self) -> None:
        """Tell the streams that share the workers how many there are."""
        workers = self.options.processes, self.options.remote_producers
        for follower in self.living_followers():
            follower.options = follower.options.with_workers(*workers)

    def _start_with(self, workers: SharedWorkers) -> None:
        """Make a feed for the workers of the leader, before they start. After a restart it
        continues at the position of the feed before it."""
        if self.feed is not None:
            self.feed.stop(0)
            taken = self.state(self.feed.state())
            self._resume, _ = resume_from(taken, stream=self._fingerprint, seed=None)
            self._forget_feed()
        self._loop_feed(replace(self._resume, per_run=self.options.epochs or 1, held=True), workers)

    def living_followers(self) -> list[Stream]:
        """Return the streams whose batches these workers make, too."""
        return [follower for ref in self._followers if (follower := ref()) is not None]

    def _skip_to(self, feed: Feed, epoch: int, *, counts: tuple[int, int]) -> bool:
        """Skip to `epoch`. Return True if the present feed continues, after the rest of its epoch;
        else the next feed begins there."""
        # shared workers cannot restart for one of their feeds
        if self._leader is not None:
            while feed.take() is not None:
                pass
            return True
        feed.stop()
        self._forget_feed()
        self._resume = feed.schedule.from_epoch(epoch, counts)
        return False

    @cached_property
    def _data(self) -> Any:
        """The source of the feeds, with its cache."""
        return cached(self._given, self.options, seed=self.seed)

    def _loop_feed(self, resume: ResumePoint, workers: SharedWorkers | None = None) -> Feed:
        options, shuffle = self.options, self._record_shuffle()
        if shuffle is not None:
            if options.batch_size is None:
                raise OptionError(
                    f"shuffle={options.shuffle!r} draws records into new batches: it needs "
                    "batch_size=, or use shuffle=False"
                )
            stage = ShuffleStage(
                shuffle, options, seed=self.seed, epoch=resume.epoch, state=resume.pool
            )
            return self._new_feed(
                replace(resume, starts=stage.again(resume.starts)), stage, workers=workers
            )
        cutter: Cutter | None = None
        if options.stealing:  # a batch that another rank may have to repeat is an item
            pass
        elif options.batch_size is not None:
            cutter = Rebatcher(options.batch_size, options.last_batch, pad=options.joined_fill)
            self._rebatcher = cutter
        elif options.order == "kept" and not options.padded:  # otherwise sizes are not known
            cutter = SizeChecker(resume.sizes)
        return self._new_feed(resume, CutStage(cutter), workers=workers)

    def _new_feed(
        self,
        resume: ResumePoint,
        order: OrderStage | None = None,
        *,
        workers: SharedWorkers | None = None,
    ) -> Feed:
        refuse_own_orders(self.options, self.source, resumed=self.resumed)
        with self.resizing:
            self._choose()
            workers = workers or SharedWorkers()
            resume = replace(resume, ends=getattr(self.source, "ends", None))
            data, options = self._data, uncached(self.options)
            feed = Feed(data, options, seed=self.seed, resume=resume, order=order, workers=workers)
            if "idle" not in self._given_warnings:
                self._given_warnings.add("idle")
                _warn_of_idle_producers(self.source, self.options)
            feed.warnings.share(self._given_warnings)
            self.feed = feed
            # The threads of a forgotten runner end: they hold the feed, never this stream.
            finalizer = Finalizer(feed)
            self._finalizer = weakref.finalize(self, finalizer.run)
            feed.call_on_failure(releasing(finalizer))
            try:
                if self._watch is None or self._watch.over:
                    self._watch = observe(self, self.options.metrics_target)
                for follower in self.living_followers():
                    follower._start_with(workers)
                feed.start()
                self.refuse_stopped()
                self._tune()
            except BaseException:  # the next call raises the same
                self.unwatch()
                feed.stop(0)
                self._forget_feed()
                raise
            return feed

    def refuse_stopped(self) -> None:
        """Raise FeedStopped if the runner was stopped, by any thread."""
        if self.stopped:
            raise FeedStopped("this runner was stopped: make a new FeedRunner to go on")

    def refuse_second(self, sink: str) -> None:
        """Raise StateError for a second sink: each would get only some of the batches."""
        self.refuse_stopped()
        if self._sink not in ("", sink):
            raise StateError(
                f"this runner feeds {self._sink}, and {sink} would get only some of the batches: "
                "make another FeedRunner, or runner.also(...) for one that shares the workers"
            )

    def claim(self, sink: str) -> None:
        """Deliver batches to this sink only. Raise what `refuse_second` raises."""
        self.refuse_second(sink)
        self._sink = sink

    def _forget_feed(self) -> None:
        """Forget the feed, which was stopped."""
        self.feed = None
        if self._finalizer is not None:
            self._finalizer.detach()

    def _record_shuffle(self) -> Shuffle | None:
        shuffle = self.options.shuffle
        if shuffle is True:
            return None if isinstance(self.source, IndexedSource) else Shuffle()
        return shuffle or None

    @cached_property
    def _fingerprint(self) -> dict[str, Any]:
        return fingerprint(self._given, self.source, options=self.options)


def _position_of(resume: ResumePoint) -> dict[str, Any]:
    return {
        **Position(resume.epoch, resume.starts, counts=resume.counts).state(),
        "run_first": resume.run_first,
        "sizes": {str(n): size for n, size in resume.sizes.items()},
        "pool": resume.pool,
        **({} if resume.claims is None else {"claims": resume.claims}),
    }


def _refuse_kinds(options: FeedOptions, wanted: Mapping[str, int]) -> None:
    """Raise OptionError for producers of a kind that the stream does not have."""
    kinds = {
        "threads": not options.workers,
        "processes": options.processes > 0,
        "producers": options.remote is not None,
    }
    own = " and ".join(f"{name}=" for name, has in kinds.items() if has)
    for name, number in wanted.items():
        if not kinds[name]:
            raise OptionError(
                f"resize({_in_words(wanted)}): this runner can change {own}, not {name}=: it has "
                "no such producers. Save state(), and restore() it in a runner that has them"
            )
        if number == 0:
            raise OptionError(
                f"resize({_in_words(wanted)}): {name}= must be at least 1; stop() ends all"
            )


def _number_of(given: Any, options: FeedOptions, *, knob: str) -> int:
    """Return a number of producers that is given, "auto" as the present one."""
    number: int = Auto(count_of(options, knob) or 1) if given == AUTO else given
    return number


def _in_words(wanted: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={number!r}" for name, number in wanted.items())


def _warn_of_idle_producers(source: Source, options: FeedOptions) -> None:
    """Warn about several producers for one iterator that no function of the user's follows."""
    work = (options.transform, options.augment, options.batch_transform, options.collate)
    if not isinstance(source, SharedSource) or options.parallel == 1 or any(work):
        return
    knobs = ", ".join(
        f"{name}={getattr(options, name)!r}"
        for name in ("threads", "processes", "remote")
        if getattr(options, name)
    )
    warnings.warn(
        f"{knobs} gain nothing here: the source is one iterator, which one producer at a time "
        "reads. Do the slow part in transform=, which runs in all producers, or pass a function "
        "that takes `worker` and yields the share worker.index of worker.count",
        FeedWarning,
        stacklevel=5,
    )

"""Producers as threads of the trainer: for work that waits or releases the interpreter lock
(GIL)."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.core.stats import (
    NO_SLOTS,
    SlotCounts,
    StageRow,
    copy,
    total,
)
from fastfeed.core.status import (
    FINISHED,
    MAKING,
    STARTING,
    THREAD,
    ProducerStatus,
    WorkerStatus,
    activity_of,
)
from fastfeed.core.user_code import is_own, is_users
from fastfeed.core.worker import Worker, batches_ahead
from fastfeed.errors import OptionError
from fastfeed.options import FeedOptions
from fastfeed.producers.builder import BatchBuilder, Outlet
from fastfeed.producers.inbox import EpochPermit, EpochPlan
from fastfeed.producers.loop import Producer, run_with_low_priority
from fastfeed.producers.reorder import MAX_EARLY, BoundedBuffer, ProducedBatch
from fastfeed.source import CallableSource, Source
from fastfeed.source.base import close_left
from fastfeed.source.reused_memory import ReusedMemory


class ProducerThread(NamedTuple):
    """A producer, its thread and its outlet."""

    thread: threading.Thread
    producer: Producer
    outlet: ThreadOutlet


class ThreadProducers:
    """Runs each producer in a daemon thread; all of them fill one buffer. The threads of a
    feed that does not lead run at lower priority."""

    def __init__(
        self, source: Source, options: FeedOptions, *, plan: EpochPlan, leads: bool = True
    ) -> None:
        ordered = source.ordered and options.window is not None
        self._source, self._plan = source, plan
        self._builder = BatchBuilder(source.reader, options)
        self._permit = EpochPermit(plan.allowed)
        passed = plan.passed or (0,) * options.threads  # by stream
        suspects = source.comparison.suspects if isinstance(source, CallableSource) else ()
        self._buffer = BoundedBuffer(
            options.threads,
            ordered=ordered,
            window=options.window or 0,
            gaps=plan.gaps,
            error_limit=options.error_limit,
            suspects=suspects,
            max_batches=options.prefetch or batches_ahead(options.threads),
            max_nbytes=options.memory_nbytes,
            max_depth=options.prefetch or MAX_EARLY,
        )
        self._run = Producer.run if leads else run_with_low_priority
        self._at_work: set[Producer] = set()
        self._producers: list[ProducerThread] = []
        self._added = 0
        self._left = StageRow()  # the counters of those that have left
        for i in range(options.threads):
            self._add(
                [
                    Worker(n, len(passed), plan.seed, plan.epochs.start, passed=passed[n])
                    for n in range(i, len(passed), options.threads)
                ]
            )

    def start(self) -> None:
        """Start every thread."""
        for thread in self.threads:
            thread.start()

    def resize(self, options: FeedOptions) -> None:
        """Change the number of threads, of a source of one order. Those that leave put what they
        work on. Raise OptionError where the system refuses a thread: the number stays."""
        if self.stopped:
            return
        stay = [one for one in self._producers if not one.outlet.retired]
        for one in stay[options.threads :]:
            one.outlet.retired = True
        self._forget_left()
        known = self._producers
        try:
            for _ in range(options.threads - len(stay)):
                self._start_another()
        except RuntimeError as error:
            started = [one for one in self._producers if one not in known]
            for one in started:
                one.outlet.retired = True
            raise OptionError(
                f"threads={options.threads:d} do not fit: the system let "
                f"{len(stay) + len(started)} start, and said: {error}. Use fewer threads=, or "
                "raise `ulimit -u` or pids.max of the control group"
            ) from error
        self._buffer.max_batches = options.prefetch or batches_ahead(options.threads)

    def _start_another(self) -> None:
        """Start a producer in the present epoch, or leave everything as it is."""
        worker = Worker(self._added, self._added + 1, self._plan.seed, self._plan.epochs.start)
        with self._buffer.changing():
            first = self._buffer.join()
        thread = self._add([worker], skip=first)
        try:
            thread.start()
        except RuntimeError:
            *self._producers, failed = self._producers
            self._at_work.discard(failed.producer)
            with self._buffer.changing():
                self._buffer.leave(first)
            raise

    def _forget_left(self) -> None:
        """Keep only the counters of the threads that have left."""
        left = [one for one in self._producers if one.outlet.retired and not one.thread.is_alive()]
        self._left = total([self._left, *(one.producer.row for one in left)])
        self._producers = [one for one in self._producers if one not in left]

    def _add(self, workers: Sequence[Worker], skip: int = 0) -> threading.Thread:
        outlet = ThreadOutlet(self._buffer, self._permit)
        producer = Producer(
            workers,
            source=self._source,
            builder=self._builder,
            outlet=outlet,
            epochs=self._plan.epochs,
            skip=skip,
        )
        name = f"fastfeed-producer-{self._added}"
        thread = threading.Thread(target=self._work, args=(producer,), name=name, daemon=True)
        self._at_work.add(producer)
        self._added += 1
        self._producers = [*self._producers, ProducerThread(thread, producer, outlet)]
        return thread

    def _work(self, producer: Producer) -> None:
        try:
            self._run(producer)
        except BaseException as error:  # it could not be reported
            self._buffer.abandon(error)
        self._at_work.discard(producer)
        if not self._at_work:
            close_left(self._source)

    @property
    def threads(self) -> list[threading.Thread]:
        """The threads of the producers."""
        return [one.thread for one in self._producers]

    def allow(self, epochs: int, *, asked: int) -> None:
        """Allow `epochs` epochs in all to begin; the consumer waits for `asked` of them."""
        with self._buffer.changing():
            self._buffer.want(asked)
        self._permit.allow(epochs)

    def take(self, timeout_s: float) -> ProducedBatch | None:
        """Return the next batch or end of epoch, or None at the end. Raise the failure, or Timeout
        after `timeout_s`."""
        return self._buffer.take(timeout_s)

    @property
    def ready(self) -> bool:
        """True if `take` would return a batch without waiting."""
        return self._buffer.can_take

    def stop(self) -> None:
        """Stop the feed; the threads end when their present call returns."""
        self._permit.stop()
        self._buffer.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait for the stopped threads. Return True if all have ended within the limit."""
        deadline = time.perf_counter() + timeout_s
        others = [
            t for t in self.threads if t is not threading.current_thread() and t.ident is not None
        ]
        for thread in others:
            thread.join(max(0.0, deadline - time.perf_counter()))
        return not any(t.is_alive() for t in others)

    @property
    def stopped(self) -> bool:
        """True once `stop` was called."""
        return self._buffer.stopped

    @property
    def spec(self) -> BatchSpec | None:
        """Spec of the batches, or None before the first one."""
        return self._builder.spec

    @property
    def depth(self) -> tuple[int, int]:
        """Number of ready batches, and their bytes."""
        return self._buffer.depth, self._buffer.depth_nbytes

    def rows(self) -> tuple[StageRow, ...]:
        """Return the counters of each producer."""
        first, *others = (copy(one.producer.row) for one in self._producers)
        return (total((self._left, first)), *others)

    def audit(self) -> SlotCounts:
        """Return an empty audit: threads have no slots."""
        return NO_SLOTS

    read_s = 0.0  # they read the source themselves
    copied = 0  # threads lend no slots, so nothing is ever copied
    aside: tuple[str, ...] = ()  # a crash of a thread ends the whole process

    def status(self) -> tuple[list[ProducerStatus], list[WorkerStatus]]:
        """Return what each producer is doing; there are no worker processes."""
        frames = sys._current_frames()
        # with its own frame in it this would be a cycle, which holds the stream
        frames.pop(threading.get_ident(), None)
        found = [_status_of(thread, made, frames=frames) for thread, made, _ in self._producers]
        return [one._replace(number=number) for number, one in enumerate(found)], []

    def stacks(self) -> str:
        """Return the Python stack of every living producer."""
        return (
            "\n".join(map(stack_of, filter(threading.Thread.is_alive, self.threads)))
            or "no producer is alive"
        )


def _status_of(
    thread: threading.Thread, producer: Producer, *, frames: dict[int, FrameType]
) -> ProducerStatus:
    state, where = (STARTING if thread.ident is None else FINISHED), ""
    if thread.is_alive():
        state = activity_of(thread.ident)
        where = _line_in(frames.get(thread.ident or -1)) if state == MAKING else ""
    stream, item = producer.in_flight
    return ProducerStatus(
        kind=THREAD,
        state=state,
        worker=0,
        pid=os.getpid(),
        tid=thread.native_id or 0,
        stream=stream,
        item=item,
        record=-1,
        counters=copy(producer.row),
        where=where,
    )


def _line_in(frame: FrameType | None) -> str:
    """Return the innermost line of the user's code that fastfeed has called, or of a library, as
    "decode data.py:41"."""
    inner = ""
    while frame is not None and not is_own(frame.f_code.co_filename):
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        text = f"{name} {os.path.basename(path)}:{frame.f_lineno}"
        if is_users(path, name):
            return text
        inner = inner or text
        frame = frame.f_back
    return inner


def stack_of(thread: threading.Thread) -> str:
    """Return the innermost frames of the Python stack of a thread of this process."""
    frame = sys._current_frames().get(thread.ident or -1)
    return f"{thread.name}:\n{''.join(traceback.format_stack(frame)[-4:]).rstrip()}"


class ThreadOutlet(Outlet):
    """One thread's outlet into the buffer."""

    def __init__(self, buffer: BoundedBuffer, permit: EpochPermit) -> None:
        super().__init__(ordered=buffer.ordered, admit=permit.admit)
        self._buffer = buffer
        self._memory = ReusedMemory()
        self.retired = False  # True if the producer is to leave after its present batch

    def admit(self, position: int) -> bool:
        """Wait until the epoch at `position` may begin."""
        return super().admit(position) and not self.retired

    def end_epoch(self, epoch: int) -> None:
        """Note that this producer has put its whole epoch."""
        with self._buffer.changing():
            self._buffer.end_epoch(epoch)
        self.position = epoch + 1

    def end(self) -> None:
        """Note that this producer has ended, or left."""
        with self._buffer.changing():
            if self.retired:
                self._buffer.leave(self.position)
            else:
                self._buffer.end()

    def fail(self, error: BaseException, ticket: int | None) -> None:
        """Report the error that ends this producer."""
        with self._buffer.changing():
            self._buffer.fail(error, ticket, epoch=self.position)

    def skip(self, error: BaseException, ticket: int | None) -> None:
        """Report an error that costs one record or batch only."""
        with self._buffer.changing():
            self._buffer.skip(error, ticket, epoch=self.position)

    def look(self, batch: Batch, place: str) -> None:
        """Raise SpecError for a batch in the memory of an earlier one: batches are not copied.
        Watch this one, which others may change."""
        self._memory.refuse(batch.leaves, place)
        batch.watch(place)

    def put(self, produced: ProducedBatch, key: int, *, item: int, spec: BatchSpec | None) -> bool:
        """Put a batch into the buffer. Return False if no other is wanted."""
        put = self._buffer.put(produced, key, row=self.row, epoch=self.position)
        return put and not self.retired

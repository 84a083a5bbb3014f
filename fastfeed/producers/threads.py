"""Producers as threads of the trainer: for work that waits or releases the interpreter lock."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np

from fastfeed.core.batch import BatchSpec
from fastfeed.core.collate import Blank, aligned_arrays
from fastfeed.core.stats import (
    NO_SLOTS,
    SlotCounts,
    StageRow,
    copy,
)
from fastfeed.core.status import FINISHED, STARTING, THREAD, ProducerStatus, WorkerStatus
from fastfeed.core.worker import Worker
from fastfeed.options import FeedOptions
from fastfeed.producers.activity import activity_of
from fastfeed.producers.buffer import BoundedBuffer
from fastfeed.producers.builder import BatchBuilder
from fastfeed.producers.epoch_gate import EpochGate, EpochPlan
from fastfeed.producers.loop import Producer, run_politely
from fastfeed.producers.reorder import ProducedBatch
from fastfeed.producers.reorder import ReorderBuffer as Order
from fastfeed.source import Source


class ThreadProducers:
    """Producers in daemon threads, with one buffer for all. If the feed does not lead, the threads
    give way to those of the training."""

    def __init__(
        self, source: Source, options: FeedOptions, *, course: EpochPlan, leads: bool = True
    ) -> None:
        ordered = source.ordered and options.order == "kept"
        self._maker = BatchBuilder(source, options)
        self._gate = EpochGate(course.allowed)
        passed = course.passed or (0,) * options.threads  # by stream
        self._handoff = BoundedBuffer(
            Order[ProducedBatch](options.threads, ordered=ordered, error_limit=options.error_limit),
            max_batches=max(16, 4 * options.threads),
            max_nbytes=options.memory_nbytes,
        )
        self._producers = [
            Producer(
                [
                    Worker(n, len(passed), course.seed, course.epochs.start, passed=passed[n])
                    for n in range(i, len(passed), options.threads)
                ],
                source=source,
                maker=self._maker,
                outlet=ThreadOutlet(self._handoff, self._gate),
                epochs=course.epochs,
            )
            for i in range(options.threads)
        ]
        run = Producer.run if leads else run_politely
        self.threads = [
            threading.Thread(target=run, args=(p,), name=f"fastfeed-producer-{i}", daemon=True)
            for i, p in enumerate(self._producers)
        ]

    def start(self) -> None:
        """Start every thread."""
        for thread in self.threads:
            thread.start()

    def allow(self, epochs: int, *, asked: int) -> None:
        """Allow `epochs` epochs in all, of which the consumer waits for `asked`."""
        self._handoff.ask(asked)
        self._gate.allow(epochs)

    def take(self, timeout_s: float) -> ProducedBatch | None:
        """Return the next batch or end of epoch; None at the end. Raise the failure, or Timeout
        after `timeout_s`."""
        return self._handoff.take(timeout_s)

    @property
    def ready(self) -> bool:
        """True if `take` would return a batch without waiting."""
        return self._handoff.ready

    def stop(self) -> None:
        """Stop the feed: the threads end when their present call returns."""
        self._gate.close()
        self._handoff.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads, which must have been stopped; return True if all have ended in
        time."""
        deadline = time.perf_counter() + timeout_s
        others = [
            t for t in self.threads if t is not threading.current_thread() and t.ident is not None
        ]
        for thread in others:
            thread.join(max(0.0, deadline - time.perf_counter()))
        return not any(t.is_alive() for t in others)

    @property
    def stopped(self) -> bool:
        """True if `stop` was called."""
        return self._handoff.stopped

    @property
    def spec(self) -> BatchSpec | None:
        """The spec of the batches; known once there is one."""
        return self._maker.spec

    @property
    def depth(self) -> tuple[int, int]:
        """Batches that are ready, and their bytes."""
        return self._handoff.depth, self._handoff.depth_nbytes

    def rows(self) -> tuple[StageRow, ...]:
        """Return the counters of each producer."""
        return tuple(copy(p.row) for p in self._producers)

    def audit(self) -> SlotCounts:
        """Return an audit without slots."""
        return NO_SLOTS

    copied = 0  # batches are not in slots: the consumer may keep them
    aside: tuple[str, ...] = ()  # a thread cannot die alone

    def status(self) -> tuple[list[ProducerStatus], list[WorkerStatus]]:
        """Return what each producer is doing; there are no worker processes."""
        frames = sys._current_frames()
        # with its own frame in it this would be a cycle, which holds the stream
        frames.pop(threading.get_ident(), None)
        pairs = zip(self.threads, self._producers, strict=True)
        return [_status_of(thread, producer, frames=frames) for thread, producer in pairs], []

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
        state, where = activity_of(frames.get(thread.ident or -1))
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


def stack_of(thread: threading.Thread) -> str:
    """Return the innermost frames of the Python stack of a thread of this process."""
    frame = sys._current_frames().get(thread.ident or -1)
    return f"{thread.name}:\n{''.join(traceback.format_stack(frame)[-4:]).rstrip()}"


class ThreadOutlet:
    """The way of one thread's batches into the buffer."""

    def __init__(self, handoff: BoundedBuffer, gate: EpochGate) -> None:
        self.ordered = handoff.ordered
        self.row = StageRow()
        self._handoff = handoff
        self.admit = gate.admit
        self.end_epoch = handoff.end_epoch
        self.end = handoff.end
        self.position = 0

    @property
    def stopped(self) -> bool:
        """True if the feed was stopped."""
        return self._handoff.stopped

    def allocate(self, blanks: Sequence[Blank]) -> Sequence[np.ndarray[Any, Any]]:
        """Return memory of this process's own."""
        return aligned_arrays(blanks)

    def hold(self, key: int, item: int, *, record: int) -> None:
        """Do nothing: threads die with the trainer."""

    def fail(self, error: BaseException, ticket: int | None) -> None:
        """Pass on the error that ends this producer."""
        self._handoff.fail(error, ticket, epoch=self.position)

    def skip(self, error: BaseException, ticket: int | None) -> None:
        """Pass on an error that costs only one record or batch."""
        self._handoff.skip(error, ticket, epoch=self.position)

    def put(self, made: ProducedBatch, key: int, *, item: int, spec: BatchSpec | None) -> bool:
        """Put a batch into the buffer; return False if the feed was stopped."""
        return self._handoff.put(made, key, row=self.row)

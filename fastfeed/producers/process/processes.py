"""Producers as worker processes, for Python code that threads cannot run in parallel: the trainer's
end."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from fastfeed.core.batch import BatchSpec
from fastfeed.core.stats import SlotCounts
from fastfeed.errors import FeedError, OptionError, ProducerError, SpecError, StateError
from fastfeed.options import FeedOptions
from fastfeed.producers.inbox import EpochPlan
from fastfeed.producers.process.handle import CLOSED_CHANNELS, WorkerChannels, WorkerHandle
from fastfeed.producers.process.record_list import compact
from fastfeed.producers.process.ship import pack
from fastfeed.producers.process.supervisor import SharedWorkers
from fastfeed.producers.process.work_socket import REPLY, send_message
from fastfeed.producers.process.workers import Ready, WorkerGroup
from fastfeed.producers.reorder import ProducedBatch, Timeout
from fastfeed.ring.memory import CLOSED, Descriptor, notify
from fastfeed.ring.token import (
    BATCH,
    END,
    EPOCH,
    FAILURE,
    FORMAT,
    HOLE,
    READ_TOKENS,
    SKIP,
    STREAM,
    Token,
)
from fastfeed.source import CallableSource, Source

TOKEN_POLL_MS = 200
SPIN_S = 5e-5


class TokenReceiver:
    """Receiver: `fetch` tokens that have arrived, `wait` for more, `wake` the waiting consumer."""

    def __init__(self) -> None:
        tokens, self.write_end = map(Descriptor, os.pipe2(os.O_CLOEXEC))
        os.set_blocking(tokens.fd, False)
        wakeup = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        poll = select.poll()
        poll.register(tokens.fd, select.POLLIN)
        poll.register(wakeup.fd, select.POLLIN)
        # A call that uses them holds a reference: until it returns, their numbers cannot be reused.
        self._descriptors = (tokens, wakeup, poll)
        self._spins = False
        self._pid = os.getpid()
        self.unread: deque[Token] = deque()

    @property
    def is_copy(self) -> bool:
        """True in a forked copy of the trainer."""
        return os.getpid() != self._pid

    def refuse_copies(self) -> None:
        """Raise StateError in a forked copy of the trainer, which would take the trainer's
        batches."""
        if self.is_copy:
            raise StateError(
                "this process is a forked copy of the one that owns the FeedRunner and its "
                "batches: create a FeedRunner in this process"
            )

    def fetch(self) -> bool:
        """Append what has arrived to `unread`. Return True if there may be more."""
        tokens = self._descriptors[0]
        if tokens is CLOSED:
            return False
        pipe = ((tokens.fd,), (READ_TOKENS * FORMAT.size,))
        with contextlib.suppress(BlockingIOError):
            # One call that runs no Python code: no exception of a signal handler can come between
            # reading and storing.
            self.unread.extend(chain.from_iterable(map(FORMAT.iter_unpack, map(os.read, *pipe))))
        return len(self.unread) >= READ_TOKENS

    def wake(self) -> None:
        """End a wait."""
        notify(self._descriptors[1])

    def close(self) -> None:
        """Close the descriptors: nothing comes any more."""
        self._descriptors = (CLOSED, CLOSED, select.poll())
        self.write_end = CLOSED

    def wait(self, seconds: float, check: Callable[[], bool]) -> None:
        """Wait until a token or a wake-up arrives. If batches come every few microseconds, first
        call `check` repeatedly, which costs less than to be woken for each."""
        start = time.perf_counter()
        _, wakeup, poll = self._descriptors
        if self._spins:
            while time.perf_counter() < start + SPIN_S:
                if check():
                    return
        for fd, _ in poll.poll(min(max(seconds, 0.0) * 1000 + 1, TOKEN_POLL_MS)):
            if fd == wakeup.fd:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)
        self._spins = time.perf_counter() - start < SPIN_S


class ProcessProducers(WorkerGroup):
    """Worker processes, each with a ring of its own. All tokens come through one pipe, in the order
    of events. `workers` are the processes: the feed that `leads` starts and ends them, and they
    make the batches of the others, too."""

    def __init__(
        self,
        source: Source,
        options: FeedOptions,
        *,
        plan: EpochPlan,
        workers: SharedWorkers,
        leads: bool = True,
    ) -> None:
        self._receiver = TokenReceiver()
        super().__init__(source, options, plan=plan, wake=self._receiver.wake)
        self.copied = 0  # batches that were handed out as copies
        self.stopped = False
        self.spec: BatchSpec | None = None
        # Nobody reads it: once it is set, every worker sees it.
        self._stop = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._channels = CLOSED_CHANNELS
        self._leads = leads
        self._shared = workers
        workers.add(self)

    def start(self) -> None:
        """Start the workers, if they are this feed's. Raise OptionError for what cannot be sent to
        them."""
        if self._leads:
            self._shared.start()

    def prepare(self) -> Sequence[WorkerHandle]:
        """Pack the source. Return a handle for each process."""
        source = self._source
        if isinstance(source, CallableSource):
            given: Any = source.function
        else:
            given = replace(source.reader, data=compact(source.reader.data))
        shipment = pack((given, self._options.shipped()), what="the source")
        self._channels = WorkerChannels(self._receiver.write_end, self._stop, shipment)
        handles = self._add_workers(self._channels)
        if self._dispatcher is not None:
            self._dispatcher.start()
        return handles

    def resize(self, options: FeedOptions) -> None:
        """Change how many workers there are, for this feed, which leads, and those that share
        them."""
        self._shared.resize(options.processes, options.remote_producers)

    def change_workers(self, processes: int, remote: int) -> Sequence[WorkerHandle]:
        """Retire the workers that are too many. Return a handle for each new one."""
        with self._lock:
            if self.stopped:
                return []
            self._options = self._options.with_workers(processes, remote)
            handles = self._add_workers(self._channels)
            sizes = [handle.reader.slot_nbytes for handle in self._handles.values()]
            if any(sizes):
                self._adapt_to(max(sizes))
        return handles

    def close(self) -> None:
        """Drop the packed source: no other worker will unpack it."""
        self._channels.shipment.close()

    def allow(self, epochs: int, *, asked: int) -> None:
        """Allow `epochs` epochs in all to begin; the consumer waits for `asked` of them."""
        with self._lock:
            self._reorder.want(asked)
            further, self._allowed = epochs > self._allowed, max(epochs, self._allowed)
            if further and self._dispatcher is None:
                for handle in self._handles.values():
                    send_message(handle.work, REPLY.pack(b"A", epochs))
        if self._dispatcher is not None:
            self._dispatcher.notify()

    def take(self, timeout_s: float) -> ProducedBatch | None:
        """Return the next batch or end of epoch, or None at the end. Raise the failure, or Timeout
        after `timeout_s`."""
        deadline, reorder = 0.0, self._reorder
        self._receiver.refuse_copies()
        while True:
            with self._lock:
                if self.stopped:
                    return None
                if len(self._released) >= self._min_release:
                    self._give_back()
                if not reorder.ready or reorder.failure is not None:
                    self._drain()
                    self._give_back()  # also the slots of what was held back as copies
                if reorder.settled():
                    produced = self._open(reorder.pop())
                    if self._dispatcher is not None:
                        self._dispatcher.taken()
                    return produced
            now = time.perf_counter()
            deadline = deadline or now + timeout_s
            if now >= deadline and not reorder.failing:
                raise Timeout
            self._receiver.wait(reorder.max_wait_s(deadline - now), self._has_ready)

    @property
    def ready(self) -> bool:
        """True if `take` would return a batch without waiting."""
        with self._lock:
            if not self._reorder.ready:
                self._drain()
            return any(
                entry.batch if isinstance(entry, ProducedBatch) else entry[1][0] != HOLE
                for entry in self._reorder.ready
            )

    def stop(self) -> None:
        """Stop the feed, and the workers if they are this feed's. Do nothing in a forked copy of
        the trainer."""
        if self._receiver.is_copy:
            return
        self.stopped = True
        # The failure holds the consumer's frames, and the shared workers hold this object.
        self._reorder.failure = None
        notify(self._stop)
        if self._leads:
            self._shared.stop()
        if self._dispatcher is not None:
            self._dispatcher.stop()
        self._receiver.wake()

    def join(self, timeout_s: float) -> bool:
        """Wait for the stopped workers. Return True if all have ended within the limit."""
        if self._receiver.is_copy:
            return True
        deadline = time.perf_counter() + timeout_s
        # Shared workers go on when this feed has come to its end.
        mine = self._leads and (self.stopped or not self._shared.shared)
        ended = not mine or self._shared.join(timeout_s)
        if self._dispatcher is not None and (mine or self.stopped):
            ended = self._dispatcher.join(max(0.0, deadline - time.perf_counter())) and ended
        if ended and self.stopped and self._lock.acquire(timeout=0.1):
            self._reorder.clear()
            self._lock.release()
            if mine:
                self._shared.release()
        return ended

    def release(self) -> None:
        """Drop all descriptors; each is closed when no call uses it any more."""
        self._receiver.close()
        self.close()
        self._channels, self._stop = CLOSED_CHANNELS, CLOSED
        for handle in self._handles.values():
            handle.release()
        if self._dispatcher is not None:
            self._dispatcher.release()

    @property
    def threads(self) -> list[threading.Thread]:
        """The threads that serve the workers."""
        own = [] if self._dispatcher is None else [self._dispatcher.thread]
        return [*self._shared.threads, *own]

    def audit(self) -> SlotCounts:
        """Return the number of slots in each state."""
        self._return_idle()
        return self._slots()

    def _open(self, ready: Ready | ProducedBatch | None) -> ProducedBatch | None:
        if ready is None or isinstance(ready, ProducedBatch):
            return ready
        produced, copied = ready[0].open_batch(ready[1], dispatched=self._dispatcher is not None)
        self.copied += copied
        return produced

    def tick(self) -> None:
        """Do what must not wait for the consumer, nor for the source's next item."""
        self._return_idle()
        if self._dispatcher is not None:
            self._dispatcher.pass_on()

    def _return_idle(self) -> None:
        """Return slots that the consumer has released, if it does not come back soon."""
        idle = self._released and not self._receiver.is_copy
        if idle and self._lock.acquire(blocking=False):
            try:
                self._give_back()
            finally:
                self._lock.release()

    def _has_ready(self) -> bool:  # True if a batch has arrived
        with self._lock:
            self._drain()
            return bool(self._reorder.ready)

    def _drain(self) -> None:
        """Take in all tokens that have arrived. Under the lock, like the methods below."""
        more = not self.stopped
        unread = self._receiver.unread
        while more:
            more = self._receiver.fetch()
            while unread:
                self._take_in(unread[0])
                unread.popleft()

    def _take_in(self, token: Token) -> None:
        kind, thread, slot, key, item, _, _, number = token
        handle = self._handles.get(number)
        if handle is None:
            return
        if kind in (BATCH, HOLE):
            known = handle.mismatched or kind == HOLE
            known = known or (handle.spec_checked and handle.has_memory(slot))
            if (known or self._await_memory(handle, slot)) and not handle.mismatched:
                self._insert(token, handle)
        elif kind == EPOCH and self._dispatcher is None:
            handle.end_epoch(thread, key)
            self._reorder.end_epoch(key)
        elif kind == END and thread not in handle.ended:
            handle.end(thread)
            if self._dispatcher is None:
                self._reorder.end()
        elif kind == FAILURE:
            self._reorder.fail(*handle.error(b"E", slot=slot), epoch=key)
        elif kind == SKIP:
            self._reorder.skip(*handle.error(b"K"), epoch=key)
        elif kind == STREAM:
            self._compare(handle, thread, item=item, digest=key)

    def _await_memory(self, handle: WorkerHandle, slot: int) -> bool:
        """Map the memory of a slot that is new, and check the spec of its batch. Return False if
        the worker is gone."""
        try:
            if not handle.await_memory(slot):
                return False
        except (OSError, MemoryError) as error:
            if getattr(error, "errno", 0) is None:  # an exception of a signal handler
                raise
            handle.mismatched = True
            text = f"the trainer cannot map batches of worker process {handle.task.index}: {error}"
            self._reorder.fail(ProducerError(text), None)
            return False
        self._check_spec(handle)
        self._adapt_to(max(1, handle.reader.slot_nbytes))
        return True

    def _compare(self, handle: WorkerHandle, stream: int, *, item: int, digest: int) -> None:
        try:
            self._comparison.add(stream, item, digest=digest)
            self._reorder.release()
        except OptionError as error:
            handle.mismatched = True
            self._reorder.fail(error, None)

    def _insert(self, token: Token, handle: WorkerHandle) -> None:
        _, stream, _, key, item, _, _, number = token
        if self._dispatcher is None:
            handle.count(stream, (key, item + 1))
            ready: Ready | ProducedBatch = handle, token
            if stream in self._comparison.suspects and self._reorder.needs(stream):
                ready = handle.copy_batch(token)  # another stream may need the slot to be compared
            self._reorder.insert(ready, key, stream=stream)
            return
        handle.count(stream)
        if self._dispatcher.has(number, key):
            epoch = self._dispatcher.item_of(number, key).position
            key_or_epoch = key if self._reorder.ordered else epoch
            self._reorder.insert((handle, token), key_or_epoch, epoch=epoch)
            self._dispatcher.received(number, key)

    def _check_spec(self, handle: WorkerHandle) -> None:
        """Fail unless all workers produce the same batches; the first one fixes the spec."""
        self.spec = self.spec or handle.spec
        difference = handle.adopt_spec(self.spec)
        if difference:
            self._reorder.fail(
                SpecError(
                    f"worker process {handle.task.index} produces different batches: {difference}"
                ),
                None,
            )

    def failed(self, error: Exception) -> None:
        """Report that workers cannot be started."""
        with self._lock:
            failure = (
                error
                if isinstance(error, FeedError)
                else ProducerError(f"no worker could be started: {error}")
            )
            self._reorder.fail(failure, None)
        self._receiver.wake()

    def busy(self, handle: WorkerHandle) -> bool:
        """Return True if a worker works for this feed."""
        return not self.stopped and self._is_busy(handle)

    def exited(self, handle: WorkerHandle, status: int, *, beside: bool) -> WorkerHandle | None:
        """Handle the end of a worker. Return its successor, or None."""
        if self.stopped:  # a signal handler that calls stop() may hold the lock
            handle.exit()
            return None
        with self._lock:
            self._drain()
            handle.exit()
            expected = handle.failed or len(handle.ended) == handle.task.threads
            successor, dispatcher = None, self._dispatcher
            if not expected and handle.page.last_words:  # it could not send them
                self._reorder.fail(handle.last_error(), None)
            elif not expected:
                successor = self._succeed(handle, status, beside=beside)
            if successor is None and dispatcher is not None:
                if expected and dispatcher.is_retired(handle.task.number):
                    self._leave(handle)
                dispatcher.detach(handle.task.number)
        self._receiver.wake()
        return successor

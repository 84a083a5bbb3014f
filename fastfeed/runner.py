"""FeedRunner: the one object that users hold. It owns a feed and hands it to a sink."""

from __future__ import annotations

import inspect
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import fields
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fastfeed.batch import Batch
from fastfeed.collate import AsProduced, Rebatcher
from fastfeed.errors import FeedStopped, FeedWarning, OptionError, StateError
from fastfeed.feed import Feed, new_seed
from fastfeed.options import FeedOptions, Shuffle, options_from
from fastfeed.source import IndexedSource, ends_for_good, source_from
from fastfeed.stats import Snapshot

if TYPE_CHECKING:
    from fastfeed.sinks.session_queue import SessionQueue


STOP_S = 1.8  # stop() promises two seconds


class FeedRunner:
    """Feeds the batches of `source` to a training loop, made by parallel producers.

    `source` is a callable that returns an iterator of batches (each producer calls it for a stream of its own; with a
    parameter `worker` it yields that share), an iterable or iterator (one stream; `transform` runs in parallel), or
    an indexable of records. The keywords are the fields of `FeedOptions`. Then either

        for batch in runner: ...                       # numpy arrays, any loop

    or, in a graph of tf.compat.v1,

        x, y = runner.get_inputs(); runner.start(sess)  # tensors; every sess.run takes the next batch

    Raises OptionError for keywords and sources that cannot work. What a batch must be is learned from the first one.
    """

    def __init__(self, source: Any, **options: Any) -> None:
        self.options = options_from(options)
        self._source = source
        self._seed = new_seed() if self.options.seed is None else int(self.options.seed)
        source_from(source, self.options)  # refuse what cannot work now, not at the first batch
        self._feed: Feed | None = None
        self._sink: SessionQueue | None = None
        self._taking: Feed | None = None  # a pass that take() has begun and not ended
        self._started = False
        self._stopped = False
        self._next_epoch = 0

    def __enter__(self) -> FeedRunner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def get_inputs(self, *, shapes: Any = None) -> Any:
        """Symbolic tensors with the structure of the batches, for the default graph of tf.compat.v1.

        The first batch is made here (and delivered later), so dtypes and static shapes are known; the batch
        dimension is static with last_batch="drop". `shapes`: record shapes in the structure of the batch, None where
        a dimension varies, for padded records whose first batch does not show which.

        Raises StateError after `start` or in a finalised graph, OptionError (queue smaller than a batch), SpecError,
        ProducerError, FeedTimeout, MissingExtra (no TensorFlow).
        """
        self._refuse_stopped()
        if self._sink is None:
            if self._started or self._feed is not None:
                raise StateError("get_inputs() after start(): call it first, it makes the queue that start() fills")
            from fastfeed.sinks.session_queue import SessionQueue, check_graph

            check_graph()
            feed = self._new_feed()
            try:
                self._sink = SessionQueue(feed, shapes=shapes, shuffle=self._session_shuffle(), seed=self._seed)
            except BaseException:
                self.stop()
                raise
        return self._sink.inputs

    @property
    def waited_s(self) -> Any:
        """A scalar float64 tensor: the seconds for which this step waited for its batch (after get_inputs)."""
        if self._sink is None:
            raise StateError("waited_s belongs to a session's queue: call get_inputs() first")
        return self._sink.waited

    def start(self, session: Any = None, coord: Any = None) -> FeedRunner:
        """Begins to fill the queue of `session`; without a session, begins to make batches for iteration.

        `session` is a tf.compat.v1 Session or a monitored one; its `run` raises ProducerError when a producer failed.
        With a `coord` (tf.train.Coordinator) the feed ends when it asks to stop, and its failure stops the others.
        Raises StateError when started twice, without get_inputs, or with a session of another graph.
        """
        self._refuse_stopped()
        if self._started:
            raise StateError("start() was called twice: one runner feeds one session; make a second FeedRunner")
        if session is None:
            if self._sink is not None:
                raise StateError("start() needs the session after get_inputs(): start(sess)")
            self._iterated()
        elif self._sink is None:
            raise StateError("start(session) needs the queue: call get_inputs() while the graph is built, and use it")
        else:
            self._sink.start(session, coord, owner=self)
        self._started = True
        return self

    def stop(self) -> None:
        """Ends every thread within two seconds; batches asked for afterwards raise FeedStopped. May be repeated."""
        again, self._stopped = self._stopped, True
        deadline = time.perf_counter() + (0 if again else STOP_S)
        if self._sink is not None:
            self._sink.stop(deadline)
        if self._feed is not None and not self._feed.stop(max(0.0, deadline - time.perf_counter())) and not again:
            warnings.warn(
                "producers did not end in time; no thread can be interrupted, so they end when their present call "
                f"returns:\n{self._feed.stacks()}",
                FeedWarning,
                stacklevel=2,
            )

    def __iter__(self) -> Iterator[Any]:
        """Batches as numpy arrays, all epochs of one pass.

        A loop that was left early goes on where it was; after the end a new pass begins with the next epoch.
        Raises ProducerError, SpecError, FeedTimeout, FeedStopped, OptionError.
        """
        self._refuse_stopped()
        if self._sink is not None:
            raise StateError("this runner feeds a session: iterate over another FeedRunner")
        return _batches(self, self._iterated())

    def take(self) -> Taken:
        """The next batch, for `with runner.take() as batch:`, which gives its memory back where the block ends.

        Raises StopIteration at the end of the source, and otherwise what iteration raises.
        """
        self._refuse_stopped()
        if self._sink is not None:
            raise StateError("this runner feeds a session: take() from another FeedRunner")
        feed = self._taking or self._iterated()
        batch = feed.take()
        self._taking = feed if batch is not None else None
        if batch is None:
            raise StopIteration
        return Taken(batch, feed.spec.rebuild(batch))

    def snapshot(self) -> Snapshot:
        """What every stage has done until now; `snapshot().starvation` is the share of time lost to input."""
        if self._feed is None:
            raise StateError("snapshot() before anything was started: call start() or iter(), or begin the loop")
        return self._sink.snapshot() if self._sink is not None and self._started else self._feed.snapshot()

    def _iterated(self) -> Feed:
        if self._feed is not None and not self._feed.ended:
            return self._feed
        if self._feed is not None and ends_for_good(self._source):
            raise FeedStopped("the source is an iterator and has ended: pass the function that makes it to go again")
        shuffle = self.options.shuffle
        if shuffle and not (shuffle is True and isinstance(source_from(self._source, self.options), IndexedSource)):
            raise OptionError(
                f"shuffle={shuffle!r} in plain iteration: only shuffle=True of an indexable source is possible; "
                "shuffle in the source, or feed a session, whose queue shuffles records"
            )
        feed = self._new_feed()
        size, last = self.options.batch_size, self.options.last_batch
        if size is not None:
            feed.deliver(Rebatcher(size, last, pad=self.options.pad))
        elif self.options.order == "kept":  # without order nobody can tell which batch is the last
            feed.deliver(AsProduced())
        return feed

    def _new_feed(self) -> Feed:
        self._feed = Feed(self._source, self.options, seed=self._seed, first_epoch=self._next_epoch)
        self._next_epoch += self.options.epochs or 1
        # A forgotten runner must not leave threads behind: they hold the feed, never the runner.
        ending = _Ending(self._feed)
        weakref.finalize(self, ending.run)
        self._feed.on_failure = ending.leave
        self._feed.start()
        return self._feed

    def _session_shuffle(self) -> Shuffle | None:
        """The queue's shuffle: an indexable that is shuffled by index needs no second one; padding keeps the order."""
        shuffle = self.options.shuffle
        if isinstance(shuffle, Shuffle):
            return shuffle
        indexed = shuffle is True and isinstance(source_from(self._source, self.options), IndexedSource)
        return None if shuffle is False or indexed or (shuffle is None and self.options.padded) else Shuffle()

    def _refuse_stopped(self) -> None:
        if self._stopped:
            raise FeedStopped("this runner was stopped: make a new FeedRunner to go on")


class Taken:
    """A batch for the length of a block: `with runner.take() as batch`.

    After the block its memory is used again, unless somebody still holds it: a list that the batch was put into, a
    view or a tensor made of one of its arrays, a second name for an array. They keep it as they always do.
    """

    def __init__(self, batch: Batch, value: Any) -> None:
        self._batch: Batch | None = batch
        self._value = value

    def __enter__(self) -> Any:
        return self._value

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        batch, value = self._batch, self._value
        self._batch = self._value = None
        if batch is None or batch.lease is None:
            return
        # Known holders: of the outermost object this function and the block's name; of an array the batch, too.
        # sys.getrefcount counts its own argument.
        if sys.getrefcount(value) <= 3 + any(leaf is value for leaf in batch.leaves) and not _held(value, batch):
            batch.lease.end()


def _held(value: Any, batch: Batch) -> bool:
    """Whether anybody has something that is inside the containers of `value`."""
    if not isinstance(value, (tuple, list, dict)):
        return False
    # Known holders of what is inside: the container, the name here and the argument; of an array the batch, too.
    for part in value.values() if isinstance(value, dict) else value:
        if sys.getrefcount(part) > 3 + any(leaf is part for leaf in batch.leaves) or _held(part, batch):
            return True
    return False


class _Ending:
    """What is to be done when a runner is forgotten, or the interpreter ends."""

    def __init__(self, feed: Feed) -> None:
        self._feed: Feed | None = feed
        self._threads: Sequence[threading.Thread] = ()

    def run(self) -> None:
        """At the interpreter's exit the threads are waited for: one that is inside native code then would abort it."""
        patience_s = 0 if threading.main_thread().is_alive() else 1.0
        if self._feed is not None:
            self._feed.stop(patience_s)
        for thread in self._threads:
            thread.join(patience_s)

    def leave(self) -> None:
        """The feed has failed and ends by itself. To hold it would be to hold its error, by the traceback of that the
        frames that hold the runner, and so the runner, for ever."""
        if self._feed is not None:
            self._threads = self._feed.threads
            self._feed = None


def _batches(runner: FeedRunner, feed: Feed) -> Iterator[Any]:
    """Holds the runner, which nobody else may: `for batch in FeedRunner(source)`."""
    while (batch := feed.take()) is not None:
        yield feed.spec.rebuild(batch)


FeedRunner.__init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # editors and help() show the knobs
    [
        inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        inspect.Parameter("source", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *(
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
            for f in fields(FeedOptions)
        ),
    ]
)

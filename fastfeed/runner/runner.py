"""FeedRunner: the one object that users hold. It owns a feed and hands it to a sink."""

from __future__ import annotations

import inspect
import json
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fastfeed.core.stats import Snapshot
from fastfeed.engine.feed import Feed
from fastfeed.errors import FeedStopped, FeedWarning, OptionError, StateError
from fastfeed.options import FeedOptions, Shuffle, options_from
from fastfeed.runner.batch_lease import BatchLease
from fastfeed.runner.epoch import Epoch
from fastfeed.runner.frameworks import FrameworkAdapters
from fastfeed.runner.passes import IterationManager
from fastfeed.runner.stream import Stream, batches_of
from fastfeed.source import IndexedSource

if TYPE_CHECKING:
    from fastfeed.runner.choosing import ExecutorChoice
    from fastfeed.sinks.session_queue import SessionQueue


MOST_SHARED = 24  # a message to a worker process has no room for the descriptors of more
STOP_S = 1.8  # stop() promises two seconds


class FeedRunner(FrameworkAdapters):
    """Feeds the batches of `source` to a training loop, made by parallel producers.

    `source` is a callable that returns an iterator of batches (each producer calls it for a stream
    of its own; with a parameter `worker` it yields that share), an iterable or iterator (one
    stream; `transform` runs in parallel), or an indexable of records. The keywords are the fields
    of `FeedOptions`; `augment` is a `fastfeed.augment.Augment` of operations on the records'
    images. Then either

        for batch in runner: ...                       # numpy arrays, any loop

    or, in a graph of tf.compat.v1,

        x, y = runner.get_inputs(); runner.start(sess)  # tensors; every sess.run takes the next batch

    Raises OptionError for keywords and sources that cannot work. What a batch must be is learned
    from the first one.
    """

    def __init__(self, source: Any, **options: Any) -> None:
        self.options = options_from(options)
        self._stream = Stream(source, self.options)
        self._sink: SessionQueue | None = None
        self._started = False
        self._stopped = False
        self._feeds = ""  # what takes the batches: there is one taker only
        self._taken_in: IterationManager | None = None

    def __enter__(self) -> FeedRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def get_inputs(self, *, shapes: Any = None) -> Any:
        """Symbolic tensors with the structure of the batches, for the default graph of
        tf.compat.v1.

        The first batch is made here (and delivered later), so dtypes and static shapes are known;
        the batch dimension is static with last_batch="drop". `shapes`: record shapes in the
        structure of the batch, None where a dimension varies, for padded records whose first batch
        does not show which.

        Raises StateError after `start` or in a finalised graph, OptionError (queue smaller than a
        batch), SpecError, ProducerError, FeedTimeout, MissingExtra (no TensorFlow).
        """
        self._refuse_second("a session")
        if self._sink is None:
            if self._started or self._feed is not None:
                raise StateError(
                    "get_inputs() after start(): call it first, it makes the queue that start() "
                    "fills"
                )
            if self._stream.shares:
                raise StateError(
                    "get_inputs() of a runner made by also(): iterate over it, or make a FeedRunner"
                )
            from fastfeed.sinks.session_queue import SessionQueue, check_graph

            check_graph()
            self._claim("a session")
            feed = self._stream.for_session()
            try:
                self._sink = SessionQueue(
                    feed, shapes=shapes, shuffle=self._session_shuffle(), seed=self._stream.seed
                )
                self._stream.of_session = self._sink.snapshot
            except BaseException:
                self.stop()
                raise
        return self._sink.inputs

    @property
    def waited_s(self) -> Any:
        """A scalar float64 tensor: the seconds for which this step waited for its batch (after
        get_inputs)."""
        if self._sink is None:
            raise StateError("waited_s belongs to a session's queue: call get_inputs() first")
        return self._sink.waited

    def start(self, session: Any = None, coord: Any = None) -> FeedRunner:
        """Begins to fill the queue of `session`; without a session, begins to make batches for
        iteration.

        `session` is a tf.compat.v1 Session or a monitored one; its `run` raises ProducerError when
        a producer failed. With a `coord` (tf.train.Coordinator) the feed ends when it asks to stop,
        and its failure stops the others. Raises StateError when started twice, without get_inputs,
        or with a session of another graph.
        """
        self._refuse_stopped()
        if self._started:
            raise StateError(
                "start() was called twice: one runner feeds one session; make a second FeedRunner"
            )
        if session is None:
            if self._sink is not None:
                raise StateError("start() needs the session after get_inputs(): start(sess)")
            self._stream.iterated()
        elif self._sink is None:
            raise StateError(
                "start(session) needs the queue: call get_inputs() while the graph is built, and "
                "use it"
            )
        else:
            self._sink.start(session, coord, owner=self)
        self._started = True
        return self

    def stop(self) -> None:
        """Ends every thread within two seconds; batches asked for afterwards raise FeedStopped. May
        be repeated."""
        again, self._stopped = self._stopped, True
        deadline = time.perf_counter() + (0 if again else STOP_S)
        if self._sink is not None:
            self._sink.stop(deadline)
        self._stream.stop_followers()
        ended = self._feed is None or self._feed.stop(max(0.0, deadline - time.perf_counter()))
        self._stream.unwatch()
        if self._feed is not None and not ended and not again:
            warnings.warn(
                "producers did not end in time; no thread can be interrupted, so they end when "
                f"their present call returns:\n{self._feed.stacks()}",
                FeedWarning,
                stacklevel=2,
            )

    def __iter__(self) -> Iterator[Any]:
        """Batches as numpy arrays: one run of `epochs` epochs, or of one.

        A loop that was left early goes on where it was; after the end a new run begins with the
        next epoch, made by the same producers, which wait for it. Raises ProducerError, SpecError,
        FeedTimeout, FeedStopped, OptionError.
        """
        self._claim("a loop")
        return batches_of(self._stream, self._stream.iterated())

    def take(self) -> BatchLease:
        """The next batch, for `with runner.take() as batch:`, which gives its memory back where the
        block ends.

        Raises StopIteration where iteration would end, and otherwise what iteration raises.
        """
        self._claim("a loop")
        feed = self._stream.iterated()
        batch = feed.take()
        if batch is None:
            raise StopIteration
        return BatchLease(batch, feed.spec.rebuild(batch))

    def snapshot(self) -> Snapshot:
        """What every stage has done until now; `snapshot().starvation` is the share of time lost to
        input."""
        return self._stream.snapshot()

    @property
    def augments(self) -> ExecutorChoice | None:
        """Who augments and why, once augment_on="auto" has measured it."""
        return self._stream.choice

    def epochs(self) -> Iterator[Epoch]:
        """One epoch after another, each to be iterated over: `epochs=` of them, or without end.

        The next one is made while the last batches of this one are consumed. Of an epoch that was
        left early the rest is passed over. Raises what iteration raises.
        """
        self._claim("a loop")
        return self._each_epoch()

    def state(self) -> dict[str, Any]:
        """What the training loop has consumed, as a small dict for JSON: save it beside the model.

        Every batch that was handed out counts, however many more are made already. Raises
        StateError for a session whose queue shuffles, of which nobody can tell what it has given.
        """
        return self._stream.state(None if self._sink is None else self._sink.state())

    def restore(self, state: dict[str, Any]) -> FeedRunner:
        """Goes on where `state` was saved, with any number of threads and processes; before
        anything is started.

        What was made ahead then and not consumed is made again. Raises StateError after the start,
        and OptionError for a state of another stream, naming what differs.
        """
        self._refuse_stopped()
        self._stream.restore(state)
        return self

    def also(self, source: Any, **options: Any) -> FeedRunner:
        """A second runner for `source`, such as for validation: the workers of this one make its
        batches, too.

        Its options are its own, but for those that make the workers. It is iterated over as any
        other, each time one exact pass; training's producers go first where cores are scarce, and
        go on filling their buffer meanwhile. Call it before anything is started (StateError);
        OptionError for processes=, which is this runner's.
        """
        self._refuse_stopped()
        if self._feed is not None or self._stream.shares:
            raise StateError(
                "also() after the start, or of a runner that was made by also(): call it on the "
                "first one"
            )
        if "processes" in options:
            raise OptionError(
                "also(processes=...): the worker processes are those of the first runner: leave it "
                "out"
            )
        names = (
            "threads",
            "processes",
            "seed",
            "memory",
            "on_worker_death",
            "stall_timeout_s",
            "metrics",
        )
        runner = FeedRunner(
            source, **{name: getattr(self.options, name) for name in names} | options
        )
        if self._stream.followers == MOST_SHARED:
            raise OptionError(
                f"also(): {MOST_SHARED} runners share these workers already: make a FeedRunner"
            )
        self._stream.share(runner._stream)
        return runner

    def state_dict(self) -> dict[str, str]:
        """`state()` for torch: one value, since torch.distributed.checkpoint reads only keys that a
        new runner has."""
        return {"state": json.dumps(self.state())}

    def load_state_dict(self, state_dict: Mapping[str, str]) -> None:
        """What `state_dict()` gave, to `restore`, whose errors it raises."""
        if "state" not in state_dict:
            raise OptionError(
                "load_state_dict(): needed what state_dict() gave; what state() gave goes to "
                "restore()"
            )
        self.restore(json.loads(state_dict["state"]))

    def _each_epoch(self) -> Iterator[Epoch]:
        feed: Feed | None = self._stream.iterated(each=True)
        while feed is not None:
            epoch = Epoch(self, feed)
            yield epoch
            self._refuse_stopped()
            complete, epoch.complete = epoch.complete, True
            if not complete and not self._stream.kind.again:
                return  # there is no other epoch: the rest is there for whoever iterates
            counts = feed.counts
            if not complete and feed.take() is not None:
                feed = self._stream.pass_over(feed, epoch.number, counts=counts)
            elif feed.ended or feed.schedule.over:
                return

    def _session_shuffle(self) -> Shuffle | None:
        """The queue's shuffle: an indexable that is shuffled by index needs no second one; padding
        keeps the order."""
        shuffle = self.options.shuffle
        if isinstance(shuffle, Shuffle):
            return shuffle
        indexed = shuffle is True and isinstance(self._stream.kind, IndexedSource)
        return (
            None
            if shuffle is False or indexed or (shuffle is None and self.options.padded)
            else Shuffle()
        )

    @property
    def _feed(self) -> Feed | None:
        return self._stream.feed

    def _passes(self, taker: str) -> IterationManager:
        self._refuse_second(taker)
        if self._taken_in is None or self._taken_in.sink != taker:
            owner = weakref.ref(self)

            def claim() -> None:
                runner = owner()
                if runner is not None:  # else nobody can ask it for anything
                    runner._claim(taker)

            self._taken_in = IterationManager(self._stream, claim, sink=taker)
        return self._taken_in

    def _claim(self, taker: str) -> None:
        self._refuse_second(taker)
        self._feeds = taker

    def _refuse_second(self, taker: str) -> None:
        """One runner has one taker: two would share its batches between them."""
        self._refuse_stopped()
        if self._feeds not in ("", taker):
            raise StateError(
                f"this runner feeds {self._feeds}, and {taker} would get only some of the batches: "
                "make another FeedRunner, or runner.also(...) for one that shares the workers"
            )

    def _refuse_stopped(self) -> None:
        if self._stopped:
            raise FeedStopped("this runner was stopped: make a new FeedRunner to go on")


FeedRunner.__init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # editors and help() show the knobs
    [
        inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        inspect.Parameter("source", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *(
            inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type
            )
            for f in fields(FeedOptions)
        ),
    ]
)

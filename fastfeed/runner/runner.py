"""FeedRunner, the object that users hold. It owns a feed and connects it to a sink."""

from __future__ import annotations

import inspect
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from fastfeed.core.stats import Decision, Snapshot
from fastfeed.core.status import FeedStatus
from fastfeed.engine.feed import Feed
from fastfeed.engine.order_stage import PRODUCERS_JOIN_S
from fastfeed.errors import FeedWarning, OptionError, StateError
from fastfeed.options import FeedOptions, Shuffle, options_from
from fastfeed.runner.iteration import Epoch, IterationManager, Turns, batches_of
from fastfeed.runner.stream import Stream
from fastfeed.source import IndexedSource
from fastfeed.source.epoch_ends import refuse_state_of

if TYPE_CHECKING:
    from fastfeed.sinks.session_queue import SessionQueue

Options = ParamSpec("Options")
Returned = TypeVar("Returned")
Documented = TypeVar("Documented", bound=type)


def with_options(
    options: Callable[Options, Any],
) -> Callable[[Callable[..., Returned]], Callable[Concatenate[Any, Any, Options], Returned]]:
    """Give a method (self, source, **options) the keywords of `options`: for type checkers by its
    type, for editors and help() by its signature."""

    def decorate(
        method: Callable[..., Returned],
    ) -> Callable[Concatenate[Any, Any, Options], Returned]:
        own = inspect.signature(method)
        parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        parameters += inspect.signature(options).parameters.values()
        method.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return method

    return decorate


def documented(options: type) -> Callable[[Documented], Documented]:
    """Append the description of `options` to the docstring of a class."""

    def decorate(kind: Documented) -> Documented:
        if kind.__doc__ and options.__doc__:  # python -OO has none
            kind.__doc__ = (
                f"{inspect.cleandoc(kind.__doc__)}\n\n{inspect.cleandoc(options.__doc__)}"
            )
        return kind

    return decorate


@documented(FeedOptions)
class FeedRunner:
    """Produce the batches of `source` in parallel and feed them to a training loop.

    `source` is one of

    - a callable that returns an iterator of batches: each producer calls it for a stream of its
      own. If it takes an argument `worker` (a `Worker`), it yields that producer's share;
    - an iterable or iterator: one stream; `transform=` is what runs in parallel;
    - an indexable (`len()` and `[index]`) of records, collated to `batch_size`;
    - arrays of one length in a tuple, dict or structured array: their rows are the records.

    Iterate over the runner for numpy arrays,

        for batch in runner: ...

    or, in a graph of tf.compat.v1, let every `sess.run` take the next batch:

        x, y = runner.get_inputs()
        runner.start(sess)

    or call `dataset()`, `keras()`, `torch()`, `jax()` or `prefetch_to_device()`: what these return
    can be iterated over repeatedly. They import their framework, and raise what iteration raises,
    StateError where the runner feeds another sink, and MissingExtra without the framework.

    Structure, dtypes and record shapes of batches are learned from the first one. Raise OptionError
    for options and sources that cannot work.
    """

    @with_options(FeedOptions)
    def __init__(self, source: Any, **options: Any) -> None:
        self._stream = Stream(source, options_from(options))
        self._sink: SessionQueue | None = None
        self._started = False
        self._turns = Turns("this runner", self._stream)
        self._iterations: IterationManager | None = None

    @property
    def options(self) -> FeedOptions:
        """The options, with the present numbers of producers."""
        return self._stream.options

    def __enter__(self) -> FeedRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stop(failed=isinstance(error, (Exception, KeyboardInterrupt)))

    def get_inputs(self, *, shapes: Any = None) -> Any:
        """Return symbolic tensors with the structure of the batches, in the default graph of
        tf.compat.v1.

        The first batch is produced here (and delivered later), so dtypes and static shapes are
        known; the batch dimension is static with last_batch="drop". `shapes`: record shapes in the
        structure of the batch, None where a dimension varies, for padded records whose first batch
        does not show which.

        Raise StateError after `start` or in a finalised graph, OptionError (queue smaller than a
        batch), SpecError, ProducerError, FeedTimeout, MissingExtra (no TensorFlow).
        """
        self._stream.refuse_second("a session")
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
            self._stream.claim("a session")
            feed = self._stream.for_session()
            try:
                self._sink = SessionQueue(
                    feed, shapes=shapes, shuffle=self._session_shuffle(), seed=self._stream.seed
                )
                self._stream.measure_session(self._sink.snapshot)
            except BaseException:
                self.stop()
                raise
        return self._sink.inputs

    @property
    def waited_s(self) -> Any:
        """Seconds for which this step waited for its batch: a scalar float64 tensor. Raise
        StateError before `get_inputs`."""
        if self._sink is None:
            raise StateError("waited_s belongs to a session's queue: call get_inputs() first")
        return self._sink.waited

    def start(self, session: Any = None, coord: Any = None) -> FeedRunner:
        """Start to fill the queue of `session`; without a session, start to produce batches for
        iteration. Return the runner.

        `session` is a tf.compat.v1 Session or a monitored one; its `run` raises ProducerError when
        a producer failed. With a `coord` (tf.train.Coordinator) the feed ends when it asks to stop,
        and a failure of the feed stops the others. Raise StateError when started twice, without
        get_inputs, or with a session of another graph.
        """
        self._stream.refuse_stopped()
        if self._started:
            raise StateError(
                "start() was called twice: one runner feeds one session; make a second FeedRunner"
            )
        if session is None:
            if self._sink is not None:
                raise StateError("start() needs the session after get_inputs(): start(sess)")
            self._stream.current_feed()
        elif self._sink is None:
            raise StateError(
                "start(session) needs the queue that get_inputs() makes: "
                "`x, y = runner.get_inputs()` while the graph is built, then `runner.start(sess)`"
            )
        else:
            self._sink.start(session, coord, owner=self)
        self._started = True
        return self

    def stop(self) -> None:
        """End every thread and process within two seconds; batches requested afterwards raise
        FeedStopped. May be repeated."""
        self._stop(failed=sys.exc_info()[1] is not None)

    def _stop(self, *, failed: bool) -> None:
        """Do so; `failed`: the step may have failed on the last batch."""
        first = self._stream.begin_stop()
        deadline = time.perf_counter() + (PRODUCERS_JOIN_S if first else 0)
        if self._sink is not None:
            self._sink.stop(deadline)
        self._stream.stop_followers()
        join_s = max(0.0, deadline - time.perf_counter())
        ended = self._feed is None or self._feed.stop(join_s, failed=failed)
        self._stream.unwatch()
        if ended:
            self._stream.release_cache()
        if self._feed is not None and not ended and first:
            warnings.warn(
                "producers did not end in time; no thread can be interrupted, so they end when "
                f"their present call returns:\n{self._feed.stacks()}",
                FeedWarning,
                stacklevel=2,
            )

    def __iter__(self) -> Iterator[Any]:
        """Yield batches as numpy arrays: one run of `epochs` epochs, or of one.

        A loop that was left early continues where it was; after the end a new run begins with the
        next epoch, with the same producers, which wait for it. Raise ProducerError, SpecError,
        FeedTimeout, FeedStopped, OptionError.
        """
        self._stream.claim("a loop")
        return batches_of(self._stream, self._stream.current_feed(), turns=self._turns)

    def snapshot(self) -> Snapshot:
        """Return the counters of every stage; `snapshot().starvation` is the share (0 to 1) of wall
        time for which the loop waited for input. Before the start all counters are 0."""
        return self._stream.snapshot()

    def status(self) -> FeedStatus | None:
        """Return what each producer and each worker process is doing, and where; None before the
        start."""
        return None if self._stream.feed is None else self._stream.feed.status()

    def __len__(self) -> int:
        """Return the number of batches of a run. Raise TypeError if it is not known before."""
        batches = self._stream.run_batches
        if batches is None:
            raise TypeError(
                "the number of batches is known only for a source with len() and [index] of "
                'records, a sampler of fixed length, and on_error="raise"'
            )
        return batches

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        options, now = self._stream.options, self._stream.snapshot()
        counts = {"threads": options.threads}
        counts |= {"processes": options.processes} if options.processes else {}
        parts = [self._stream.source_name]
        for name, count in counts.items():
            parts.append(f"{name}={count:d}" + " (auto)" * (name in options.tuned))
        parts += [f"remote={options.remote!r}"] * (options.remote is not None)
        parts += [f"batch_size={options.batch_size}"] * (options.batch_size is not None)
        parts.append(self._stream.activity)
        if not math.isnan(now.batches_per_second):
            parts.append(f"{now.batches_per_second:.1f} steps/s")
        return f"<FeedRunner {', '.join(parts)}>"

    def epochs(self) -> Iterator[Epoch]:
        """Yield one `Epoch` after another, each an iterable of batches: `epochs=` of them, or
        without end.

        The next one is produced while the last batches of this one are consumed. The rest of an
        epoch that was left early is skipped. Raise what iteration raises.
        """
        self._stream.claim("a loop")
        return self._each_epoch()

    def state(self) -> dict[str, Any]:
        """Return what the training loop has consumed, as a small dict for JSON: save it beside the
        model.

        Every batch that was handed out counts, and none that is only ready. Raise StateError for a
        session whose queue shuffles: which records it has given is unknown; and for a source with
        an on_epoch_end, which may change the order.
        """
        refuse_state_of(self._stream.source)
        return self._stream.state(None if self._sink is None else self._sink.state())

    def restore(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> FeedRunner:
        """Continue where `state` was saved, with any number of threads and processes; before
        anything is started. Return the runner.

        A list of the states of all ranks of shard=(rank, world) continues with any number of ranks,
        unless order="kept": the rest of the epoch is divided anew.

        Batches that were ready and not consumed are produced again. Raise StateError after the
        start, and OptionError for the state of another stream, with the differences.
        """
        self._stream.refuse_stopped()
        self._stream.restore(state)
        return self

    def resize(
        self,
        *,
        threads: int | Literal["auto"] | None = None,
        processes: int | Literal["auto"] | None = None,
        producers: int | Literal["auto"] | None = None,
    ) -> FeedRunner:
        """Change the number of producers, also while the training runs: order, draws and records
        stay what they are. Return the runner.

        New producers begin as soon as they have started; those that leave make what they have
        begun. A number that is left out stays; "auto" changes it from now on with what the training
        needs. `memory=` is divided anew for new workers only.
        Raise OptionError for a callable, whose streams belong to its producers, and for a kind of
        producer that the runner does not have; StateError for a runner made by `also`.
        """
        self._stream.refuse_stopped()
        wanted = {"threads": threads, "processes": processes, "producers": producers}
        self._stream.resize({name: n for name, n in wanted.items() if n is not None})
        return self

    def tuning(self) -> list[Decision]:
        """Return what was decided where the number of producers is "auto", oldest first: when, from
        which number to which, if it was kept, and why."""
        return list(self._stream.tuning)

    @with_options(FeedOptions)
    def also(self, source: Any, **options: Any) -> FeedRunner:
        """Return a second runner for `source`, for example for validation, that shares the workers
        of this one.

        It has its own options, except those that make the workers. Each iteration over it is one
        exact run; where cores are scarce the producers of the training go first, and they keep
        filling their buffer meanwhile. Raise StateError after the start, and OptionError for
        processes= and remote=.
        """
        self._stream.refuse_stopped()
        if self._feed is not None or self._stream.shares:
            raise StateError(
                "also() after the start, or of a runner that was made by also(): call it on the "
                "first runner, before the start"
            )
        workers = ("processes", "remote")
        if found := [name for name in workers if name in options]:
            raise OptionError(
                f"also({found[0]}=...): the workers belong to the first runner; leave the option "
                "out"
            )
        names = (
            *workers,
            "threads",
            "seed",
            "memory",
            "on_worker_death",
            "stall_timeout_s",
            "metrics",
        )
        own = {name: getattr(self.options, name) for name in names}
        own["threads"] = int(own["threads"])  # those of the first runner are changed
        runner = FeedRunner(source, **own | options)
        self._stream.share(runner._stream)
        return runner

    @property
    def __array__(self) -> Any:
        """Looked up by Keras and numpy to see if this is an array. Raise OptionError."""
        raise OptionError(
            "a FeedRunner is not an array: for fit(), evaluate() and predict() of Keras write "
            "runner.keras(), or runner.dataset() on TensorFlow; elsewhere iterate over it"
        )

    def dataset(self, *, prefetch: int = 0, ragged: bool = False, shapes: Any = None) -> Any:
        """Return a `tf.data.Dataset` of the batches, which wait in fastfeed's own buffer.

        `prefetch`: batches (or tf.data.AUTOTUNE) that TensorFlow takes ahead in a thread of its
        own, for copies to a device and where a core is free for the 0.2 ms that the hand-over
        costs; `snapshot().starvation` is then the wait of that thread, not of the step. `ragged`:
        padded leaves become a `tf.RaggedTensor` of the records as they were, which requires
        Pad(lengths=True). `shapes`: record shapes in the structure of the batch, None where a
        dimension varies, for padded records whose first batch does not show which. Starts the
        producers and waits for the first batch, to learn dtypes and shapes.
        """
        from fastfeed.sinks.tf_dataset import dataset

        return dataset(
            self._iterations_of("a tf.data.Dataset"),
            prefetch=prefetch,
            ragged=ragged,
            shapes=shapes,
        )

    def keras(self) -> Any:
        """Return a `keras.utils.PyDataset` of the batches, for `fit` on any backend of Keras 3."""
        from fastfeed.sinks.keras_data import keras_data

        return keras_data(self._iterations_of("a PyDataset"))

    def torch(self, *, device: Any = None, pin_memory: bool | None = None) -> Iterable[Any]:
        """Return an iterable (a `torch.utils.data.IterableDataset`) of tensors.

        On the CPU they share the batch's memory. With a CUDA `device` the copies are asynchronous,
        on a stream of their own, with the next batch in flight; `pin_memory`: through page-locked
        memory, which None does on CUDA.
        """
        from fastfeed.sinks.torch_iter import torch_iter

        return torch_iter(self._iterations_of("torch"), device=device, pin_memory=pin_memory)

    def jax(self, device_or_sharding: Any = None) -> Iterable[Any]:
        """Return an iterable of JAX arrays, put on a device or a sharding one batch ahead."""
        from fastfeed.sinks.jax_iter import JaxBatches

        return JaxBatches(self._iterations_of("JAX"), device_or_sharding)

    def prefetch_to_device(self, put: Callable[[Any], Any], *, depth: int = 2) -> Iterable[Any]:
        """Return an iterable of `put(batch)`, called `depth` batches ahead in a thread, for any
        other framework.

        `put` is given numpy arrays that stay as they are while anything refers to them, and returns
        what it made.
        """
        from fastfeed.sinks.ahead import Prefetcher

        return Prefetcher(self._iterations_of("prefetch_to_device"), put, depth=depth)

    def state_dict(self) -> dict[str, str]:
        """Return `state()` for torch, as one value: torch.distributed.checkpoint reads only keys
        that a new runner has."""
        return {"state": json.dumps(self.state())}

    def load_state_dict(self, state_dict: Mapping[str, str]) -> None:
        """Restore what `state_dict()` returned. Raise what `restore` raises."""
        if "state" not in state_dict:
            raise OptionError(
                "load_state_dict(): pass what state_dict() returned; what state() returned goes to "
                "restore()"
            )
        self.restore(json.loads(state_dict["state"]))

    def _each_epoch(self) -> Iterator[Epoch]:
        feed: Feed | None = self._stream.current_feed(each=True)
        while feed is not None:
            turn = self._turns.begin()
            epoch = Epoch(self, feed, turns=self._turns, turn=turn)
            yield epoch
            self._turns.check(turn)
            complete = epoch.finish()
            if not complete and not self._stream.source.repeatable:
                return  # there is no other epoch, and the next loop takes the rest
            counts = feed.counts
            if not complete and self._turns.take(turn, feed.take) is not None:
                feed = self._stream.pass_over(feed, epoch.number, counts=counts)
            elif feed.ended or feed.schedule.over:
                return

    def _session_shuffle(self) -> Shuffle | None:
        """Return the shuffle of a session's queue. An indexable that is shuffled by index needs no
        second one; padding, and a sampler of groups, keep the order."""
        shuffle = self.options.shuffle
        if isinstance(shuffle, Shuffle):
            return shuffle
        indexed = shuffle is True and isinstance(self._stream.source, IndexedSource)
        kept = self.options.padded or getattr(self.options.sampler, "group_size", 1) > 1
        return None if shuffle is False or indexed or (shuffle is None and kept) else Shuffle()

    @property
    def _feed(self) -> Feed | None:
        return self._stream.feed

    def _iterations_of(self, sink: str) -> IterationManager:
        self._stream.refuse_second(sink)
        if self._iterations is None or self._iterations.sink != sink:
            self._iterations = IterationManager(sink, self._stream)
        return self._iterations

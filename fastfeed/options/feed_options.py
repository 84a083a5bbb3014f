"""The options of a FeedRunner: one frozen, validated value, the same for every sink."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from fastfeed.core.collate import NO_FILL
from fastfeed.core.machine import (
    free_memory_nbytes,
    local_ranks,
    threads_that_fit,
    workers_that_fit,
)
from fastfeed.core.order import Recipe, Shard, is_integer
from fastfeed.core.shard_address import ShardAddress
from fastfeed.core.unix import ON_LINUX
from fastfeed.errors import OptionError
from fastfeed.options.option_values import (
    AUTO,
    Auto,
    Cache,
    Count,
    MetricsTarget,
    Pad,
    Remote,
    Reorder,
    Shuffle,
    Skip,
    parse_bytes,
    parse_metrics,
)

if TYPE_CHECKING:
    from fastfeed.augment.spec import Augment

LINUX_OPTIONS = {
    "processes": ": this system has no memory without a name to share (memfd) and no descriptors "
    "of processes (pidfd). Use threads=",
    "remote": ", as processes= does. Use threads=",
    "metrics": ": use runner.snapshot()",
}
_PARALLEL = (
    "threads= are producer threads (they hide waits and native code), processes= are worker "
    "processes (for Python code)"
)
_LAST = 'last_batch="drop" leaves out the last, smaller batch'
_AHEAD = "prefetch= bounds the batches that are ready ahead by number, memory= by bytes"
_POOL = (
    "shuffle=True draws from all records of an indexable, and shuffle=Shuffle(capacity=2000, "
    "min_after_dequeue=1000) from a pool of records"
)

# by keyword of DataLoader, tf.data, Keras and the queues of TensorFlow 1, and by the names of what
# is a part of another option's value
ANSWERS = {
    "num_workers": _PARALLEL,
    "workers": f'{_PARALLEL}; where both are "auto", they are chosen',
    "num_threads": _PARALLEL,
    "num_parallel_calls": f"{_PARALLEL}; both run transform=",
    "use_multiprocessing": "processes=4 makes batches in worker processes, threads=4 in threads",
    "multiprocessing_context": "worker processes are forked from a small server; leave it out",
    "prefetch_factor": f"{_AHEAD}, both for all producers together",
    "max_queue_size": _AHEAD,
    "queue_size": _AHEAD,
    "buffer_size": f"{_AHEAD}. For a shuffle, {_POOL}",
    "capacity": f"{_POOL}. {_AHEAD}",
    "min_after_dequeue": _POOL,
    "drop_last": _LAST,
    "drop_remainder": _LAST,
    "collate_fn": "collate= makes a batch from a list of records",
    "map_func": "transform= works on a record, batch_transform= on a batch",
    "batch_sampler": "sampler= gives the indices of an epoch, batch_size= cuts them into batches. "
    "For batches of varying size pass lists of indices as the source: FeedRunner(index_lists, "
    "records=False, transform=batch_of, pad=True)",
    "pin_memory": 'runner.torch(device="cuda", pin_memory=True) pins batches, and does so unasked '
    "on CUDA",
    "persistent_workers": "leave it out: workers stay for all epochs of `for epoch in "
    "runner.epochs()`",
    "worker_init_fn": "leave it out: workers and records are seeded by seed=, and a function that "
    "takes `worker` finds worker.index, worker.count and worker.rng",
    "generator": "seed= is the root of every random draw",
    "timeout": "stall_timeout_s= is the longest wait for one batch, in seconds",
    "num_epochs": "epochs= is the number of passes over the source",
    "producers": 'remote=Remote("auto", producers=32) has the number of remote producers',
    "cpus_per_producer": 'remote=Remote("auto", producers=32, cpus=0.1) has the CPUs of each',
    "augment_on": 'augment=Augment([...], on="dali-gpu") has the place where it is executed',
    "lengths": "pad=Pad(0, lengths=True) adds the lengths of the records",
    "error_limit": "on_error=Skip(limit=100) has the largest number of skipped errors",
    "window": "order=Reorder(window=64) has the number of batches that may overtake one",
    "remainder": 'shard=Shard(rank, world, remainder="drop") leaves out records that cannot be '
    "divided among the ranks. The last batch of an epoch is the business of last_batch=",
    "repeat_per_producer": "a callable with an argument `worker` may yield its full copy to each "
    "producer, as in `lambda worker: batches()`",
}


def _skip_of(given: Any) -> Any:
    if not isinstance(given, str) or given not in ("raise", "skip"):
        raise OptionError(f"on_error must be 'raise', 'skip' or Skip(limit=...), got {given!r}")
    return Skip() if given == "skip" else given


# by option: the class of its value, and what makes one of a short form
LONG_FORMS: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "remote": (Remote, Remote),
    "cache": (Cache, Cache),
    "pad": (Pad, lambda pad: None if pad is False else Pad(pad)),
    "shard": (Shard, lambda shard: shard if isinstance(shard, str) else Shard.of(shard)),
    "on_error": (Skip, _skip_of),
}


@dataclass(frozen=True, kw_only=True)
class FeedOptions:
    """The keywords of FeedRunner.

    Producers:

    threads: producer threads, or threads of each worker process, which hide waits (sleep, network,
        disk, native code) and do not speed up pure Python; "auto" finds their number while the
        training runs, and changes it with what it needs.
    processes: worker processes with `threads` producers each, for Python code; 0 uses threads in
        this process, "auto" finds their number. Both "auto", or workers="auto": the first batches
        are timed before the start, to choose threads or processes.
    remote: producers of a Ray cluster, beside those of `processes`: "local", "auto", the address
        of the cluster, or `Remote(...)` with their number.
    transform: function of one item of the source, which runs in the producers, also where the
        source is one stream.
    filter: function of one item, before `transform`; an item for which it returns False is left
        out, and the batch is filled with later ones.
    collate: function that makes a batch from a list of records, instead of stacking them.
    batch_transform: function of one batch, which runs in the producers.
    cache: "ram", a folder or a `Cache`: later epochs read what the producers made of a record in
        the first one.
    augment: image operations after `transform`, `Augment([...])`, with draws that depend on the
        seed and the record's index; its `on` says where they are executed.

    Batches:

    records: True if the source yields single records, False if it yields batches; None: records
        only from an object with len() and [index].
    batch_size: records of a delivered batch; None keeps batches as produced, without the cost of
        re-batching.
    last_batch: "drop" omits the last, smaller batch of an epoch, so the batch dimension is static
        in a session; "keep" delivers it.
    dtypes: a dtype for all floating leaves, or dtypes in the structure of the batch, to which the
        producers cast once, instead of every step.
    pad: fill value for records of varying shape (True: zeros), or `Pad(...)`, which can add their
        lengths; None refuses such records.

    Order:

    shuffle: True or `Shuffle(...)` shuffles records, False keeps the order; None shuffles only in a
        session, as the hand-written idiom does.
    epochs: passes over a finite source in a run; None: one in a loop, no end in a session.
    seed: root of every random draw, >= 0; None draws one.
    shard: the share of this rank, (rank, world) or `Shard(...)` with a rule for the remainder, with
        as many records as every other rank's; or the `address` of a ShardServer, which gives each
        rank as many batches as it can take.
    sampler: the indices of an epoch in order: an iterable, or indices(seed, epoch, length).
    order: "kept" delivers in the order of the source; "any" delivers what is ready first, so that a
        slow batch delays no other; `Reorder(window=64)` does so, and no batch is more than that
        many batches late.

    Limits and failures:

    prefetch: bound on the batches that are ready ahead of the training, by number, beside those in
        the making; None: a few for each producer, more of small ones.
    memory: bound on the bytes of batches in flight, as a number or "2GB"; None: a quarter of the
        free memory, divided by the ranks on this machine if a launcher tells them.
    on_error: "skip", or `Skip(limit=...)`, continues without the record or batch that raised, and
        counts it.
    on_worker_death: "restart" replaces a killed worker process and repeats its unfinished batches.
    stall_timeout_s: longest wait for one batch in seconds, after which FeedTimeout is raised, with
        the stack of every producer.
    metrics: "tensorboard:DIR" or "prometheus:127.0.0.1:9123" publishes metrics there.
    """

    threads: Count = Count(1)  # noqa: RUF009  # a descriptor
    processes: Count = Count(0)  # noqa: RUF009
    remote: str | Remote | None = None
    transform: Callable[[Any], Any] | None = None
    filter: Callable[[Any], Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    batch_transform: Callable[[Any], Any] | None = None
    cache: str | os.PathLike[str] | Cache | None = None
    augment: Augment | None = None
    records: bool | None = None
    batch_size: int | None = None
    last_batch: Literal["keep", "drop"] = "keep"
    dtypes: Any = None
    pad: bool | int | float | Pad | None = None
    shuffle: bool | Shuffle | None = None
    epochs: int | None = None
    seed: int | None = None
    # it may hold a token
    shard: tuple[int, int] | Shard | str | None = field(default=None, repr=False)
    sampler: Any = None
    order: Literal["kept", "any"] | Reorder = "kept"
    prefetch: int | None = None
    memory: int | str | None = None
    on_error: Literal["raise", "skip"] | Skip = "raise"
    on_worker_death: Literal["raise", "restart"] = "raise"
    stall_timeout_s: float = 60.0
    metrics: str | None = None

    def __post_init__(self) -> None:
        for name, (kind, long_form) in LONG_FORMS.items():
            value = getattr(self, name)
            unset = value is None and name != "on_error"
            if not unset and not isinstance(value, kind):
                object.__setattr__(self, name, long_form(value))
        _check_each(self)
        for clash, text in CLASHES:
            if clash(self):
                raise OptionError(text.format(o=self))
        Recipe(self.shuffle is True, self.sampler, self.own_shard)
        _ = self.metrics_target
        _ = self.memory_nbytes
        if self.stealing:
            ShardAddress.parse(str(self.shard))
            if self.shuffle is None:
                object.__setattr__(self, "shuffle", False)
            if self.prefetch is None:  # what a slow rank has ahead, others wait for at the end
                object.__setattr__(self, "prefetch", 2 * self.parallel)

    @property
    def stealing(self) -> bool:
        """True if the ranks of a job share out the batches as they go."""
        return isinstance(self.shard, str)

    @property
    def own_shard(self) -> Shard | None:
        """The share that is fixed beforehand, or None."""
        return self.shard if isinstance(self.shard, Shard) else None

    @property
    def place(self) -> tuple[int, int]:
        """The (rank, world) of the share that is fixed beforehand; without one, (0, 1)."""
        return (0, 1) if self.own_shard is None else self.own_shard.place

    @property
    def remainder(self) -> str | None:
        """What happens to records that cannot be divided among the ranks."""
        return None if self.own_shard is None else self.own_shard.remainder

    @property
    def memory_nbytes(self) -> int:
        """The bound on batches in flight, in bytes."""
        if self.memory is not None:
            return parse_bytes(self.memory)
        return free_memory_nbytes() // 4 // local_ranks()

    @property
    def metrics_target(self) -> MetricsTarget | None:
        """The destination of published metrics, or None."""
        return None if self.metrics is None else parse_metrics(self.metrics)

    @property
    def remote_producers(self) -> int:
        """The number of producers in actors of Ray."""
        return self.remote.producers if isinstance(self.remote, Remote) else 0

    @property
    def workers(self) -> int:
        """The number of processes that make batches, here and elsewhere."""
        return self.processes + self.remote_producers

    @property
    def tuned(self) -> list[str]:
        """The names of the numbers that are "auto", as `resize` has them."""
        producers = self.remote.producers if isinstance(self.remote, Remote) else 0
        counts = {"threads": self.threads, "processes": self.processes, "producers": producers}
        return [name for name, count in counts.items() if isinstance(count, Auto)]

    @property
    def parallel(self) -> int:
        """The number of parallel streams, one for each producer."""
        return self.threads * self.processes + self.remote_producers or self.threads

    @property
    def window(self) -> int | None:
        """How many batches may overtake one; None: any number."""
        if isinstance(self.order, Reorder):
            return int(self.order.window)
        return 0 if self.order == "kept" else None

    def shipped(self) -> FeedOptions:
        """Return the options for a worker process, with dtypes that need no TensorFlow."""
        return replace(self, dtypes=_numpy_dtypes(self.dtypes), sampler=None)

    def with_workers(self, processes: int, producers: int) -> FeedOptions:
        """Return the options for other numbers of worker processes and remote producers."""
        remote = self.remote
        if isinstance(remote, Remote):
            remote = replace(remote, producers=producers)
        return replace(self, processes=processes, remote=remote)

    @property
    def fill(self) -> bool | int | float | None:
        """The fill value for records of varying shape, or None if they all have one shape."""
        return self.pad.value if isinstance(self.pad, Pad) else None

    @property
    def padded(self) -> bool:
        """True if records may vary in shape."""
        return self.pad is not None

    @property
    def joined_fill(self) -> bool | int | float | None:
        """The fill value where records of batches are joined, which have been collated."""
        return NO_FILL if self.collate is not None and self.fill is True else self.fill

    @property
    def pool_pad(self) -> bool | int | float | None:
        """The fill value for records in a pool, or None if they all have one shape."""
        return True if self.packed and not self.padded else self.joined_fill

    @property
    def lengths(self) -> bool:
        """True if batches are (batch, lengths)."""
        return isinstance(self.pad, Pad) and self.pad.lengths

    @property
    def packed(self) -> bool:
        """True if DALI executes the rest of `augment`, after all other stages."""
        return self.augment is not None and self.augment.on != "producers"

    @property
    def skips(self) -> bool:
        """True if a record or batch that raised is left out."""
        return isinstance(self.on_error, Skip)

    @property
    def error_limit(self) -> int:
        """The largest number of skipped errors."""
        return self.on_error.limit if isinstance(self.on_error, Skip) else 0


def options_from(given: dict[str, Any]) -> FeedOptions:
    """Return FeedOptions from keywords.

    Raise OptionError for an unknown keyword, with ours for that of another loader, or the closest
    one.
    """
    known = [f.name for f in fields(FeedOptions)]
    if given.get("workers") == AUTO:
        given = {name: value for name, value in given.items() if name != "workers"}
        given |= {"threads": AUTO, "processes": AUTO}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.7)
            hint = f"did you mean {near[0]}=?" if near else f"the options are {', '.join(known)}"
            raise OptionError(f"FeedRunner has no option {name!r}: {ANSWERS.get(name, hint)}")
    return FeedOptions(**given)


def _numpy_dtypes(given: Any) -> Any:
    if isinstance(given, dict):
        return {key: _numpy_dtypes(value) for key, value in given.items()}
    if isinstance(given, (tuple, list)):
        return [_numpy_dtypes(value) for value in given]
    return getattr(given, "as_numpy_dtype", given)


# options that do not go together, and what to do instead
CLASHES: tuple[tuple[Callable[[FeedOptions], Any], str], ...] = (
    (
        lambda o: o.remote is not None and o.threads > 1 and not o.processes,
        "threads={o.threads} beside remote= are the threads of local worker processes: set "
        "processes=1, too, or raise the number of remote producers, as in "
        "Remote(..., producers={o.threads})",
    ),
    (
        lambda o: isinstance(o.threads, Auto) and o.workers and not isinstance(o.processes, Auto),
        'threads="auto" beside processes= or remote=: the threads of a worker process stay as many '
        'as they are. Write processes="auto", or Remote(..., producers="auto")',
    ),
    (
        lambda o: o.remote is not None and "processes" in o.tuned,
        'processes="auto" beside remote=: give their number, and let that of the remote producers '
        'be found: Remote(..., producers="auto")',
    ),
    (
        lambda o: o.collate is not None and (o.lengths or o.augment is not None),
        "collate= replaces the collation of Pad(lengths=True) and augment=: leave one of them out",
    ),
    (
        lambda o: o.packed and o.batch_transform is not None,
        "Augment(on={o.augment.on!r}) works on the images of a batch after batch_transform=: leave "
        'one of them out, or set on="producers"',
    ),
    (
        lambda o: o.packed and o.lengths,
        "Pad(lengths=True) cannot be combined with Augment(on={o.augment.on!r}): make images of "
        "one size, or augment in the producers",
    ),
    (
        lambda o: o.packed and o.dtypes is not None,
        "dtypes= cannot be combined with Augment(on={o.augment.on!r}): use Cast(...) for images, "
        "and cast the rest in transform=",
    ),
    (
        lambda o: o.filter is not None and o.own_shard is not None,
        "filter= with shard=: the ranks would get different numbers of records. Choose the records "
        "before they are divided: sampler=indices",
    ),
    (
        lambda o: o.stealing and isinstance(o.shuffle, Shuffle),
        "shuffle={o.shuffle!r} draws records from batches that other ranks may get: use "
        "shuffle=True, which shuffles all records of an epoch",
    ),
)


def _at_least(minimum: int) -> Callable[[Any], bool]:
    return lambda value: is_integer(value) and int(value) >= minimum


def _one_of(*choices: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in choices


def _is_duration(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_augment(value: Any) -> bool:
    from fastfeed.augment.spec import Augment

    return isinstance(value, Augment)


DEFAULT = "; leave it out for the default"
# by option: what accepts its values, what these are, and a hint. An option without a default may
# also be None
CHECKS: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "threads": (
        _at_least(1),
        'an integer >= 1 or "auto"',
        "; a feed needs at least one producer thread",
    ),
    "processes": (
        _at_least(0),
        'an integer >= 0 or "auto"',
        "; 0 uses producer threads in this process",
    ),
    "batch_size": (_at_least(1), "an integer >= 1", DEFAULT),
    "epochs": (_at_least(1), "an integer >= 1", DEFAULT),
    "prefetch": (
        _at_least(1),
        "an integer >= 1",
        "; leave it out to bound by memory= only",
    ),
    "seed": (_at_least(0), "an integer >= 0 or None", ""),
    "last_batch": (_one_of("keep", "drop"), "one of 'keep', 'drop'", ""),
    "order": (
        lambda value: isinstance(value, Reorder) or _one_of("kept", "any")(value),
        "'kept', 'any' or Reorder(window=...)",
        "",
    ),
    "on_worker_death": (_one_of("raise", "restart"), "one of 'raise', 'restart'", ""),
    "records": (lambda value: isinstance(value, bool), "None, True or False", ""),
    "shuffle": (
        lambda value: isinstance(value, (bool, Shuffle)),
        "None, True, False or Shuffle(...)",
        f": {_POOL}",
    ),
    "transform": (callable, "a function of one item", ""),
    "filter": (callable, "a function of one item", ""),
    "collate": (callable, "a function of a list of records", ""),
    "batch_transform": (callable, "a function of one batch", ""),
    "augment": (
        _is_augment,
        "a fastfeed.augment.Augment of operations",
        "; put Augment(...) around them, as in Augment([Flip()])",
    ),
    "stall_timeout_s": (
        _is_duration,
        "a number of seconds > 0",
        "; float('inf') waits without a limit",
    ),
}


def _check_each(options: FeedOptions) -> None:
    """Refuse values that an option cannot have, whatever the others are."""
    given = vars(options)
    for each in fields(options):
        value = given[each.name]
        if each.name in CHECKS and not (value is None and each.default is None):
            accepts, what, hint = CHECKS[each.name]
            if not accepts(value):
                raise OptionError(f"{each.name} must be {what}, got {value!r}{hint}")
    for name, instead in () if ON_LINUX else LINUX_OPTIONS.items():
        if given[name]:
            raise OptionError(f"{name}={given[name]!r} requires Linux{instead}")


def refuse_too_many(threads: int, processes: int, *, running: FeedOptions | None = None) -> None:
    """Raise OptionError for more threads or worker processes than this machine can hold beside
    those that run."""
    before = (running.threads, running.processes) if running is not None else (0, 0)
    if processes > max(1, before[1]):
        most, limit = workers_that_fit(before[1])
        if processes > most:
            raise OptionError(
                f"processes={processes:d} do not fit: {most} do, because of {limit}. More than the "
                "cores seldom gain; threads= inside each hide waits"
            )
    more = threads * max(1, processes) > before[0] * max(1, before[1])
    if threads > 1 and more:
        most, limit = threads_that_fit(max(1, processes), before[0] * max(1, before[1]))
        if threads > most:
            where = f" in each of processes={processes:d}" if processes else ""
            raise OptionError(
                f"threads={threads:d} do not fit{where}: {most} do, because of {limit}. They hide "
                "waits, and more than the records that wait at once gain nothing"
            )

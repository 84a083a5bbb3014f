"""The options of a FeedRunner: one frozen, validated value, the same for every sink."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from fastfeed.core.machine import free_memory_nbytes, local_ranks
from fastfeed.core.order import Recipe, is_integer
from fastfeed.core.shard_address import ShardAddress
from fastfeed.core.unix import ON_LINUX
from fastfeed.errors import OptionError
from fastfeed.options.option_values import (
    Cache,
    MetricsTarget,
    Shuffle,
    parse_address,
    parse_bytes,
    parse_metrics,
)
from fastfeed.options.other_loaders import OTHER_LOADERS, pool_hint

if TYPE_CHECKING:
    from fastfeed.augment.spec import Augment

EXECUTORS = ("producers", "dali-cpu", "dali-gpu")  # of augment=
AUTO_EXECUTOR = "auto"  # the fastest one, measured
# by option: the least value, and a hint for the error
INTEGER_OPTIONS = {
    "threads": (1, "a feed needs at least one producer thread"),
    "processes": (0, "0 uses producer threads in this process"),
    "producers": (1, "leave it out for one remote producer"),
    "batch_size": (1, "leave it out for the default"),
    "epochs": (1, "leave it out for the default"),
    "prefetch": (1, "leave it out to bound batches by memory= only"),
    "error_limit": (0, 'use on_error="raise" to allow no error'),
}
OPTIONAL_INTEGER_OPTIONS = ("producers", "batch_size", "epochs", "prefetch")
OPTION_CHOICES = {
    "last_batch": ("keep", "drop"),
    "order": ("kept", "any"),
    "on_error": ("raise", "skip"),
    "on_worker_death": ("raise", "restart"),
    "records": (None, True, False),
    "lengths": (True, False),
    "repeat_per_producer": (True, False),
}
FUNCTIONS = {
    "transform": "one item",
    "filter": "one item",
    "collate": "a list of records",
    "batch_transform": "one batch",
}


@dataclass(frozen=True, kw_only=True)
class FeedOptions:
    """The keywords of FeedRunner.

    Producers:

    threads: producer threads, or threads of each worker process. More threads hide waits (sleep,
        network, disk, native code); they do not speed up pure Python.
    processes: worker processes with `threads` producers each, for Python code. A worker costs
        about 0.2 s to start and 30 MB; 0 uses threads in this process.
    remote: "local", "auto" or the address of a Ray cluster ("ray://host:port", "host:port"):
        producers on other machines, beside those of `processes`. "local" starts Ray here.
    producers: remote producers, of one thread each; None: one.
    cpus_per_producer: CPUs that Ray reserves for each of them; 0.1 for producers that wait.
    transform: function of one item of the source, which runs in the producers. It parallelizes a
        source that is one stream.
    filter: function of one item, before `transform`. An item for which it returns False is left
        out, and the batch is filled with later ones.
    collate: function that makes a batch from a list of records, instead of stacking them.
    batch_transform: function of one batch, which runs in the producers.
    cache: "ram", a folder or a `Cache`: later epochs read what the producers made of a record in
        the first one.
    augment: image operations (`fastfeed.Augment`) after `transform`. Draws depend on the seed and
        the record's index, and are therefore repeatable.
    augment_on: "producers" uses OpenCV; "dali-cpu" and "dali-gpu" use DALI in the trainer; "auto"
        measures all that are installed and takes the fastest.
    repeat_per_producer: True allows each producer its own full copy of a callable's data.

    Batches:

    records: True if the source yields single records, False if it yields batches; None: records
        only from an object with len() and [index].
    batch_size: records of a delivered batch; None keeps batches as produced, without the cost of
        re-batching.
    last_batch: "drop" omits the last, smaller batch of an epoch, so the batch dimension is static
        in a session; "keep" delivers it.
    dtypes: a dtype for all floating leaves, or dtypes in the structure of the batch. Producers cast
        once, instead of every step.
    pad: fill value for records of varying shape (True: zeros); None refuses such records.
    lengths: with `pad`, batches become (batch, lengths): the shape of each record, for masks.

    Order:

    shuffle: True or `Shuffle(...)` shuffles records, False keeps the order; None shuffles only in a
        session, as the hand-written idiom does.
    epochs: passes over a finite source in a run; None: one in a loop, no end in a session.
    seed: root of every random draw, >= 0; None draws one.
    shard: (rank, world): the share of this rank, with as many records as every other rank's; or the
        `address` of a ShardServer, which gives each rank as many batches as it can take.
    remainder: "drop" or "pad": treatment of records that cannot be divided among the ranks.
    sampler: the indices of an epoch in order: an iterable, or indices(seed, epoch, length).
    order: "kept" delivers in the order of the source; "any" delivers what is ready first, so that a
        slow batch delays no other.

    Limits and failures:

    prefetch: bound on the batches that are ready ahead of the training, by number; those in the
        making come on top. None: a few for each producer, more of small ones.
    memory: bound on the bytes of batches in flight, as a number or "2GB"; None: a quarter of the
        free memory, divided by the ranks on this machine if a launcher tells them.
    on_error: "skip" continues without the record or batch that raised, and counts it.
    error_limit: largest number of skipped errors; the next one ends the feed.
    on_worker_death: "restart" replaces a killed worker process and repeats its unfinished batches.
    stall_timeout_s: longest wait for one batch in seconds. A longer one raises FeedTimeout with the
        stack of every producer.
    metrics: "tensorboard:DIR" or "prometheus:127.0.0.1:9123" publishes metrics there.
    """

    threads: int = 1
    processes: int = 0
    remote: str | None = None
    producers: int | None = None
    cpus_per_producer: float = 1.0
    records: bool | None = None
    transform: Callable[[Any], Any] | None = None
    filter: Callable[[Any], Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    batch_transform: Callable[[Any], Any] | None = None
    cache: str | os.PathLike[str] | Cache | None = None
    augment: Augment | None = None
    augment_on: str = "producers"
    batch_size: int | None = None
    last_batch: Literal["keep", "drop"] = "keep"
    shuffle: bool | Shuffle | None = None
    dtypes: Any = None
    pad: bool | int | float | None = None
    lengths: bool = False
    epochs: int | None = None
    seed: int | None = None
    shard: tuple[int, int] | str | None = field(default=None, repr=False)  # it may hold a token
    remainder: Literal["drop", "pad"] | None = None
    sampler: Any = None
    order: Literal["kept", "any"] = "kept"
    prefetch: int | None = None
    memory: int | str | None = None
    on_error: Literal["raise", "skip"] = "raise"
    error_limit: int = 100
    on_worker_death: Literal["raise", "restart"] = "raise"
    stall_timeout_s: float = 60.0
    repeat_per_producer: bool = False
    metrics: str | None = None

    def __post_init__(self) -> None:
        for name, (minimum, hint) in INTEGER_OPTIONS.items():
            if getattr(self, name) is not None or name not in OPTIONAL_INTEGER_OPTIONS:
                _integer(name, getattr(self, name), minimum=minimum, hint=hint)
        if self.processes and not ON_LINUX:
            raise OptionError(
                f"processes={self.processes} requires Linux: this system has no memory without a "
                "name to share (memfd) and no descriptors of processes (pidfd). Use threads="
            )
        if self.metrics is not None and not ON_LINUX:
            raise OptionError(f"metrics={self.metrics!r} requires Linux: use runner.snapshot()")
        _check_remote(self)
        for name, choices in OPTION_CHOICES.items():
            _one_of(name, getattr(self, name), choices=choices)
        if not (self.shuffle is None or isinstance(self.shuffle, (bool, Shuffle))):
            raise OptionError(
                f"shuffle must be None, True, False or Shuffle(...), got {self.shuffle!r}"
                + pool_hint(self.shuffle)
            )
        _check_functions(self)
        if self.pad is not None and not isinstance(self.pad, (bool, int, float)):
            raise OptionError(
                f"pad must be None, False, True (zeros) or a number, got {self.pad!r}"
            )
        if self.lengths and not self.padded:
            raise OptionError(
                "lengths=True requires pad=: lengths belong to records that vary in shape"
            )
        if self.seed is not None and not (is_integer(self.seed) and int(self.seed) >= 0):
            raise OptionError(f"seed must be an integer >= 0 or None, got {self.seed!r}")
        _check_limit(self.stall_timeout_s)
        if self.cache is not None and not isinstance(self.cache, Cache):
            object.__setattr__(self, "cache", Cache(self.cache))
        # checks which of these options fit together
        if self.stealing:
            self._check_stealing()
        recipe = Recipe(self.shuffle is True, self.sampler, self.own_shard, self.remainder)
        object.__setattr__(self, "shard", recipe.shard or self.shard)
        _check_augment(self.augment, self.augment_on)
        _ = self.metrics_target
        _ = self.memory_nbytes

    def _check_stealing(self) -> None:
        """Raise OptionError for what does not go with batches that ranks share out."""
        ShardAddress.parse(str(self.shard))
        if isinstance(self.shuffle, Shuffle):
            raise OptionError(
                f"shuffle={self.shuffle!r} draws records from batches that other ranks may get: "
                "use shuffle=True, which shuffles all records of an epoch"
            )
        if self.shuffle is None:
            object.__setattr__(self, "shuffle", False)
        if self.prefetch is None:  # what a slow rank has ahead, others wait for at the end
            object.__setattr__(self, "prefetch", 2 * self.parallel)

    @property
    def stealing(self) -> bool:
        """True if the ranks of a job share out the batches as they go."""
        return isinstance(self.shard, str)

    @property
    def own_shard(self) -> tuple[int, int] | None:
        """The (rank, world) of a share that is fixed beforehand, or None."""
        return None if isinstance(self.shard, str) else self.shard

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
        return 0 if self.remote is None else self.producers or 1

    @property
    def workers(self) -> int:
        """The number of processes that make batches, here and elsewhere."""
        return self.processes + self.remote_producers

    @property
    def parallel(self) -> int:
        """The number of parallel streams, one for each producer."""
        return self.threads * self.processes + self.remote_producers or self.threads

    def shipped(self) -> FeedOptions:
        """Return the options for a worker process, with dtypes that need no TensorFlow."""
        return replace(self, dtypes=_numpy_dtypes(self.dtypes), sampler=None)

    @property
    def pool_pad(self) -> bool | int | float | None:
        """The fill value for records in a pool, or None if they all have one shape."""
        return self.pad if self.padded else True if self.packed else None

    @property
    def packed(self) -> bool:
        """True if DALI executes the rest of `augment`, after all other stages."""
        return self.augment is not None and self.augment_on != EXECUTORS[0]

    @property
    def padded(self) -> bool:
        """True if records may vary in shape."""
        return self.pad is not None and self.pad is not False


def options_from(given: dict[str, Any]) -> FeedOptions:
    """Return FeedOptions from keywords.

    Raise OptionError for an unknown keyword, with ours for that of another loader, or the closest
    one.
    """
    known = [f.name for f in fields(FeedOptions)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.7)
            hint = f"did you mean {near[0]}=?" if near else f"the options are {', '.join(known)}"
            raise OptionError(f"FeedRunner has no option {name!r}: {OTHER_LOADERS.get(name, hint)}")
    return FeedOptions(**given)


def _numpy_dtypes(given: Any) -> Any:
    if isinstance(given, dict):
        return {key: _numpy_dtypes(value) for key, value in given.items()}
    if isinstance(given, (tuple, list)):
        return [_numpy_dtypes(value) for value in given]
    return getattr(given, "as_numpy_dtype", given)


def _check_functions(options: FeedOptions) -> None:
    """Refuse what is no function, and functions that do not fit the other options."""
    for name, argument in FUNCTIONS.items():
        if getattr(options, name) is not None and not callable(getattr(options, name)):
            raise OptionError(
                f"{name} must be a function of {argument}, got {getattr(options, name)!r}"
            )
    if options.collate is not None and (options.lengths or options.augment is not None):
        raise OptionError(
            "collate= replaces the collation that lengths= and augment= bring: leave one of them "
            "out"
        )
    if options.batch_transform is not None and options.packed:
        raise OptionError(
            f"augment_on={options.augment_on!r} works on the images of a batch after "
            'batch_transform=: leave one of them out, or set augment_on="producers"'
        )
    if options.filter is not None and options.own_shard is not None:
        raise OptionError(
            "filter= with shard=: the ranks would get different numbers of records. Choose the "
            "records before they are divided: sampler=indices"
        )


def _check_remote(options: FeedOptions) -> None:
    """Refuse an address that is none, and what goes only with remote producers."""
    remote, cpus = options.remote, options.cpus_per_producer
    if remote is None:
        if options.producers is not None or cpus != 1:
            raise OptionError(
                "producers= and cpus_per_producer= are those of remote=: give the cluster, such as "
                'remote="local", or use threads= and processes='
            )
        return
    parse_address(remote)
    if not ON_LINUX:
        raise OptionError(f"remote={remote!r} requires Linux, as processes= does. Use threads=")
    if isinstance(cpus, bool) or not isinstance(cpus, (int, float)) or not 0 <= cpus < inf:
        raise OptionError(f"cpus_per_producer must be a number >= 0, got {cpus!r}")
    if cpus > 1 and cpus != int(cpus):
        raise OptionError(f"cpus_per_producer above 1 must be whole, as Ray wants it, got {cpus!r}")
    if options.threads > 1 and not options.processes:
        raise OptionError(
            f"threads={options.threads} beside remote= are the threads of local worker processes: "
            "set processes=1, too, or raise producers="
        )


def _check_limit(limit: Any) -> None:
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
        raise OptionError(
            f"stall_timeout_s must be a number of seconds > 0, got {limit!r}; float('inf') waits "
            "without a limit"
        )


def _check_augment(augment: Any, on: str) -> None:
    _one_of("augment_on", on, choices=(*EXECUTORS, AUTO_EXECUTOR))
    if augment is None:
        if on != EXECUTORS[0]:
            raise OptionError(
                f"augment_on={on!r} requires augment=, the operations to execute there"
            )
        return
    from fastfeed.augment.spec import Augment

    if not isinstance(augment, Augment):
        hint = (
            "put Augment(...) around that list"
            if isinstance(augment, (list, tuple))
            else "such as Augment([Flip()])"
        )
        raise OptionError(
            f"augment must be a fastfeed.augment.Augment of operations, got {augment!r}; {hint}"
        )


def _integer(name: str, value: Any, *, minimum: int, hint: str) -> None:
    if not is_integer(value) or int(value) < minimum:
        raise OptionError(f"{name} must be an integer >= {minimum}, got {value!r}; {hint}")


def _one_of(name: str, value: Any, *, choices: tuple[str | bool | None, ...]) -> None:
    # by type as well, because 1 == True
    if not any(isinstance(value, type(choice)) and value == choice for choice in choices):
        raise OptionError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")

"""The options of a FeedRunner: one frozen, validated value, the same for every sink."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

from fastfeed.core.machine import free_memory_nbytes
from fastfeed.core.order import Recipe, is_integer
from fastfeed.core.unix import ON_LINUX
from fastfeed.errors import OptionError

if TYPE_CHECKING:
    from fastfeed.augment.spec import Augment

EXECUTORS = ("producers", "dali-cpu", "dali-gpu")  # of augment=
AUTO_EXECUTOR = "auto"  # the fastest one, measured
# by option: the least value, and a hint for the error
INTEGER_OPTIONS = {
    "threads": (1, "a feed needs at least one producer thread"),
    "processes": (0, "0 uses producer threads in this process"),
    "batch_size": (1, "leave it out for the default"),
    "epochs": (1, "leave it out for the default"),
    "error_limit": (0, 'use on_error="raise" to allow no error'),
}
OPTIONAL_INTEGER_OPTIONS = ("batch_size", "epochs")
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
METRICS_KINDS = ("tensorboard", "prometheus")
BYTE_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}


@dataclass(frozen=True)
class Shuffle:
    """Record-level shuffle as in RandomShuffleQueue: each draw is uniform over a pool of records.

    `capacity` is the largest size of the pool and `min_after_dequeue` the smallest that is drawn
    from, both in records. Larger values shuffle better, cost memory (capacity x record bytes) and
    delay the first batch. Raise OptionError unless 0 <= min_after_dequeue < capacity.
    """

    capacity: int = 2000
    min_after_dequeue: int = 1000

    def __post_init__(self) -> None:
        if not all(isinstance(n, Integral) for n in (self.capacity, self.min_after_dequeue)):
            raise OptionError(f"capacity and min_after_dequeue must be integers, got {self!r}")
        if self.min_after_dequeue < 0 or self.capacity <= self.min_after_dequeue:
            raise OptionError(
                "Shuffle requires 0 <= min_after_dequeue < capacity, got "
                f"capacity={self.capacity}, min_after_dequeue={self.min_after_dequeue}"
            )


@dataclass(frozen=True)
class Cache:
    """What the producers made of a record, kept for the next epochs: in memory ("ram") or in a
    folder, which the next run reads.

    `memory` bounds its size, such as "8GB"; the default is a quarter of the free memory, or nine
    tenths of the free disk. Records that find no room are made again. `random`: keep the draws of
    the first epoch. Raise OptionError for values that cannot be.
    """

    place: str | os.PathLike[str]
    memory: int | str | None = None
    random: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.place, (str, os.PathLike)) or not str(self.place):
            raise OptionError(f'cache must be "ram" or a folder, got {self.place!r}')
        _ = self.nbytes

    @property
    def nbytes(self) -> int | None:
        """The bound in bytes, or None for the default."""
        return None if self.memory is None else parse_bytes(self.memory)


@dataclass(frozen=True)
class MetricsTarget:
    """The destination of published metrics.

    `place` is a folder for TensorBoard, and the host to listen on for Prometheus.
    """

    kind: str
    place: str
    port: int = 0

    def __str__(self) -> str:
        host = f"[{self.place}]" if ":" in self.place else self.place
        return (
            f"tensorboard:{self.place}"
            if self.kind == "tensorboard"
            else f"prometheus:{host}:{self.port}"
        )


@dataclass(frozen=True)
class FeedOptions:
    """The keywords of FeedRunner; the comment of each field gives its trade-off."""

    # more threads hide waits (sleep, network, disk, native code); they do not speed up pure Python
    threads: int = 1
    # worker processes with `threads` producers each: for Python code, at 0.2 s and 30 MB a worker
    processes: int = 0
    # True: the source yields single records; None: only an indexable does
    records: bool | None = None
    # applied to one item in the producers: this is what parallelizes one stream
    transform: Callable[[Any], Any] | None = None
    # False leaves the item out, before transform; the batch is filled up with later records
    filter: Callable[[Any], Any] | None = None
    # makes a batch of a list of records, instead of stacking them
    collate: Callable[[list[Any]], Any] | None = None
    # applied to each batch in the producers, before it is checked and cut
    batch_transform: Callable[[Any], Any] | None = None
    # "ram", a folder or a Cache: later epochs read what transform made of a record in the first
    cache: str | os.PathLike[str] | Cache | None = None
    # image operations, after transform; drawn by seed and index, and therefore repeatable
    augment: Augment | None = None
    # "producers": OpenCV, after transform; "dali-cpu" or "dali-gpu": in the trainer; "auto"
    # measures
    augment_on: str = "producers"
    # records per delivered batch; None keeps batches as produced, without the cost of re-batching
    batch_size: int | None = None
    # "drop" gives a static batch dimension in a session, but loses the last records
    last_batch: str = "keep"
    # None: only a session shuffles, as the hand-written idiom does
    shuffle: bool | Shuffle | None = None
    dtypes: Any = None  # cast once, in the producers, instead of in every step
    # fill value for records of varying shape, True: zeros; None refuses such records
    pad: bool | int | float | None = None
    # with pad, batches become (batch, lengths): the shape of each record, for masks
    lengths: bool = False
    # epochs over a finite source; None: one for each iteration, endless in a session
    epochs: int | None = None
    seed: int | None = None  # root of every random draw; None draws one
    # (rank, world): this rank's share, with as many records as every other rank's
    shard: tuple[int, int] | None = None
    # "drop" or "pad": what happens to records that cannot be divided among the ranks
    remainder: str | None = None
    # the indices of an epoch and their order: indices(seed, epoch, length), or an iterable
    sampler: Any = None
    order: str = "kept"  # "any" delivers what is ready first: a slow batch delays no other
    # bound on the bytes of batches in flight; None: a quarter of the free memory
    memory: int | str | None = None
    # "skip" continues without the record (or batch) that raised, and counts it
    on_error: str = "raise"
    error_limit: int = 100  # maximum number of skipped errors; the next one ends the feed
    # "restart" replaces a killed worker process and makes its unfinished batches again
    on_worker_death: str = "raise"
    # a longer wait for one batch is an error that shows every producer's stack
    stall_timeout_s: float = 60.0
    repeat_per_producer: bool = False  # allow each producer its own full copy of a finite callable
    # publish metrics: "tensorboard:DIR" or "prometheus:127.0.0.1:9123"
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
        for name, choices in OPTION_CHOICES.items():
            _one_of(name, getattr(self, name), choices=choices)
        if not (self.shuffle is None or isinstance(self.shuffle, (bool, Shuffle))):
            raise OptionError(
                f"shuffle must be None, True, False or Shuffle(capacity=...), got {self.shuffle!r}"
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
        limit = self.stall_timeout_s
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
            raise OptionError(
                f"stall_timeout_s must be a number of seconds > 0, got {self.stall_timeout_s!r}; "
                "float('inf') waits without a limit"
            )
        if self.cache is not None and not isinstance(self.cache, Cache):
            object.__setattr__(self, "cache", Cache(self.cache))
        # checks which of these options fit together
        recipe = Recipe(self.shuffle is True, self.sampler, self.shard, self.remainder)
        object.__setattr__(self, "shard", recipe.shard)
        _check_augment(self.augment, self.augment_on)
        _ = self.metrics_target
        _ = self.memory_nbytes

    @property
    def memory_nbytes(self) -> int:
        """The bound on batches in flight, in bytes."""
        return parse_bytes(self.memory) if self.memory is not None else free_memory_nbytes() // 4

    @property
    def metrics_target(self) -> MetricsTarget | None:
        """The destination of published metrics, or None."""
        return None if self.metrics is None else parse_metrics(self.metrics)

    @property
    def producers(self) -> int:
        """The number of parallel streams."""
        return self.threads * max(1, self.processes)

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

    Raise OptionError for an unknown keyword, with the closest known one.
    """
    known = [f.name for f in fields(FeedOptions)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.7)
            hint = f"did you mean {near[0]}=?" if near else f"the options are {', '.join(known)}"
            raise OptionError(f"FeedRunner has no option {name!r}: {hint}")
    return FeedOptions(**given)


def parse_bytes(value: int | str) -> int:
    """Return the bytes in 2000000, "2GB" or "512 MiB"; raise OptionError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgG]?[iI]?[bB]?)\s*", str(value))
    known = match is not None and not isinstance(value, bool) and match[2].upper() in BYTE_UNITS
    nbytes = (
        int(float(match[1]) * BYTE_UNITS[match[2].upper()]) if match is not None and known else 0
    )
    if not nbytes:
        raise OptionError(f'memory must be a number of bytes > 0, such as "2GB", got {value!r}')
    return nbytes


def parse_metrics(value: str) -> MetricsTarget:
    """Parse "tensorboard:DIR", "prometheus:9123" (this machine only) or "prometheus:HOST:PORT".

    Raise OptionError for anything else.
    """
    such_as = (
        'metrics must be "tensorboard:DIR" or "prometheus:HOST:PORT", such as '
        f'"prometheus:127.0.0.1:9123", got {value!r}'
    )
    if not isinstance(value, str):
        raise OptionError(such_as)
    kind, _, place = value.partition(":")
    if kind not in METRICS_KINDS:
        near = difflib.get_close_matches(kind, METRICS_KINDS, 1, 0.6)
        raise OptionError(such_as + (f"; did you mean {near[0]}:?" if near else ""))
    if kind == "tensorboard":
        if not place or "://" in place or "\0" in place:
            raise OptionError(
                f"metrics must name a local folder, as in tensorboard:runs, got {value!r}"
            )
        return MetricsTarget(kind, place)
    found = re.fullmatch(r"(?:(\[[0-9a-fA-F:.]+\]|[^:\[\]\s]+):)?(\d{1,5})", place)
    if found is None or int(found[2]) > 65535:
        raise OptionError(
            f"{such_as}: it needs an IPv4 address, host name or [IPv6 address], and a port of 0 "
            "(any free port) to 65535"
        )
    return MetricsTarget(kind, (found[1] or "127.0.0.1").strip("[]"), int(found[2]))


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
    if options.filter is not None and options.shard is not None:
        raise OptionError(
            "filter= with shard=: the ranks would get different numbers of records. Choose the "
            "records before they are divided: sampler=indices"
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

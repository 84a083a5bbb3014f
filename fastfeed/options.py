"""Every option of a FeedRunner: one frozen, validated value. Sinks have no options of their own for
the same thing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

from fastfeed.core.machine import free_memory_nbytes
from fastfeed.core.order import Recipe
from fastfeed.errors import OptionError

if TYPE_CHECKING:
    from fastfeed.augment.spec import Augment

EXECUTORS = ("producers", "dali-cpu", "dali-gpu", "auto")
METRICS = ("tensorboard", "prometheus")
UNITS = {
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

    `capacity` is the largest pool and `min_after_dequeue` the smallest that is drawn from, both in
    records. Larger pools shuffle better, take more memory (capacity x record bytes) and delay the
    first batch.
    """

    capacity: int = 2000
    min_after_dequeue: int = 1000

    def __post_init__(self) -> None:
        if not all(isinstance(n, Integral) for n in (self.capacity, self.min_after_dequeue)):
            raise OptionError(f"{self!r}: must be integers, in records")
        if self.min_after_dequeue < 0 or self.capacity <= self.min_after_dequeue:
            raise OptionError(
                f"Shuffle(capacity={self.capacity}, min_after_dequeue={self.min_after_dequeue}): "
                "must be 0 <= min_after_dequeue < capacity"
            )


@dataclass(frozen=True)
class MetricsTarget:
    """Where figures are published: `place` is a folder for TensorBoard, and for Prometheus the host
    to listen on."""

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
    """The keywords of FeedRunner; each comment gives the trade-off."""

    # more of them hide waiting (sleep, network, disk, native code); pure Python gains nothing
    threads: int = 1
    # worker processes with `threads` producers each: for Python code, at 0.2 s and 30 MB a worker
    processes: int = 0
    records: bool | None = None  # the source yields single records; None: True for an indexable
    # function of one item, in the producers: what makes one stream parallel
    transform: Callable[[Any], Any] | None = None
    # operations on images, after transform: drawn by seed and index, so repeatable
    augment: Augment | None = None
    # OpenCV beside transform; "dali-cpu" or "dali-gpu" in the trainer; "auto" measures
    augment_on: str = "producers"
    # records of a delivered batch; None keeps batches as they were produced, at no cost
    batch_size: int | None = None
    # "drop" gives a static batch dimension in a session, at the price of the last records
    last_batch: str = "keep"
    # None: only a session shuffles, as the hand-written idiom does
    shuffle: bool | Shuffle | None = None
    dtypes: Any = None  # cast once, in the producers, instead of in every step
    # records of varying shape: None refuses them, True pads with zeros, a number pads with it
    pad: bool | int | float | None = None
    # with pad, batches become (batch, lengths): the shape of each record, for masks
    lengths: bool = False
    # passes over a finite source; None: one for each iteration, no end in a session
    epochs: int | None = None
    seed: int | None = None  # root of every draw; None draws one
    # (rank, world): this rank's share, with as many records as every other rank's
    shard: tuple[int, int] | None = None
    # "drop" or "pad": what happens to records that cannot be divided among the ranks
    remainder: str | None = None
    # which indices an epoch has, in which order: indices(seed, epoch, length), or an iterable
    sampler: Any = None
    order: str = "kept"  # "any" delivers what is ready first: no wait for a straggler
    # bytes of batches in flight; None: a quarter of the free memory
    memory: int | str | None = None
    # "skip" leaves out the record (or batch) that raised, and counts it
    on_error: str = "raise"
    error_limit: int = 100  # skipped errors in all; one more ends the feed
    # "restart" produces again what a killed worker process had in flight
    on_worker_death: str = "raise"
    # a longer wait for one batch raises an error with every producer's stack
    stall_timeout_s: float = 60.0
    repeat_per_producer: bool = False  # allow each producer its own full copy of a finite callable
    # publish the figures: "tensorboard:DIR" or "prometheus:127.0.0.1:9123"
    metrics: str | None = None

    def __post_init__(self) -> None:
        _integer("threads", self.threads, least=1, hint="one producer thread is the least")
        _integer(
            "processes",
            self.processes,
            least=0,
            hint="0 makes the batches in threads of this process",
        )
        for name in ("batch_size", "epochs"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), least=1, hint="leave it out for the default")
        _one_of("last_batch", self.last_batch, choices=("keep", "drop"))
        _one_of("order", self.order, choices=("kept", "any"))
        _one_of("on_error", self.on_error, choices=("raise", "skip"))
        _one_of("on_worker_death", self.on_worker_death, choices=("raise", "restart"))
        _integer(
            "error_limit", self.error_limit, least=0, hint='on_error="raise" allows no error at all'
        )
        if not (self.shuffle is None or isinstance(self.shuffle, (bool, Shuffle))):
            raise OptionError(
                f"shuffle={self.shuffle!r}: must be None, True, False or Shuffle(capacity=...)"
            )
        flags = ("lengths", (True, False)), ("repeat_per_producer", (True, False))
        for name, choices in (("records", (None, True, False)), *flags):
            if not any(getattr(self, name) is choice for choice in choices):
                raise OptionError(f"{name}={getattr(self, name)!r}: must be one of {choices}")
        if self.transform is not None and not callable(self.transform):
            raise OptionError(f"transform={self.transform!r}: must be a function of one item")
        if self.pad is not None and not isinstance(self.pad, (bool, int, float)):
            raise OptionError(f"pad={self.pad!r}: must be None, True (zeros) or a number")
        if self.lengths and not self.padded:
            raise OptionError("lengths=True: needed pad= as well, for records whose shape varies")
        number = isinstance(self.seed, Integral) and not isinstance(self.seed, bool)
        if self.seed is not None and not (number and int(self.seed) >= 0):
            raise OptionError(f"seed={self.seed!r}: must be an integer >= 0, or None")
        limit = self.stall_timeout_s
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
            raise OptionError(
                f"stall_timeout_s={self.stall_timeout_s!r}: must be seconds above 0 (float('inf'): "
                "never)"
            )
        # checked here, and not when the order is made: Recipe knows which options exclude each
        # other
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
        """Where figures are published; None: nowhere."""
        return None if self.metrics is None else parse_metrics(self.metrics)

    @property
    def producers(self) -> int:
        """Number of producers that work in parallel."""
        return self.threads * max(1, self.processes)

    def shipped(self) -> FeedOptions:
        """Return the options for a worker process, which should not import TensorFlow to know a
        dtype."""
        return replace(self, dtypes=_numpy_dtypes(self.dtypes), sampler=None)

    @property
    def pool_pad(self) -> bool | int | float | None:
        """The padding of records in a shuffle pool; None where all have one shape."""
        return self.pad if self.padded else True if self.packed else None

    @property
    def packed(self) -> bool:
        """True if DALI executes what is left of `augment`, after the producers."""
        return self.augment is not None and self.augment_on != EXECUTORS[0]

    @property
    def padded(self) -> bool:
        """True if records may vary in shape."""
        return self.pad is not None and self.pad is not False


def options_from(given: dict[str, Any]) -> FeedOptions:
    """Return FeedOptions from keywords. Raise OptionError, which names the nearest option, for one
    that does not exist."""
    known = [f.name for f in fields(FeedOptions)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.7)
            hint = f"did you mean {near[0]}=?" if near else f"the options are {', '.join(known)}"
            raise OptionError(f"FeedRunner has no option {name!r}: {hint}")
    return FeedOptions(**given)


def parse_bytes(value: int | str) -> int:
    """Return bytes from 2000000, "2GB" or "512 MiB"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgG]?[iI]?[bB]?)\s*", str(value))
    known = match is not None and not isinstance(value, bool) and match[2].upper() in UNITS
    nbytes = int(float(match[1]) * UNITS[match[2].upper()]) if match is not None and known else 0
    if not nbytes:
        raise OptionError(f'memory={value!r}: must be a number of bytes above 0, such as "2GB"')
    return nbytes


def parse_metrics(value: str) -> MetricsTarget:
    """Return the target of "tensorboard:DIR", "prometheus:9123" (reachable from this machine only)
    or "prometheus:HOST:PORT"."""
    such_as = 'needed "tensorboard:DIR" or "prometheus:127.0.0.1:9123"'
    if not isinstance(value, str):
        raise OptionError(f"metrics={value!r}: {such_as}")
    kind, _, place = value.partition(":")
    if kind not in METRICS:
        near = difflib.get_close_matches(kind, METRICS, 1, 0.6)
        raise OptionError(
            f"metrics={value!r}: {such_as}" + (f"; did you mean {near[0]}:?" if near else "")
        )
    if kind == "tensorboard":
        if not place or "://" in place or "\0" in place:
            raise OptionError(
                f"metrics={value!r}: must be a folder of this machine, as in tensorboard:runs"
            )
        return MetricsTarget(kind, place)
    found = re.fullmatch(r"(?:(\[[0-9a-fA-F:.]+\]|[^:\[\]\s]+):)?(\d{1,5})", place)
    if found is None or int(found[2]) > 65535:
        raise OptionError(
            f"metrics={value!r}: needed a host and a port of 0 (any that is free) to 65535; "
            f"{such_as}"
        )
    return MetricsTarget(kind, (found[1] or "127.0.0.1").strip("[]"), int(found[2]))


def _numpy_dtypes(given: Any) -> Any:
    if isinstance(given, dict):
        return {key: _numpy_dtypes(value) for key, value in given.items()}
    if isinstance(given, (tuple, list)):
        return [_numpy_dtypes(value) for value in given]
    return getattr(given, "as_numpy_dtype", given)


def _check_augment(augment: Any, on: str) -> None:
    _one_of("augment_on", on, choices=EXECUTORS)
    if augment is None:
        if on != EXECUTORS[0]:
            raise OptionError(
                f"augment_on={on!r}: needed augment= as well, the operations to execute"
            )
        return
    from fastfeed.augment.spec import Augment

    if not isinstance(augment, Augment):
        hint = (
            "around that list"
            if isinstance(augment, (list, tuple))
            else "of operations, such as Flip()"
        )
        raise OptionError(f"augment={augment!r}: needed a fastfeed.augment.Augment([...]) {hint}")


def _integer(name: str, value: Any, *, least: int, hint: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise OptionError(f"{name}={value!r}: must be an integer >= {least}; {hint}")


def _one_of(name: str, value: Any, *, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise OptionError(f"{name}={value!r}: must be one of {', '.join(map(repr, choices))}")

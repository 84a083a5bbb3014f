"""Values of options: what belongs to one option and is nothing without it."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, overload

from fastfeed.core.order import is_integer
from fastfeed.errors import OptionError

AUTO = "auto"  # of numbers of producers
OWN_CLUSTERS = ("local", "auto")  # of remote=
METRICS_KINDS = ("tensorboard", "prometheus")
BYTE_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


class Auto(int):
    """A number of producers that the runner changes while the training runs: the present one."""

    def __repr__(self) -> str:
        return repr(AUTO)

    def __str__(self) -> str:
        return AUTO


class Count:
    """A field of a frozen dataclass: a number of producers, or "auto", which begins with one.

    See "Descriptor-typed fields" in the documentation of dataclasses.
    """

    def __init__(self, default: int) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> int: ...

    @overload
    def __get__(self, instance: object, owner: type) -> int: ...

    def __get__(self, instance: object | None, owner: type) -> Any:
        return self._default if instance is None else instance.__dict__[self._name]

    def __set__(self, instance: object, value: int | Literal["auto"]) -> None:
        # a fixed number stays what it is, so that it can be refused by name
        instance.__dict__[self._name] = Auto(1) if value == AUTO else value


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
        if not all(map(is_integer, (self.capacity, self.min_after_dequeue))):
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
class Remote:
    """Producers in actors of Ray, beside those of `processes`.

    `address`: "local" starts Ray on this machine, "auto" finds the cluster that it belongs to, and
    "ray://host:port" or "host:port" is that of another one. `producers` have one thread each;
    "auto" changes their number while the training runs. Ray
    reserves `cpus` for each of them, such as 0.1 for producers that wait. Raise OptionError for
    values that cannot be.
    """

    address: str
    producers: Count = Count(1)
    cpus: float = 1.0

    def __post_init__(self) -> None:
        parse_address(self.address)
        if not is_integer(self.producers) or self.producers < 1:
            raise OptionError(
                f'producers of Remote must be an integer >= 1 or "auto", got {self!r}'
            )
        cpus = self.cpus
        if isinstance(cpus, bool) or not isinstance(cpus, (int, float)) or not 0 <= cpus < inf:
            raise OptionError(f"cpus of Remote must be a number >= 0, got {self!r}")
        if cpus > 1 and cpus != int(cpus):
            raise OptionError(f"cpus above 1 must be whole, as Ray wants it, got {self!r}")


@dataclass(frozen=True)
class Pad:
    """Records of varying shape are filled up with `value`; True stands for zeros.

    With `lengths`, batches become (batch, lengths): the shape of each record, for masks. Raise
    OptionError for a value that is no number.
    """

    value: bool | int | float = True
    lengths: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.value, (bool, int, float)):
            raise OptionError(
                f"pad must be None, False, True (zeros), a number or Pad(...), got {self.value!r}"
            )
        if not isinstance(self.lengths, bool):
            raise OptionError(f"lengths of Pad must be True or False, got {self.lengths!r}")


@dataclass(frozen=True)
class Skip:
    """Records and batches that raise are left out and counted, up to `limit` of them; the next
    error ends the feed. Raise OptionError for a limit that is no number of errors."""

    limit: int = 100

    def __post_init__(self) -> None:
        if not is_integer(self.limit) or self.limit < 0:
            raise OptionError(
                f'limit of Skip must be an integer >= 0, got {self.limit!r}; use on_error="raise" '
                "to allow no error"
            )


@dataclass(frozen=True)
class Reorder:
    """Batches of the source leave as they are ready, and none more than `window` batches after its
    place in the order of the source: at most so many overtake a slow one, then the feed waits for
    it. Raise OptionError for a window that is no integer >= 1."""

    window: int

    def __post_init__(self) -> None:
        if not is_integer(self.window) or self.window < 1:
            raise OptionError(
                f"window of Reorder must be an integer >= 1, got {self.window!r}; use "
                'order="kept" to let no batch be late, and order="any" for no bound'
            )


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


def parse_bytes(value: int | str, name: str = "memory") -> int:
    """Return the bytes in 2000000, "2GB" or "512 MiB"; raise OptionError for anything else, with
    the name of what is given."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?[iI]?[bB]?)\s*", str(value))
    known = match is not None and not isinstance(value, bool) and match[2].upper() in BYTE_UNITS
    nbytes = (
        int(float(match[1]) * BYTE_UNITS[match[2].upper()]) if match is not None and known else 0
    )
    if not nbytes:
        raise OptionError(f'{name} must be a number of bytes > 0, such as "2GB", got {value!r}')
    return nbytes


def parse_address(value: str) -> tuple[str, int] | None:
    """Return host and port of "ray://host:port" or "host:port"; None for "local" and "auto", whose
    address Ray knows. Raise OptionError for anything else."""
    if value in OWN_CLUSTERS:
        return None
    found = re.fullmatch(r"(?:ray://)?(\[[0-9a-fA-F:.]+\]|[^:/\[\]\s]+):(\d{1,5})", str(value))
    if not isinstance(value, str) or found is None or not 0 < int(found[2]) < 65536:
        raise OptionError(
            'remote must be "local" (Ray on this machine), "auto" (the cluster that this machine '
            f'belongs to) or an address such as "ray://host:10001" or "host:6379", got {value!r}'
        )
    return found[1].strip("[]"), int(found[2])


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

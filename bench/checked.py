"""Batches that carry proof of themselves, the ledger that checks them, and what a tree of processes
holds."""

from __future__ import annotations

import itertools
import logging
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

import numpy as np
import psutil

from fastfeed import Worker

RECORDS = 16
MB = 1e6


@dataclass(frozen=True)
class Stamped:
    """An indexable of whole batches. Batch i holds the records 16 i to 16 i + 15, `width` random
    bytes each (or, with `vary`, up to four times as many), and in `check` the checksum over every
    other byte of the batch."""

    total: int
    width: int
    vary: bool = False

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = np.arange(index * RECORDS, (index + 1) * RECORDS)
        width = self.width * (1 + index * 7919 % 4) if self.vary else self.width
        data = np.random.randint(0, 256, (RECORDS, width), np.uint8)
        return {"check": np.full(RECORDS, checksum(ids, data)), "data": data, "ids": ids}


@dataclass(frozen=True)
class InPlace:
    """The same as a callable that fills its batches in the ring's own memory: every producer
    numbers its own."""

    width: int
    vary: bool = False

    def __call__(self, worker: Worker) -> Iterator[dict[str, Any]]:
        for index in itertools.count():
            width = self.width * (1 + index * 7919 % 4) if self.vary else self.width
            batch = worker.empty({**_like(width), "who": np.empty(RECORDS, np.int64)})
            batch["data"][...] = worker.rng.integers(0, 256, batch["data"].shape, np.uint8)
            batch["ids"][...] = np.arange(index * RECORDS, (index + 1) * RECORDS)
            batch["check"][...] = checksum(batch["ids"], batch["data"])
            batch["who"][...] = worker.index
            yield batch


def _like(width: int) -> dict[str, Any]:
    numbers = np.empty(RECORDS, np.int64)
    return {"check": numbers, "data": np.empty((RECORDS, width), np.uint8), "ids": numbers}


def checksum(ids: np.ndarray[Any, Any], data: np.ndarray[Any, Any]) -> int:
    """Over the bytes of both, and their shape."""
    return zlib.crc32(np.ascontiguousarray(data), zlib.crc32(ids.tobytes(), data.shape[1]))


@dataclass
class Ledger:
    """Takes every batch in the order of its stream (there is one, but for InPlace) and notes what
    is wrong."""

    batches: int = 0
    nbytes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    _next: Counter[int] = field(default_factory=Counter)

    def take(self, batch: dict[str, Any]) -> None:
        """Return the next batch."""
        ids, data, check = batch["ids"], batch["data"], batch["check"]
        self.batches += 1
        self.nbytes += data.nbytes + ids.nbytes + check.nbytes
        if not (check == checksum(ids, data)).all():
            self.note("torn", f"batch {self.batches - 1}: the checksum is wrong")
        start, who = int(ids[0]), int(batch["who"][0]) if "who" in batch else 0
        if start != self._next[who] or not (np.diff(ids) == 1).all() or len(ids) != RECORDS:
            needed = self._next[who]
            self.note(
                "lost" if start > needed else "repeated",
                f"stream {who}: needed record {needed}, got {ids[:2]}",
            )
        self._next[who] = start + RECORDS

    def note(self, kind: str, text: str) -> None:
        """Something is wrong."""
        self.faults[kind] += 1
        self.first.setdefault(kind, text)


@dataclass(frozen=True)
class Footprint:
    """Memory and handles of this process and its descendants. PSS counts shared pages once."""

    pss_mb: float
    descriptors: int
    maps: int
    threads: int
    processes: int

    @classmethod
    def now(cls) -> Footprint:
        """At this moment; a process that ends meanwhile is left out."""
        me = psutil.Process()
        pss = 0
        tree = [me, *me.children(recursive=True)]
        for process in tree:
            try:
                pss += process.memory_full_info().pss
            except (
                psutil.NoSuchProcess,
                psutil.AccessDenied,
                FileNotFoundError,
                ProcessLookupError,
            ):
                continue
        with open("/proc/self/maps") as maps:
            lines = sum(1 for _ in maps)
        return cls(
            round(pss / MB, 1), len(os.listdir("/proc/self/fd")), lines, me.num_threads(), len(tree)
        )

    @classmethod
    def soon(cls, pick: Callable[..., Any]) -> Footprint:
        """The least (`min`) or the most (`max`) of each figure in half a second: workers come and
        go meanwhile."""
        found = []
        for _ in range(10):
            found.append(astuple(cls.now()))
            time.sleep(0.05)
        return cls(*map(pick, zip(*found, strict=True)))

    def __sub__(self, other: Footprint) -> dict[str, float]:
        mine, its = asdict(self), asdict(other)
        return {name: round(mine[name] - its[name], 1) for name in mine}


# What may come and go without being growth: a worker more or less at work, an allocator's mood.
TOLERATED = {"pss_mb": 16.0, "descriptors": 8, "maps": 24, "threads": 0, "processes": 1}


def grown(growth: dict[str, float]) -> dict[str, float]:
    """Return the resources that grew by more than the tolerance."""
    return {name: value for name, value in growth.items() if value > TOLERATED[name]}


def quiet() -> None:
    """A restart is a warning; a thousand of them are none."""
    logging.getLogger("fastfeed").setLevel(logging.ERROR)

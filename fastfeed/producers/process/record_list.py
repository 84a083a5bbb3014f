"""A list of many small records for worker processes: each is pickled by itself, and unpickled where
it is read, so that all workers share the pickles."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from fastfeed.producers.process.ship import LARGE_NBYTES, PROTOCOL

MANY = 10_000  # records, from which a worker would take milliseconds to unpickle them
SAMPLE = 100  # records, which together may be so many times smaller than one by one
MOST_REPEATED = 2.0
# Values of these modules are what they are: two copies of one are as good as itself.
PLAIN = {"builtins", "numpy", "datetime", "pathlib", "decimal", "fractions", "uuid", "collections"}
PLAIN.add("copyreg")  # which pickles of some of them call


class RecordList(Sequence[Any]):
    """The records of a list. A record is a copy of its own each time that it is read."""

    def __init__(self, pickles: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> None:
        self._pickles = pickles
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        begin = self._ends[number - 1] if number else 0
        return pickle.loads(self._pickles[begin : self._ends[number]].data)


def compact(data: Any) -> Any:
    """Return a RecordList of a long list of plain records, and anything else as it is.

    Objects with a state of their own, large arrays, and records that share much stay in a list,
    whose pickle keeps them as they are.
    """
    if type(data) is not list or len(data) < MANY:
        return data
    memory = io.BytesIO()
    pickler, ends = _PlainPickler(memory), np.empty(len(data), np.int64)
    try:
        pickler.dump(data[:SAMPLE])
        together = memory.tell()
        memory.seek(0)
        for number, record in enumerate(data):
            pickler.clear_memo()
            pickler.dump(record)
            ends[number] = memory.tell()
            if number == SAMPLE and memory.tell() > MOST_REPEATED * together + LARGE_NBYTES:
                return data
    except Exception:  # of the user's objects: the pickle of the whole list names the part
        return data
    return RecordList(np.frombuffer(memory.getbuffer(), np.uint8)[: memory.tell()], ends)


class _PlainPickler(pickle.Pickler):
    """Pickler of plain values; TypeError for any other one."""

    def __init__(self, memory: io.BytesIO) -> None:
        super().__init__(memory, PROTOCOL, buffer_callback=_refuse_large)

    def reducer_override(self, value: Any) -> Any:
        by_name = isinstance(value, (type, FunctionType, BuiltinFunctionType))
        module = (value if by_name else type(value)).__module__ or "builtins"
        plain = module.split(".")[0] in PLAIN and not module.startswith("numpy.random")
        if not plain or hasattr(type(value), "__next__"):
            raise TypeError(f"{type(value).__name__} is no plain value")
        return NotImplemented


def _refuse_large(buffer: pickle.PickleBuffer) -> bool:
    """Raise TypeError for a buffer that workers can map."""
    if buffer.raw().nbytes >= LARGE_NBYTES:
        raise TypeError("a large array is mapped by all workers")
    return True

"""Lists that several streams of one process read, and one of them shuffles in place: the others
then miss records, and read some twice."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Hashable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from fastfeed.errors import FeedWarning

SAMPLED_PLACES = 64  # elements whose places are compared
LARGEST_LIST = 1_000_000  # of a list that is looked at: a look at so many takes 30 ms


class _Known(NamedTuple):
    """A list as it was when a stream first read it."""

    streams: set[int]
    held: Any  # keeps its id from being used again
    places: Hashable  # what some of its places hold
    content: Hashable  # what all of them hold, in any order


class SharedOrder:
    """The lists and arrays of one dimension that the generators of a callable read: as arguments,
    attributes of `self`, and names from outside."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._lock = threading.Lock()
        self._said = False

    def look(self, stream: int, generator: Any) -> None:
        """Look at what a stream reads, between two of its items. Warn once if it is a list that
        another stream reads, too, and whose elements have changed places."""
        frame = getattr(generator, "gi_frame", None)
        if self._said or frame is None:
            return
        for name, value in _read_by(frame):
            known = self._known.get(id(value))
            if known is None:
                new = _Known({stream}, value, _places(value), _content(value))
                with self._lock:
                    known = self._known.setdefault(id(value), new)
            known.streams.add(stream)
            moved = len(known.streams) > 1 and _places(value) != known.places
            if moved and _content(value) == known.content:
                self._warn(name)
                return

    def forget(self, stream: int) -> None:
        """Forget what only a stream reads, which has ended."""
        with self._lock:
            for key, known in list(self._known.items()):
                known.streams.discard(stream)
                if not known.streams:
                    del self._known[key]

    def _warn(self, name: str) -> None:
        with self._lock:
            said, self._said = self._said, True
        if not said:
            warnings.warn(
                f"several producer threads read the list `{name}`, and its order has changed "
                "meanwhile: where one of them shuffles it in place, the others miss records and "
                f"read some twice. Shuffle a copy in the callable, such as `list({name})`, or use "
                "processes=, each of which has a copy",
                FeedWarning,
                stacklevel=2,
            )


def _read_by(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the lists that a generator gets from outside, with their names."""
    code, inside = frame.f_code, frame.f_locals
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found = [(name, inside[name]) for name in (*arguments, *code.co_freevars) if name in inside]
    owned = [(name, list(vars(one).items())) for name, one in found if hasattr(one, "__dict__")]
    found += [(f"{name}.{key}", one) for name, attributes in owned for key, one in attributes]
    found += [(name, frame.f_globals[name]) for name in code.co_names if name in frame.f_globals]
    for name, value in found:
        array = type(value) is np.ndarray and value.ndim == 1 and not value.dtype.hasobject
        if (array or type(value) is list) and 1 < len(value) <= LARGEST_LIST:
            yield name, value


def _places(value: Any) -> Hashable:
    sample = value[:: max(1, len(value) // SAMPLED_PLACES)]
    return tuple(map(id, sample)) if isinstance(value, list) else sample.tobytes()


def _content(value: Any) -> Hashable:
    return sum(map(id, value)) if isinstance(value, list) else hash(np.sort(value).tobytes())

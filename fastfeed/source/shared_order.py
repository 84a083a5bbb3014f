"""Warning of a list that several producer threads read, and one of them shuffles in place: the
others then miss records, and read some twice."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np

from fastfeed.errors import FeedWarning

SAMPLED_PLACES = 64  # elements whose places are compared
LARGEST_LIST = 1_000_000  # of a list that is looked at: a look at so many takes 30 ms


@dataclass
class _Known:
    """A list that is read. Only one that a second stream reads, too, is looked at as a whole."""

    held: Any  # keeps its id from being used again
    streams: set[int] = field(default_factory=set)
    places: Hashable = None  # what some of its places held when a second stream read it
    content: Hashable = None  # what all of them held, in any order

    def moved(self, stream: int) -> bool:
        """Note that a stream reads it; return True if its elements have changed places since a
        second one did."""
        self.streams.add(stream)
        if len(self.streams) < 2:
            return False
        if self.content is None:
            self.places, self.content = _places(self.held), _content(self.held)
        return _places(self.held) != self.places and _content(self.held) == self.content


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
        with self._lock:
            name = self._moved(stream, frame)
            self._said = self._said or bool(name)
        if name:
            warnings.warn(
                f"several producer threads read the list `{name}`, and its order has changed "
                "meanwhile: where one of them shuffles it in place, the others miss records and "
                f"read some twice. Shuffle a copy in the callable, such as `list({name})`, or use "
                "processes=, each of which has a copy",
                FeedWarning,
                stacklevel=2,
            )

    def _moved(self, stream: int, frame: FrameType) -> str:
        """Return the name of a list that was shuffled, "" if none is seen."""
        if self._said:
            return ""
        try:
            for name, value in _read_by(frame):
                if self._known.setdefault(id(value), _Known(value)).moved(stream):
                    return name
        except Exception:  # attributes and elements run code of the user's classes
            return ""
        return ""

    def forget(self, stream: int) -> None:
        """Forget what only a stream reads, which has ended."""
        with self._lock:
            for key, known in list(self._known.items()):
                known.streams.discard(stream)
                if not known.streams:
                    del self._known[key]


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

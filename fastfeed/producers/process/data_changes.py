"""What the on_epoch_end of a data set changes, for the copies of it in worker processes.

The trainer calls it, and notes which attributes it reads or sets. These are sent; what else a copy
holds, such as a file that its worker has opened, stays.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fastfeed.errors import OptionError
from fastfeed.producers.generators import GENERATOR_KINDS
from fastfeed.producers.process.ship import (
    LARGE_NBYTES,
    Shipment,
    SourcePickler,
    pack,
    unpack_from,
)

_receiving = threading.local()  # `copy`: the data set of the thread that unpacks changes of it


class Content(NamedTuple):
    """What an attribute holds: a digest, bytes, and True if a random generator is part of it."""

    digest: Any
    nbytes: int
    draws: bool


class DataChanges:
    """Calls `on_epoch_end` of `data`. `version` counts the calls, and `shipment` holds what all of
    them have changed. Raise OptionError where that cannot be sent."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._names: set[str] = set()  # of attributes that were sent
        self._removed: set[str] = set()
        self.version = 0
        self.shipment = Shipment(-1, 0)
        self._state()  # what cannot be sent is refused before the first epoch

    def call(self) -> None:
        """Call on_epoch_end, and pack what it has changed."""
        before = self._watched_call()
        present, kept = vars(self._data), self._state()
        owner = type(self._data).__name__
        for name, old in before.items():
            if name in kept and not isinstance(kept[name], GENERATOR_KINDS):
                now = self._content(kept[name])
                # A small one may be a cache that is emptied here, and that only the copies fill.
                if now == old and now.nbytes >= LARGE_NBYTES:
                    continue
                if now.draws:
                    raise OptionError(
                        f"on_epoch_end of {owner} uses {name!r}, which holds a random generator, "
                        "and workers seed those of their copies for each record: keep the "
                        "generator in an attribute of its own, or use threads= without processes="
                    )
                self._names.add(name)
                self._removed.discard(name)
            elif old is not None and name not in present:
                self._names.discard(name)
                self._removed.add(name)
        values = {name: kept[name] for name in sorted(self._names & kept.keys())}
        self.shipment.close()
        self.shipment = pack(
            (values, sorted(self._removed)),
            what=f"what on_epoch_end of {owner} changes",
            pickler=self._pickler,
        )
        self.version += 1

    def _state(self) -> dict[str, Any]:
        """Return the attributes that copies have. Raise OptionError where the data set pickles
        something else."""
        own = getattr(self._data, "__getstate__", None)  # of every object since Python 3.11
        state: Any = getattr(self._data, "__dict__", None) if own is None else own()
        if not (isinstance(state, dict) and hasattr(self._data, "__dict__")):
            raise OptionError(
                f"{type(self._data).__name__} has an on_epoch_end, and its state is no dict of "
                "attributes, of which workers could get those that change: use threads= without "
                "processes="
            )
        return state

    def _watched_call(self) -> dict[str, Content | None]:
        """Call on_epoch_end. Return the attributes that it has read or set, with what each held
        before; None: it was not there."""
        data, used = self._data, {}
        attributes: dict[str, Any] = vars(data)

        def note(name: str) -> None:
            for one in (name, *attributes) if name == "__dict__" else (name,):
                if one not in used:
                    used[one] = self._content(attributes[one]) if one in attributes else None

        plain = type(data)
        try:
            data.__class__ = _watched(plain, note)
        except TypeError:  # of a class that cannot be extended
            note("__dict__")
        try:
            data.on_epoch_end()
        finally:
            if type(data) is not plain:
                object.__setattr__(data, "__class__", plain)
        if "__dict__" in used:
            used.update(dict.fromkeys(attributes.keys() - used))  # new ones
        return used

    def _pickler(self) -> _ChangePickler:
        return _ChangePickler(self._data)

    def _content(self, value: Any) -> Content:
        pickler, digest = self._pickler(), hashlib.blake2b()
        try:
            pickler.dump(value)
        except Exception:  # of the user's objects: where it is sent, the error names the part
            return Content(object(), 0, False)
        for piece in pickler.pieces:
            digest.update(piece)
        for array in pickler.arrays:
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        nbytes = sum(map(len, pickler.pieces)) + sum(array.nbytes for array in pickler.arrays)
        return Content(digest.digest(), nbytes, pickler.draws)


def apply_changes(data: Any, memory: memoryview) -> None:
    """Apply a shipment of changes to a copy of the data set."""
    _receiving.copy = data
    values, removed = unpack_from(memory)
    vars(data).update(values)
    for name in removed:
        vars(data).pop(name, None)


def _watched(plain: Any, note: Callable[[str], None]) -> Any:
    """Return a class like `plain` that notes each attribute which is read, set or deleted."""

    def reads(self: Any, name: str) -> Any:
        note(name)
        return plain.__getattribute__(self, name)

    def sets(self: Any, name: str, value: Any) -> None:
        note(name)
        plain.__setattr__(self, name, value)

    def deletes(self: Any, name: str) -> None:
        note(name)
        plain.__delattr__(self, name)

    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__slots__": ()}
    calls = {"__getattribute__": reads, "__setattr__": sets, "__delattr__": deletes}
    return type(plain)(plain.__name__, (plain,), {**names, **calls})


class _ChangePickler(SourcePickler):
    """Pickler of attributes of `data`, which stands for the copy of it where they arrive."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        self._data = data
        self.draws = False

    def reducer_override(self, obj: Any) -> Any:
        if obj is self._data:
            return _own_copy, ()
        self.draws = self.draws or isinstance(obj, GENERATOR_KINDS)
        return super().reducer_override(obj)


def _own_copy() -> Any:
    return _receiving.copy

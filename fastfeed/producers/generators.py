"""The random generators of a worker process: those that all of its code shares, and those that the
user's objects and modules hold."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

MASK = 2**64 - 1


class Generators:
    """Generators that are seeded together: copies in several processes would all draw the same
    numbers, and an item that is made again, elsewhere or later, must draw what it drew before.

    Those of `random`, `numpy.random` and torch belong to them; torch is never imported here.
    """

    def __init__(self, held: Iterable[Any] = ()) -> None:
        self.held = tuple(map(_access_to, held))

    @classmethod
    def of_process(cls) -> Generators:
        """Return all generators of this process. Processes that have run the same code find them
        in the same order."""
        gc.collect()  # which also decides what is tracked
        tracked, shared, torch = gc.get_objects(), _shared(), sys.modules.get("torch")
        wanted = (random.Random, np.random.RandomState, np.random.Generator)
        kinds = {kind for kind in set(map(type, tracked)) if issubclass(kind, wanted)}
        kinds -= {random.SystemRandom}  # the system's own, which cannot be seeded
        found = [one for one in tracked if type(one) in kinds]
        while torch is not None and tracked:  # its generators, and what holds only such, are not
            tracked = gc.get_referents(*tracked)
            found += [one for one in tracked if type(one) is torch.Generator]
            tracked = [
                one for one in tracked if type(one) in (dict, tuple) and not gc.is_tracked(one)
            ]
        return cls({id(one): one for one in found if one not in shared}.values())

    def seed(self, key: tuple[int, ...]) -> None:
        """Seed each generator from `key` and its place among them."""
        mixed = hash(key) & MASK  # the hash of a tuple of integers is the same in every process
        np.random.seed(mixed & 2**32 - 1)  # seeding with two integers takes three times as long
        random.seed(mixed)
        for own in _shared()[2:]:
            own.manual_seed(mixed)
        for place, one in enumerate(self.held):
            one.seed(hash((mixed, place)) & MASK)

    def states(self) -> list[Any]:
        """Return the state of each generator."""
        return [one.state() for one in (*self.held, *map(_access_to, _shared()))]

    def restore(self, states: list[Any]) -> None:
        """Set the state of each generator that was there when they were read."""
        for one, state in zip((*self.held, *map(_access_to, _shared())), states, strict=False):
            one.restore(state)


def _shared() -> list[Any]:
    """Return the generators of random, numpy and, once it is imported, torch."""
    own = getattr(sys.modules.get("torch"), "default_generator", None)
    return [random._inst, np.random.mtrand._rand, *([] if own is None else [own])]


class _Access(NamedTuple):
    """How one generator is seeded, and how its state is read and set."""

    seed: Callable[[int], Any]
    state: Callable[[], Any]
    restore: Callable[[Any], Any]


def _access_to(one: Any) -> _Access:
    if isinstance(one, random.Random):
        return _Access(one.seed, one.getstate, one.setstate)
    if isinstance(one, np.random.Generator):
        bits = one.bit_generator
        put = partial(setattr, bits, "state")
        return _Access(lambda value: put(type(bits)(value).state), lambda: bits.state, put)
    if isinstance(one, np.random.RandomState):
        kind, fresh = type(one._bit_generator), {"has_gauss": 0, "gauss": 0.0}
        return _Access(
            lambda value: one.set_state({**kind(value).state, **fresh}),
            partial(one.get_state, legacy=False),
            one.set_state,
        )
    return _Access(one.manual_seed, one.get_state, one.set_state)

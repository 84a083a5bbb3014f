"""The random generators of a worker process: those that all of its code shares, and those that the
user's objects and modules hold."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

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
        for place, (seed, _, _) in enumerate(self.held):
            seed(hash((mixed, place)) & MASK)

    def states(self) -> list[Any]:
        """Return the state of each generator."""
        return [state() for _, state, _ in (*self.held, *map(_access_to, _shared()))]

    def restore(self, states: list[Any]) -> None:
        """Set the state of each generator that was there when they were read."""
        every = *self.held, *map(_access_to, _shared())
        for (_, _, restore), state in zip(every, states, strict=False):
            restore(state)


def _shared() -> list[Any]:
    """Return the generators of random, numpy and, once it is imported, torch."""
    own = getattr(sys.modules.get("torch"), "default_generator", None)
    return [random._inst, np.random.mtrand._rand, *([] if own is None else [own])]


def _access_to(one: Any) -> tuple[Any, Any, Any]:
    """Return the functions that seed a generator, read its state and set it."""
    if isinstance(one, random.Random):
        return one.seed, one.getstate, one.setstate
    if isinstance(one, np.random.Generator):
        bits = one.bit_generator
        put = partial(setattr, bits, "state")
        return (lambda n: put(type(bits)(n).state)), (lambda: bits.state), put
    if isinstance(one, np.random.RandomState):
        kind, fresh = type(one._bit_generator), {"has_gauss": 0, "gauss": 0.0}
        state = partial(one.get_state, legacy=False)
        return (lambda n: one.set_state({**kind(n).state, **fresh})), state, one.set_state
    return one.manual_seed, one.get_state, one.set_state

"""The random generators of a worker process: those that all of its code shares, and those that the
user's objects and modules hold."""

from __future__ import annotations

import gc
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, compress, filterfalse, repeat, starmap
from sys import getrefcount
from typing import Any

import numpy as np

from fastfeed.core.array_samples import REFERENCES

HAS_YOUNG = "t" not in getattr(sys, "abiflags", "")  # else free-threaded, without generations
RANDOM_STATE: Any = type(np.random.mtrand._rand)  # whatever stands in its place
GENERATOR_KINDS: tuple[Any, ...] = (random.Random, RANDOM_STATE, np.random.Generator)
MAX_ADOPTED = 64  # more are not one for each purpose, but for each record


class Generators:
    """Generators that are seeded together: copies in several processes would all draw the same
    numbers, and an item that is made again, elsewhere or later, must draw what it drew before.
    Those of `random`, `numpy.random` and, once it is imported, torch belong to them."""

    def __init__(
        self, held: Iterable[Any] = (), *, known: Iterable[Any] = (), roots: Sequence[Any] = ()
    ) -> None:
        self.held = list(map(_access_to, held := list(held)))
        self._known = [*held, *known]  # what is not adopted
        self._met: list[Any] = []
        self._roots = roots  # of what may be adopted

    @staticmethod
    def present() -> tuple[Any, ...]:
        """Begin to look for new generators; return what `made_since` needs. The garbage collector
        must be disabled until then.

        It knows which objects are new. On free-threaded Python it does not, and the generators that
        are there are returned.
        """
        gc.collect(0)
        return () if HAS_YOUNG else tuple(_found())

    @classmethod
    def made_since(
        cls, present: tuple[Any, ...], *, within: Any, adopts: bool = False
    ) -> Generators:
        """Return the generators that were made since `present` was called, as a part of `within` or
        beside it. Processes that have run the same code since then find them in the same order.
        `adopts`: those that are made later may be added; what is there now is frozen until then.
        """
        known = {id(one) for one in (*present, *_shared())}
        new = {id(one): one for one in _found() if id(one) not in known}
        held = new.values() if HAS_YOUNG else _as_reached(new, [within, sys.modules])
        return cls(held, known=present, roots=[within, sys.modules] if adopts else ())

    def adopt(self) -> int:
        """Add the generators that were made before the last call, and that something still holds;
        return their number. Those of torch are not seen. What lasts for one record, with a seed of
        its own, does not belong to them."""
        if not self._roots:
            return 0
        used = [uses > REFERENCES for uses in map(getrefcount, self._met)]
        kept = list(compress(self._met, used))
        if len(kept) > MAX_ADOPTED:
            kept, self._roots = [], ()
        if len(kept) > 1:  # other workers may list them in another order
            kept = list(_as_reached({id(one): one for one in kept}, self._roots))
        known = set(map(id, [*self._known, *kept, *_shared()]))
        self._met = [one for one in _found(None) if id(one) not in known]
        self._known += kept
        self.held += map(_access_to, kept)
        return len(kept)

    def seed(self, key: tuple[int, ...]) -> None:
        """Seed each generator from `key` and its place among them."""
        # The hash of a tuple of integers is the same in every process.
        mixed = hash(key) & 2**64 - 1
        np.random.seed(mixed & 2**32 - 1)  # seeding with two integers takes three times as long
        random.seed(mixed)
        if "torch" in sys.modules:  # `_shared` costs more, and this runs for every record
            for own in _shared()[2:]:
                own.manual_seed(mixed)
        for place, (seed, _, _) in enumerate(self.held):
            seed(hash((mixed, place)) & 2**64 - 1)

    def states(self) -> list[Any]:
        """Return the state of each generator."""
        return [state() for _, state, _ in (*self.held, *map(_access_to, _shared()))]

    def restore(self, states: list[Any]) -> None:
        """Set the state of each generator that was there when they were read."""
        every = *self.held, *map(_access_to, _shared())
        for (_, _, restore), state in zip(every, states, strict=False):
            restore(state)


def _as_reached(objects: dict[int, Any], roots: Iterable[Any]) -> Iterator[Any]:
    """Yield objects, given by their ids, in the order in which references lead to them.

    Free-threaded Python lists them by their addresses.
    """
    seen, todo = set[int](), deque(roots)
    while objects and todo:
        one = todo.popleft()
        if id(one) not in seen:
            seen.add(id(one))
            todo.extend(gc.get_referents(one))
            if id(one) in objects:
                yield objects.pop(id(one))
    yield from objects.values()


def _found(generation: int | None = 0) -> list[Any]:
    """Return the young generators, or with None those that are not frozen, but for torch's; all of
    them, where the collector does not know their age."""
    # The collector lists what other threads are building, too, and a tuple that they build must
    # have no second reference when they go on: no step of Python runs meanwhile.
    tracked = chain.from_iterable(starmap(gc.get_objects, [(generation,)]))
    found = _of_kinds(tracked, set(GENERATOR_KINDS))
    torch = sys.modules.get("torch") if generation is not None else None
    if torch is not None:  # it does not list torch's
        tracked = chain.from_iterable(starmap(gc.get_objects, [(0,)]))
        held = chain.from_iterable(map(gc.get_referents, tracked))
        layer = _of_kinds(filterfalse(gc.is_tracked, held), {torch.Generator, dict, tuple})
        while layer:
            found += _of_kinds(layer, {torch.Generator})
            layer = [one for one in gc.get_referents(*layer) if not gc.is_tracked(one)]
    return found


def _of_kinds(objects: Iterable[Any], kinds: set[Any]) -> list[Any]:
    # Both sides take one of the two. A `tee` would be among the objects, and in a cycle with them.
    twice = chain.from_iterable(map(repeat, objects, repeat(2)))
    wanted = set(map(id, kinds))  # a metaclass may compare its classes in Python
    return list(compress(twice, map(wanted.__contains__, map(id, map(type, twice)))))


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
    if isinstance(one, RANDOM_STATE):
        kind, fresh = type(one._bit_generator), {"has_gauss": 0, "gauss": 0.0}
        state = partial(one.get_state, legacy=False)
        return (lambda n: one.set_state({**kind(n).state, **fresh})), state, one.set_state
    return one.manual_seed, one.get_state, one.set_state

"""The same random numbers in each run, or other ones: what then changes in its batches is what
random numbers decide."""

from __future__ import annotations

import functools
import operator
import random
import sys
from collections.abc import Callable
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.imports import ImportHooks
from fastfeed.diagnose.hooks.patches import Undo, patch, undo_all
from fastfeed.diagnose.proof import SEEDERS

SHIFT = 7_919  # for other random numbers
FIRST_SEED = 1 << 20  # seed of the first generator without one
SEEDED_BY_NEW = ("RandomState", "PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
# A seed of these decides an order, which is no part of what a record holds.
ORDERED_BY = ("fastfeed.core.order", "fastfeed.engine.shuffle_pool", "fastfeed.samplers")
OF_ALL = ("seed", "manual_seed", "set_seed")  # of the generator of the module


def set_seeds(log: HookLog, *, shift: int = 0) -> Callable[[], int]:
    """Seed what the script does not seed, and add a number to each seed that it sets from now on.

    Processes that it starts are not reached. Return a function that returns how many generators
    were made without a seed.
    """
    seeds = _Seeds(shift)
    random.seed(shift)
    random.seed = seeds.wrapped(random.seed)

    original = random.Random.seed

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        made = sys._getframe(1)  # of its kind
        names_files = (made.f_back or made).f_globals.get("__name__") == "tempfile"
        original(self, a if names_files else seeds.other(a), version)

    random.Random.seed = seed  # type: ignore[method-assign]
    hooks = ImportHooks(log, ())
    for module in SEEDERS:
        hooks.add(module, seeds.install)
    hooks.add("fastfeed.runner.checkpoint", seeds.install_root)
    hooks.add("keras.src.random.seed_generator", seeds.install_keras)
    hooks.add("tensorflow.python.framework.random_seed", seeds.install_graph)
    hooks.add("tensorflow.python.ops.stateful_random_ops", seeds.install_stateful)
    hooks.start()
    return lambda: seeds.unseeded


class _Seeds:
    """Seeds of a run."""

    def __init__(self, shift: int) -> None:
        self._shift = shift
        self._first = FIRST_SEED + shift
        self.unseeded = 0  # number of generators without a seed

    def other(self, seed: Any) -> Any:
        """Return the seed in place of one; a generator that has none gets the next of ours."""
        if seed is None:
            self.unseeded += 1
            return self._first + self.unseeded - 1
        return self.shifted(seed) if self._shift else seed

    def shifted(self, seed: Any) -> Any:
        """Return another seed of the same form; what has none, such as a generator, as it is."""
        if isinstance(seed, bool):
            return seed
        if isinstance(seed, (str, float)):
            return f"{seed}{self._shift}" if isinstance(seed, str) else seed + self._shift
        if type(seed) in (list, tuple):
            return type(seed)(map(self.shifted, seed))
        if hasattr(seed, "spawn_key"):  # a SeedSequence
            entropy, key = self.shifted(seed.entropy), seed.spawn_key
            return type(seed)(entropy, spawn_key=key, pool_size=seed.pool_size)
        try:
            return (operator.index(seed) + self._shift) % (1 << 32)
        except TypeError:
            plain = getattr(seed, "__array__", None) and getattr(seed, "ndim", 0)
            return [self.shifted(one) for one in seed.tolist()] if plain else seed

    def wrapped(self, original: Callable[..., Any], *, at: int = 0) -> Callable[..., Any]:
        """Return a function of a seed, its argument number `at`, that gets the other one."""

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if sys._getframe(1).f_globals.get("__name__") in ORDERED_BY:
                return original(*args, **kwargs)
            name = next((one for one in ("seed", "a") if one in kwargs), "")
            if name:
                return original(*args, **{**kwargs, name: self.other(kwargs[name])})
            seed, *rest = args[at:] or (None,)
            return original(*args[:at], self.other(seed), *rest, **kwargs)

        return call

    def install_root(self, module: Any, log: HookLog) -> Undo:
        """Patch what draws the seed of a FeedRunner that has none."""
        return patch(module, "SeedSequence", wrap=self.wrapped)

    def install(self, module: Any, log: HookLog) -> Undo:
        """Patch the functions of a module that seed, after seeding its own generator."""
        first = SEEDERS[module.__name__][0]
        if first in OF_ALL:
            getattr(module, first)(self._shift)
        undos = [patch(module, name, wrap=self.wrapped) for name in SEEDERS[module.__name__]]
        if module.__name__ == "numpy.random":
            undos += [patch(module, name, wrap=self._kind) for name in SEEDED_BY_NEW]
        if module.__name__ == "torch" and self._shift:
            undos.append(patch(module, "Generator", wrap=self._torch_generator))
        return undo_all(undos)

    def install_graph(self, module: Any, log: HookLog) -> Undo:
        """Patch what seeds the graphs of TensorFlow."""
        names = ("set_seed", "set_random_seed")
        return undo_all([patch(module, name, wrap=self.wrapped) for name in names])

    def install_stateful(self, module: Any, log: HookLog) -> Undo:
        """Patch the generators of TensorFlow."""

        def wrap(original: Any) -> Any:
            return classmethod(self.wrapped(original.__func__, at=1))

        return patch(module.Generator, "from_seed", wrap=wrap)

    def install_keras(self, module: Any, log: HookLog) -> Undo:
        """Patch what layers and functions of Keras make of the seeds that they get."""

        def draws(original: Callable[..., Any]) -> Callable[..., Any]:
            return lambda seed: original(seed if seed is None else self.other(seed))

        def makes(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def __init__(generator: Any, seed: Any = None, *args: Any, **kwargs: Any) -> None:
                original(generator, seed if seed is None else self.other(seed), *args, **kwargs)

            return __init__

        undos = [patch(module, "draw_seed", wrap=draws)]
        return undo_all([*undos, patch(module.SeedGenerator, "__init__", wrap=makes)])

    def _kind(self, original: Any) -> Any:
        """Return a class in place of one, whose calls make instances of that with other seeds."""
        make = self.wrapped(original)

        class Kind(type(original)):  # type: ignore[misc]
            def __call__(cls, *args: Any, **kwargs: Any) -> Any:
                return (make if cls is found else super().__call__)(*args, **kwargs)

            def __instancecheck__(cls, one: Any) -> bool:
                return isinstance(one, original) if cls is found else super().__instancecheck__(one)

        found = Kind(original.__name__, (original,), {"__module__": original.__module__})
        return found

    def _torch_generator(self, original: Any) -> Any:
        """Return the generators of torch with other seeds, also where they get none."""
        seeds = self

        class TorchKind(type(original)):  # type: ignore[misc]
            def __instancecheck__(cls, one: Any) -> bool:
                return isinstance(one, original)

        class Generator(original, metaclass=TorchKind):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().manual_seed(seeds.other(self.initial_seed()))

            def manual_seed(self, seed: Any) -> Any:
                return super().manual_seed(seeds.other(seed))

        Generator.__module__, Generator.__qualname__ = "torch", "Generator"  # for pickle
        return Generator

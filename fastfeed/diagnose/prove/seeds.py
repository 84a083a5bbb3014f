"""The same random numbers in each run, or other ones: what then changes in its batches is what
random numbers decide."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.imports import ImportHooks
from fastfeed.diagnose.hooks.patches import Undo, patch, undo_all
from fastfeed.diagnose.proof import SEEDERS

SHIFT = 7_919  # for other random numbers
FIRST_SEED = 1 << 20  # seed of the first generator without one
OF_ALL = ("seed", "manual_seed", "set_seed")  # of the generator of the module


def set_seeds(log: HookLog, *, shift: int = 0) -> None:
    """Seed what the script does not seed, and add a number to each seed that it sets from now on.

    Processes that it starts are not reached.
    """
    seeds = _Seeds(shift)
    random.seed(shift)
    random.seed = seeds.wrapped(random.seed)

    class Random(random.Random):
        """Generator of the standard library."""

        def seed(self, a: Any = None, version: int = 2) -> None:
            """Seed with another number."""
            super().seed(seeds.other(a), version)

    random.Random = Random  # type: ignore[misc]
    hooks = ImportHooks(log, ())
    for module in SEEDERS:
        hooks.add(module, seeds.install)
    hooks.add("fastfeed.runner.checkpoint", seeds.install_root)
    hooks.start()


class _Seeds:
    """Seeds of a run."""

    def __init__(self, shift: int) -> None:
        self._shift = shift
        self._unseeded = itertools.count(FIRST_SEED + shift)

    def other(self, seed: Any) -> Any:
        """Return the seed in place of one; a generator that has none gets the next of ours."""
        if seed is None:
            return next(self._unseeded)
        if isinstance(seed, int) and not isinstance(seed, bool):
            return (seed + self._shift) % (1 << 32)
        return seed

    def wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of a seed that gets the other one."""

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            name = next((one for one in ("seed", "a") if one in kwargs), "")
            if name:
                return original(*args, **{**kwargs, name: self.other(kwargs[name])})
            seed, *rest = args or (None,)
            return original(self.other(seed), *rest, **kwargs)

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
            seeds = self

            class RandomState(module.RandomState):  # type: ignore[misc]
                def __init__(self, seed: Any = None) -> None:
                    super().__init__(seeds.other(seed))

            undos.append(patch(module, "RandomState", wrap=lambda original: RandomState))
        return undo_all(undos)

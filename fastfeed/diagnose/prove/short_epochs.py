"""Epochs of a few batches, so that the first batches of a run hold several of them: what a script
changes between epochs then shows, and which records an epoch holds."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.imports import ImportHooks
from fastfeed.diagnose.hooks.patches import Undo, call_before, patch, undo_all

SAMPLERS = ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")  # of torch
LIMIT = "_fastfeed_items"  # attribute of data: how many of their items an epoch has
# Modules that read data by their length. The script's own code gets the length that they have.
READERS = (
    *("torch.utils.data.sampler", "torch.utils.data.dataloader", "fastfeed.source.indexed"),
    "keras.src.trainers.data_adapters.py_dataset_adapter",
)
NO_INDEX = object()


class ShortEpochs:
    """Lengths of data, of which a loader or a FeedRunner then reads `batches` batches in an epoch;
    unless `reordered`, samplers of torch draw an order that no seed changes.

    `shortened`: some data were longer. `shuffled`: some order was drawn.
    """

    def __init__(self, batches: int, *, reordered: bool = False) -> None:
        self.shortened = self.shuffled = False
        self._batches = batches
        self._reordered = reordered
        self._kinds: set[type] = set()
        self._states: dict[bytes, int] = {}  # of generators, by the order in which they came

    def install(self, log: HookLog) -> None:
        """Patch what reads data by their length."""
        hooks = ImportHooks(log, ())
        hooks.add("torch.utils.data.dataloader", self._install_loader)
        hooks.add("torch.utils.data.sampler", self._install_samplers)
        hooks.add("fastfeed.source.indexed", self._install_runner)
        hooks.add("keras.src.trainers.data_adapters.py_dataset_adapter", self._install_keras)
        hooks.start()

    def shorten(self, data: Any, items: int) -> None:
        """Let READERS see so many items at most of data of a class in Python; a tensor, and what
        is of a built-in class, stay as they are."""
        kind = type(data)
        try:
            if hasattr(data, "dtype") or len(data) <= items:
                return
            vars(data).setdefault(LIMIT, items)  # goes with each copy
            if kind not in self._kinds:
                kind.__len__ = _limited(kind.__len__)
                self._kinds.add(kind)
        except Exception:  # of the user's class, or one that takes no attributes
            return
        self.shortened = True

    def _install_loader(self, module: Any, log: HookLog) -> Undo:
        def action(loader: Any, *args: Any, **given: Any) -> None:
            given |= zip(("dataset", "batch_size"), args, strict=False)
            samplers = (given.get("batch_sampler"), given.get("sampler"))
            sizes = (getattr(one, "batch_size", None) for one in samplers)
            size = next((one for one in sizes if one), given.get("batch_size"))
            if not isinstance(given.get("dataset"), module.IterableDataset):
                items = self._batches * (size if isinstance(size, int) else 1)
                self.shorten(given.get("dataset"), items)

        return call_before(module.DataLoader, "__init__", action=action)

    def _install_runner(self, module: Any, log: HookLog) -> Undo:
        def action(source: Any, *args: Any, **given: Any) -> None:
            data, options = args
            if not isinstance(data, module.Mix):  # which has the lengths of its parts
                self.shorten(data, self._batches * (options.batch_size or 1))

        return call_before(module.IndexedSource, "__init__", action=action)

    def _install_keras(self, module: Any, log: HookLog) -> Undo:
        def action(adapter: Any, x: Any, *args: Any, **given: Any) -> None:
            self.shorten(x, self._batches)

        return call_before(module.PyDatasetAdapter, "__init__", action=action)

    def _install_samplers(self, module: Any, log: HookLog) -> Undo:
        kinds = (getattr(module, name) for name in SAMPLERS)
        return undo_all([patch(kind, "__iter__", wrap=self._ordered) for kind in kinds])

    def _ordered(self, original: Callable[[Any], Iterator[int]]) -> Callable[[Any], Iterator[int]]:
        """Return an iteration whose order depends on how many states of generators came before."""

        @functools.wraps(original)
        def __iter__(sampler: Any) -> Iterator[int]:
            self.shuffled = True
            if self._reordered:
                yield from original(sampler)
                return
            torch: Any = sys.modules["torch"]
            given = sampler.generator
            used = torch.default_generator if given is None else given
            number = self._states.setdefault(bytes(used.get_state().numpy()), len(self._states))
            drawn = original(sampler)
            next(drawn, None)  # what follows draws as it would; its generator is bound now
            # of a kind that no hook seeds
            sampler.generator = torch._C.Generator(device=used.device).manual_seed(number)
            kept = original(sampler)
            first = next(kept, NO_INDEX)
            sampler.generator = given
            if first is not NO_INDEX:
                yield first  # type: ignore[misc]
                yield from (one for one, _ in zip(kept, drawn, strict=False))

        return __iter__


def _limited(original: Callable[[Any], int]) -> Callable[[Any], int]:
    readers, limit = READERS, LIMIT  # a class that is shipped by value takes them along

    @functools.wraps(original)
    def __len__(data: Any) -> int:
        found, most = original(data), getattr(data, limit, None)
        reads = sys._getframe(1).f_globals.get("__name__") in readers
        return min(found, most) if reads and most is not None else found

    return __len__

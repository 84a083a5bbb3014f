"""Observe every `torch.utils.data.DataLoader` that is iterated over."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.steps.recorder import StepRecorder

MODULES = ("torch.utils.data.dataloader",)
STEPS = "_fastfeed_steps"


def install(module: Any, log: HookLog) -> Callable[[], None]:
    """Patch `__next__` of the loader's iterators, which keep their types."""
    kind = module._BaseDataLoaderIter
    original = kind.__next__

    def __next__(self: Any) -> Any:
        steps = self.__dict__.get(STEPS)
        if steps is None:
            if not log.active:
                return original(self)
            steps = self.__dict__[STEPS] = _pass(self, log)
        # Nothing that lives longer may hold the iterator: its workers end with its last reference.
        return steps.take(partial(original, self))

    kind.__next__ = __next__

    def uninstall() -> None:
        kind.__next__ = original

    return uninstall


def _pass(iterator: Any, log: HookLog) -> StepRecorder:
    try:
        workers = iterator._num_workers
        buffer = workers * iterator._prefetch_factor if workers else 0
    except Exception as error:  # another version, or a user's own iterator
        log.failed("what a DataLoader makes ahead", error)
        return StepRecorder(log, "torch", name="DataLoader", buffer=None, ahead=False)
    steps = StepRecorder(log, "torch", name=f"DataLoader(num_workers={workers})", buffer=buffer)
    steps.source_id = id(iterator._dataset)
    steps.idle = partial(_idle, weakref.ref(iterator))
    steps.reuses_memory = not workers  # batches from a worker are new
    return steps


def _idle(ref: weakref.ref[Any]) -> bool:
    """Return True if the workers have made everything that was requested."""
    iterator = ref()
    try:
        return iterator is None or iterator._data_queue.qsize() >= iterator._tasks_outstanding
    except Exception:  # another version: unknown
        return True

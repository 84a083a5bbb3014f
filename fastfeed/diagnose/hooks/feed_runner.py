"""Hook of loops over a FeedRunner, its epochs, and its batches in torch or JAX."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from fastfeed.core.status import INPUT, MAKING, STARTING, ProducerStatus
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.patches import RECORDER, Undo, patch, recorder_of, undo_all
from fastfeed.errors import FeedError
from fastfeed.steps.recorder import BatchSource, StepRecorder
from fastfeed.steps.watch import WatchedIterator

# the class that is iterated over, by its module
CLASSES = {
    "fastfeed.runner.runner": "FeedRunner",
    "fastfeed.runner.iteration": "Epoch",
    "fastfeed.sinks.torch_iter": "TorchBatches",
    "fastfeed.sinks.jax_iter": "JaxBatches",
    "fastfeed.sinks.ahead": "Prefetcher",
}
MODULES = tuple(CLASSES)
AT_WORK = (STARTING, MAKING, INPUT)  # states of producers that may soon have a batch


def install(module: Any, log: HookLog) -> Undo:
    """Patch `__iter__`, and of the runner itself also `state`."""
    kind = getattr(module, CLASSES[module.__name__])
    undos = [patch(kind, "__iter__", wrap=lambda original: _wrap_iter(original, log))]
    if kind.__name__ == "FeedRunner":
        undos.append(patch(kind, "state", wrap=_wrap_state))
    return undo_all(undos)


def _wrap_iter(original: Callable[[Any], Any], log: HookLog) -> Callable[[Any], Any]:
    @wraps(original)
    def __iter__(self: Any) -> Any:
        iterator = original(self)
        steps = recorder_of(self, log, create=_recorder)
        # One recorder for all iterations: batches taken ahead in a loop that was left belong to the
        # next one.
        return iterator if steps is None else WatchedIterator(iterator, steps)

    return __iter__


def _wrap_state(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(original)
    def state(self: Any) -> Any:
        steps = self.__dict__.get(RECORDER)
        ahead = list(steps.ahead) if steps is not None and not steps.prefetching else []
        return ahead[0].state if ahead and ahead[0].state is not None else original(self)

    return state


def _recorder(owner: Any, log: HookLog) -> StepRecorder:
    """Return the recorder of an object that is iterated over.

    Batches of a FeedRunner and its epochs may be taken ahead; the other objects count what they
    have delivered, or take batches ahead themselves.
    """
    runner = getattr(owner, "_runner", owner)
    options = getattr(runner, "options", None)
    if options is None:
        name = f"FeedRunner ({type(owner).__name__})"
        return StepRecorder(log, "runner", name=name, buffer=16, ahead=False)
    buffer, ref = max(16, 4 * options.parallel), weakref.ref(runner)
    source = BatchSource(
        reuses_memory=not options.workers,
        idle=partial(_is_idle, ref),
        get_state=partial(_state_of, ref),
        producers=partial(_producers, ref),
    )
    steps = StepRecorder(log, "runner", name="FeedRunner", buffer=buffer, source=source)
    runner.__dict__[RECORDER] = steps
    return steps


def _producers(ref: weakref.ref[Any]) -> list[ProducerStatus]:
    """Return what each of the runner's producers does, nothing before its start."""
    runner = ref()
    status = runner.status() if runner is not None else None
    return [] if status is None else list(status.producers)


def _is_idle(ref: weakref.ref[Any]) -> bool:
    """Return True if none of the runner's producers makes a batch, or waits for its input."""
    return all(one.state not in AT_WORK for one in _producers(ref))


def _state_of(ref: weakref.ref[Any]) -> Any:
    """Return the state of the runner, which its `state` reports while batches are taken ahead."""
    runner = ref()
    try:
        return None if runner is None else runner.state()
    except FeedError:  # the runner has no state, so none can be requested
        return None

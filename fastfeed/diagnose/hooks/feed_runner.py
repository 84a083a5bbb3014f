"""Observe every loop over a FeedRunner, its epochs, and its batches as tensors of torch or arrays
of JAX."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.errors import FeedError
from fastfeed.steps.recorder import StepRecorder
from fastfeed.steps.watch import WatchedIterator

# the class that is iterated over, in each module
KINDS = {
    "fastfeed.runner.runner": "FeedRunner",
    "fastfeed.runner.epoch": "Epoch",
    "fastfeed.sinks.torch_iter": "TorchBatches",
    "fastfeed.sinks.jax_iter": "JaxBatches",
    "fastfeed.sinks.ahead": "Prefetcher",
}
MODULES = tuple(KINDS)
ANEW_S = 0.2  # after so long without a request, the next one begins another period
LEAST_S = 0.02
LONGER = 2.0  # times the mean time of a batch
STEPS = "_fastfeed_steps"


def install(module: Any, log: HookLog) -> Callable[[], None]:
    """Patch `__iter__`, and of the runner itself also `take` and `state`."""
    kind = getattr(module, KINDS[module.__name__])
    patches = {"__iter__": _iter(kind.__iter__, log)}
    if kind.__name__ == "FeedRunner":
        patches.update(take=_take(kind.take, log), state=_state(kind.state))
    originals = {name: getattr(kind, name) for name in patches}
    for name, patch in patches.items():
        setattr(kind, name, patch)

    def uninstall() -> None:
        for name, original in originals.items():
            setattr(kind, name, original)

    return uninstall


def _iter(original: Callable[[Any], Any], log: HookLog) -> Callable[[Any], Any]:
    def __iter__(self: Any) -> Any:
        iterator = original(self)
        steps = self.__dict__.get(STEPS)
        if steps is None and log.active:
            steps = self.__dict__[STEPS] = _pass(self, log)
        # One recorder for all iterations: batches taken ahead in a loop that was left belong to the
        # next one.
        return iterator if steps is None else WatchedIterator(iterator, steps)

    return __iter__


def _take(original: Callable[[Any], Any], log: HookLog) -> Callable[[Any], Any]:
    def take(self: Any) -> Any:
        steps = self.__dict__.get(STEPS)
        if steps is None:
            if not log.active:
                return original(self)
            steps = self.__dict__[STEPS] = _pass(self, log)
            steps.allow_ahead = False  # its batches are given back at the end of a block
        return steps.take(partial(original, self))

    return take


def _state(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def state(self: Any) -> Any:
        steps = self.__dict__.get(STEPS)
        ahead = list(steps.ahead) if steps is not None and not steps.prefetching else []
        return ahead[0].state if ahead and ahead[0].state is not None else original(self)

    return state


def _pass(of: Any, log: HookLog) -> StepRecorder:
    """Return the recorder. Batches of a FeedRunner and its epochs may be taken ahead; the others
    count what they have delivered, or take ahead themselves."""
    runner = getattr(of, "_runner", of)
    options = getattr(runner, "options", None)
    if options is None:
        return StepRecorder(
            log, "runner", name=f"FeedRunner ({type(of).__name__})", buffer=16, ahead=False
        )
    steps = StepRecorder(log, "runner", name="FeedRunner", buffer=max(16, 4 * options.producers))
    steps.reuses_memory = not options.processes
    steps.get_state = partial(_noted, weakref.ref(runner))
    steps.idle = _ProducerIdleness(weakref.ref(runner))
    steps.loop.status = partial(_stages, weakref.ref(runner))
    runner.__dict__[STEPS] = steps
    return steps


def _stages(ref: weakref.ref[Any]) -> str:
    """Return what the runner's own counters say of its stages, from its first batch on."""
    runner = ref()
    seen = runner.snapshot() if runner is not None else None
    if seen is None or not seen.produced.batches:
        return ""
    made, count = seen.produced, len(seen.producers)
    total_s = max(1e-9, made.busy_s + made.wait_in_s + made.wait_out_s)
    size = f"{made.nbytes / made.batches / 1e6:.3g} MB"
    who = f"{count} producer{'s' * (count > 1)} made {made.batches} batches of {size}"
    return (
        f"{who}, each {made.busy_s / made.batches * 1e3:.3g} ms in your code, and were before a "
        f"full buffer for {made.wait_out_s / total_s:.0%} of their time; {seen.depth} batches are "
        "ready"
    )


class _ProducerIdleness:
    """Idleness of a runner's producers: they have made no batch for longer than one takes."""

    def __init__(self, ref: weakref.ref[Any]) -> None:
        self._ref = ref
        self._made = -1
        self._asked_s = self._since_s = 0.0

    def __call__(self) -> bool:
        runner, now_s = self._ref(), time.perf_counter()
        if runner is None:
            return True
        produced = runner.snapshot().produced
        if produced.batches != self._made or now_s - self._asked_s > ANEW_S:
            self._made, self._since_s = produced.batches, now_s
        self._asked_s = now_s
        return bool(
            now_s - self._since_s > LEAST_S + LONGER * produced.busy_s / max(1, produced.batches)
        )


def _noted(ref: weakref.ref[Any]) -> Any:
    """Return the state of the runner, which its `state` reports while batches are taken ahead."""
    runner = ref()
    try:
        return None if runner is None else runner.state()
    except FeedError:  # it has no state, so none can be requested
        return None

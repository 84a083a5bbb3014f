"""The batches and losses of a run: their checksums, wherever the steps take them from."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.imports import ImportHooks
from fastfeed.diagnose.hooks.patches import Undo, patch
from fastfeed.diagnose.prove.digests import Digests, as_fed, is_number
from fastfeed.diagnose.prove.short_epochs import ShortEpochs
from fastfeed.steps.timeline import Loop, Timeline

IN_GRAPH = ("modelled", "hidden")  # waits of steps that take their batches from a graph
MOST_HELD_S = 0.005  # for which each batch of a producer thread is held up
KERAS_ADAPTERS = {
    "keras.src.trainers.data_adapters.py_dataset_adapter": "PyDatasetAdapter",
    "keras.src.trainers.data_adapters.generator_data_adapter": "GeneratorDataAdapter",
    "keras.src.trainers.data_adapters.tf_dataset_adapter": "TFDatasetAdapter",
}


class BatchLog(HookLog):
    """Log that takes the checksums of the first `most` batches of each loop, and of those that
    Keras and sessions get, or that the script's copy shows.

    `fed`: what steps of a session are fed; `queued`: what threads feed to a queue of the graph;
    `produced`: what producers give to a runner's queue in the graph, before it is cut or shuffled;
    `items`: what a callable's stream yields.
    """

    def __init__(self, most: int) -> None:
        super().__init__(Timeline())
        self._most = most
        self.losses: list[float] = []
        self.short: ShortEpochs | None = None
        self.fitted, self.shown, self.fed = (Digests(most) for _ in range(3))
        self.queued, self.produced, self.items = (Digests(most) for _ in range(3))
        for one in (self.fitted, self.shown, self.fed, self.queued, self.produced, self.items):
            one.ends_known = False
        self._loops: dict[int, Digests] = {}

    def fetch(self, loop: Loop, get: Callable[[], Any], *, begin_s: float) -> Any:
        digests = self._loops.setdefault(id(loop), Digests(self._most))
        self.fed.ends_known = True  # what a loop takes is fed then
        try:
            found = super().fetch(loop, get, begin_s=begin_s)
        except StopIteration:
            digests.end_epoch()
            self.fed.end_epoch()
            raise
        digests.add(found)
        return found

    def digests_of(self, loop: Loop | None) -> Digests:
        """Return the checksums of the batches that train in a loop.

        What is fed to steps that take their batches from the graph is none of them.
        """
        own = self._loops.get(id(loop), Digests())
        fed = () if loop is not None and loop.waits in IN_GRAPH else (self.fed,)
        known = (self.fitted, self.shown, *fed, own, self.queued, self.produced)
        found = next((one for one in known if one.leaves), Digests())
        found.losses = self.losses[: self._most]
        if self.short is not None:
            found.shortened, found.shuffled = self.short.shortened, self.short.shuffled
        # What feeds a queue or tf.data is ahead of what was taken, also when the script has ended.
        found.ahead = found in (self.queued, self.produced, self.fitted)
        found.ended = threading.current_thread() is threading.main_thread() and not found.ahead
        return found


def watch_batches(log: BatchLog) -> None:
    """Take the checksums of batches that no iterator in Python delivers, and the losses."""
    hooks = ImportHooks(log, ())
    for module in KERAS_ADAPTERS:
        hooks.add(module, functools.partial(_watch_adapter, digests=log.fitted))
    hooks.add("tensorflow.python.client.session", functools.partial(_watch_feeds, batches=log))
    taken = functools.partial(_watch_runners, digests=log.produced)
    hooks.add("fastfeed.runner.stream", taken)
    hooks.add("torch._tensor", functools.partial(_watch_backward, losses=log.losses))
    hooks.add(
        "keras.src.callbacks.callback_list", functools.partial(_watch_logs, losses=log.losses)
    )
    hooks.add("fastfeed.producers.builder", hold_up_producers)
    hooks.start()


def hold_up_producers(module: Any, log: HookLog) -> Undo:
    """Hold up each batch of producer threads at random: what depends on which of them comes first,
    such as a random generator that they share, then shows."""
    drawn = random.Random(0)

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def build(*args: Any, **kwargs: Any) -> Any:
            time.sleep(MOST_HELD_S * drawn.random())
            return original(*args, **kwargs)

        return build

    return patch(module.BatchBuilder, "build", wrap=wrap)


def _watch_adapter(module: Any, log: HookLog, *, digests: Digests) -> Undo:
    """Pass the batches of Keras on TensorFlow through Python, one at a time."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def get_tf_dataset(self: Any) -> Any:
            tf: Any = sys.modules["tensorflow"]
            found = original(self)

            def seen(*batch: Any) -> Any:
                leaves = tf.nest.flatten(batch)
                with tf.control_dependencies([tf.numpy_function(_adding(digests), leaves, [])]):
                    return tf.nest.map_structure(tf.identity, batch)

            return found.map(seen)

        return get_tf_dataset

    return patch(getattr(module, KERAS_ADAPTERS[module.__name__]), "get_tf_dataset", wrap=wrap)


def _adding(digests: Digests) -> Callable[..., None]:
    return lambda *leaves: digests.add(leaves)


def _watch_feeds(module: Any, log: HookLog, *, batches: BatchLog) -> Undo:
    """Take the checksums of what the script feeds to sessions: to steps in its main thread, to
    queues in others."""
    main, lock = threading.get_ident(), threading.Lock()

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def run(self: Any, fetches: Any, feed_dict: Any = None, *args: Any, **kwargs: Any) -> Any:
            if isinstance(feed_dict, dict) and feed_dict:
                with lock:
                    fed = batches.fed if threading.get_ident() == main else batches.queued
                    fed.add([as_fed(*one) for one in feed_dict.items() if not is_number(one[1])])
            return original(self, fetches, feed_dict, *args, **kwargs)

        return run

    return patch(module.BaseSession, "run", wrap=wrap)


def _watch_runners(module: Any, log: HookLog, *, digests: Digests) -> Undo:
    """Take the checksums of what producers give to the queues of runners in the graph."""
    stages: weakref.WeakSet[Any] = weakref.WeakSet()  # of feeds that sessions have
    begins: list[bool] = []  # while such a feed is made

    def for_session(original: Any) -> Any:
        @functools.wraps(original)
        def make(self: Any) -> Any:
            begins.append(True)
            try:
                return original(self)
            finally:
                begins.clear()

        return make

    def init(original: Any) -> Any:
        @functools.wraps(original)
        def make(self: Any, *args: Any) -> None:
            original(self, *args)
            if begins:
                stages.add(self)

        return make

    def take_in(original: Any) -> Any:
        @functools.wraps(original)
        def take(self: Any, batch: Any, origin: Any) -> None:
            if batch is not None and self in stages:
                digests.add(list(batch.leaves))
            original(self, batch, origin)

        return take

    undo = contextlib.ExitStack()
    undo.callback(patch(module.Stream, "for_session", wrap=for_session))
    undo.callback(patch(module.CutStage, "__init__", wrap=init))
    undo.callback(patch(module.CutStage, "_take_in", wrap=take_in))
    return undo.close


def _watch_backward(module: Any, log: HookLog, *, losses: list[float]) -> Undo:
    """Note the losses of torch."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):  # no scalar
                losses.append(float(self))
            return original(self, *args, **kwargs)

        return backward

    return patch(module.Tensor, "backward", wrap=wrap)


def _watch_logs(module: Any, log: HookLog, *, losses: list[float]) -> Undo:
    """Note the losses of Keras, which are means since the begin of the epoch."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def on_train_batch_end(self: Any, batch: Any, logs: Any = None) -> Any:
            with contextlib.suppress(Exception):  # none without metrics
                losses.append(float((logs or {})["loss"]))
            return original(self, batch, logs)

        return on_train_batch_end

    return patch(module.CallbackList, "on_train_batch_end", wrap=wrap)

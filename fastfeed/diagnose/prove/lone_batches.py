"""Batches that are each made in a copy of the process as it was after the first one: what they hold
of others that were made meanwhile, they then lack."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.imports import ImportHooks
from fastfeed.diagnose.hooks.patches import Undo, patch
from fastfeed.errors import FeedTimeout, ProducerError

MOST_S = 30.0  # that a batch may take
# A copy of a process lacks the threads of its native pools.
ONE_THREAD_BY = {"torch": "set_num_threads", "cv2": "setNumThreads"}


def install_lone_batches(log: HookLog) -> None:
    """Let each batch of a callable's stream be made from what was there after the first one."""
    hooks = ImportHooks(log, ())
    hooks.add("fastfeed.source.callables", _watch_streams)
    hooks.start()


def _watch_streams(module: Any, log: HookLog) -> Undo:
    def wrap(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        return lambda *args: lone_items(original(*args))

    return patch(module, "chunks", wrap=wrap)


def lone_items(items: Iterator[Any], *, most_s: float = MOST_S) -> Iterator[Any]:
    """Yield the first item, and then, without an end, what comes behind it: each time in a copy of
    the process as it is now, but with the random generators as the item before has left them.

    Equal items therefore depend on nothing else that those before them have left. Raise FeedTimeout
    for an item that takes longer than `most_s`, and ProducerError for one that fails, or for a
    stream of a single item.
    """
    from fastfeed.producers.generators import GENERATOR_KINDS, Generators  # not before the script

    yield next(items)
    kinds = set(map(id, GENERATOR_KINDS))
    held = [one for one in gc.get_objects() if id(type(one)) in kinds]
    generators, context = Generators(held), multiprocessing.get_context("fork")

    def make(there: Connection) -> None:
        for name, call in ONE_THREAD_BY.items():
            getattr(sys.modules.get(name), call, int)(1)
        there.send_bytes(pickle.dumps((next(items), generators.states())))

    while True:
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=make, args=(there,), daemon=True)
        with here, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads, which the copy lacks
            child.start()
            there.close()
            try:
                item, states = _received(here, most_s=most_s)
                child.join(most_s)
            finally:
                child.kill()
                child.join()
        generators.restore(states)
        yield item


def _received(here: Connection, *, most_s: float) -> tuple[Any, list[Any]]:
    """Return an item, and the states of the generators behind it."""
    if not here.poll(most_s):
        raise FeedTimeout(f"a batch took more than {most_s:g} s in a copy")
    try:
        item, states = pickle.loads(here.recv_bytes())
    except EOFError:
        raise ProducerError("a batch failed in a copy of the process") from None
    return item, states

"""Items of streams that are each made in a copy of the process as it was after the first one: what
they hold of others that were made meanwhile, they then lack."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import multiprocessing
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.imports import ImportHooks
from fastfeed.diagnose.hooks.patches import Undo, patch
from fastfeed.diagnose.prove.digests import Digests
from fastfeed.errors import FeedTimeout, ProducerError

MOST_S = 10.0  # that an item may take
# A copy of a process lacks the threads of its native pools.
ONE_THREAD_BY = {"torch": "set_num_threads", "cv2": "setNumThreads"}
Wrap = Callable[[Iterator[Any]], Iterator[Any]]


def watch_streams(log: HookLog, digests: Digests, *, wrap: Wrap = iter) -> None:
    """Take the checksums of the items of callables' streams, which `wrap` may make otherwise."""

    def seen(items: Iterator[Any]) -> Iterator[Any]:
        for item in wrap(items):
            digests.add(item)
            yield item

    def install(module: Any, log: HookLog) -> Undo:
        return patch(module, "chunks", wrap=lambda original: lambda *args: seen(original(*args)))

    hooks = ImportHooks(log, ())
    hooks.add("fastfeed.source.callables", install)
    hooks.start()


def lone_items(
    items: Iterator[Any], *, unseeded: Callable[[], int] = int, most_s: float = MOST_S
) -> Iterator[Any]:
    """Yield the first item, and then, without an end, what comes behind it: each time in a copy of
    the process as it is now, but with the random generators as the item before has left them.

    Equal items therefore depend on nothing else that those before them have left. Raise FeedTimeout
    for an item that takes longer than `most_s`, and ProducerError for one that fails, or for a
    stream of a single item, that reads a file on, or that has a seed of its own: `unseeded` returns
    how many generators have been made without one.
    """
    from fastfeed.producers.generators import GENERATOR_KINDS, Generators  # not before the script

    def known() -> list[Any]:
        return [one for one in gc.get_objects() if id(type(one)) in kinds]

    kinds = set(map(id, GENERATOR_KINDS))
    before, made = known(), unseeded()
    yield next(items)
    held = known()
    if len(held) - len(before) > unseeded() - made:
        raise ProducerError("a stream makes a random generator with a seed: all draw the same")
    generators, context = Generators(held), multiprocessing.get_context("fork")

    def make(there: Connection) -> None:
        for name, call in ONE_THREAD_BY.items():
            getattr(sys.modules.get(name), call, int)(1)
        there.send_bytes(pickle.dumps((next(items), generators.states())))
        os._exit(0)

    while True:
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=make, args=(there,), daemon=True)
        places = _places_in_files()
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
        now = _places_in_files()
        if any(now.get(file, place) != place for file, place in places.items()):
            raise ProducerError("a stream reads a file on")
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


def _places_in_files() -> dict[tuple[int, int], int]:
    """Return the places in the files that are open for reading, which a copy of the process
    moves."""
    found: dict[tuple[int, int], int] = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # closed meanwhile, or without places
            if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                found[number, os.fstat(number).st_ino] = os.lseek(number, 0, os.SEEK_CUR)
    return found

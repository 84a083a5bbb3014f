"""Work on batches before the loop asks for them: in a thread, or one batch ahead in the loop's
own."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.errors import FeedStopped, OptionError, StateError

if TYPE_CHECKING:
    from fastfeed.runner.iteration import IterationManager

# how late the thread notices that the loop was left: leaving a loop must not need a lock
POLL_S = 0.1
EXIT_S = 1.0


class Prefetcher:
    """`put(batch)` of every batch, in order, made by one thread up to `depth` results ahead.

    What `put` raises is raised in the loop, after the results before it. The thread ends with the
    iteration, with `runner.stop()`, and when the loop is left early, as soon as `put` or the wait
    for a batch returns. Results that were ready are lost then, as with tf.data's prefetch.
    `runner.state()` counts what the thread has taken: up to `depth` + 1 batches more than the loop
    has had. Raise OptionError for a `put` that is not callable and for a `depth` below 1.
    """

    def __init__(self, passes: IterationManager, put: Callable[[Any], Any], *, depth: int) -> None:
        if not callable(put):
            raise OptionError(f"prefetch_to_device({put!r}): must be a function of one batch")
        if isinstance(depth, bool) or not isinstance(depth, (int, np.integer)) or depth < 1:
            raise OptionError(
                f"prefetch_to_device(depth={depth!r}): must be an integer >= 1, in batches"
            )
        self._passes = passes
        self._put = put
        self._depth = int(depth)

    def __len__(self) -> int:
        """Return the batches of an iteration. Raise TypeError if that is unknown."""
        return length(self._passes)

    def __iter__(self) -> Iterator[Any]:
        return _Line(self._passes, self._put, depth=self._depth).results()


class _Line:
    """What the thread and the loop of one iteration share. The thread must not hold the loop's
    generator, whose end is how it notices that the loop was left."""

    def __init__(self, passes: IterationManager, put: Callable[[Any], Any], *, depth: int) -> None:
        self._passes = passes
        self._pass = iter(passes)
        self._put = put
        self._room = threading.Semaphore(depth)
        # lists of one result; an empty one is the last
        self._ready: SimpleQueue[list[Any]] = SimpleQueue()
        self._failure: BaseException | None = None
        self._left = False
        self._thread = threading.Thread(target=self._run, name="fastfeed-ahead", daemon=True)

    def results(self) -> Iterator[Any]:
        """Yield the results, in the loop."""
        self._thread.start()
        atexit.register(self._leave)
        try:
            while made := self._next():
                yield made.pop()  # so that nothing here references it
            failure, self._failure = self._failure, None
            if failure is not None:
                try:
                    raise failure
                finally:
                    del failure  # its traceback has this frame
        finally:
            atexit.unregister(self._leave)
            self._leave()

    def _next(self) -> list[Any]:
        self._passes.refuse_stopped()  # even if results are ready
        made = self._ready.get()
        self._room.release()
        return made

    def _run(self) -> None:
        """Run the thread."""
        try:
            while self._has_room():
                # holds no batch while it waits
                made = [self._put(batch) for batch in islice(self._pass, 1)]
                if not made:
                    return
                self._ready.put(made)
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.put([])

    def _has_room(self) -> bool:
        """Wait for room; return False if the loop was left. Raise FeedStopped."""
        while not self._room.acquire(timeout=POLL_S) and not self._left:
            self._passes.refuse_stopped()
        return not self._left

    def _leave(self) -> None:
        """Note that the loop was left. It takes no lock: the garbage collector may call it
        anywhere."""
        self._left = True
        # the interpreter ends, and native code of `put` would abort it
        if not threading.main_thread().is_alive():
            self._thread.join(EXIT_S)


def one_ahead(batches: Iterator[Any], put: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield `put` of each batch, called before the result before it is yielded: what it starts runs
    beside a step.

    It runs in the loop's own thread, so that `snapshot().starvation` stays the wait of the step.
    The error of a batch is raised after the result before it.
    """
    waiting: list[Any] = []
    while True:
        try:
            following = [put(batch) for batch in islice(batches, 1)]
        except (FeedStopped, StateError):  # about the loop itself: raised at once
            raise
        except (
            Exception
        ):  # of the user's `put`, or of a producer: raised after what was made before it
            if waiting:
                yield waiting.pop()
            raise
        if waiting:
            yield waiting.pop()
        if not following:
            return
        waiting = following


def length(passes: IterationManager) -> int:
    """Return the batches of an iteration, for `len()`. Raise TypeError if that is unknown."""
    if passes.length is None:
        raise TypeError(
            "the number of batches is not known beforehand: it is for a source with len() and "
            "[index] that begins at its beginning"
        )
    return passes.length

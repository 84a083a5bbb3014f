"""Process batches ahead of the loop: in a thread, or one batch ahead in the thread of the loop."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from fastfeed.core.order import is_integer
from fastfeed.errors import FeedStopped, OptionError, StateError

if TYPE_CHECKING:
    from fastfeed.runner.iteration import IterationManager

# seconds between checks of the thread that the loop was not left; leaving must not need a lock
LOOP_CHECK_S = 0.1
EXIT_JOIN_S = 1.0


class Prefetcher:
    """`put(batch)` of every batch, in order, made by one thread up to `depth` results ahead.

    Errors of `put` are raised in the loop, after the results before them. The thread ends with the
    iteration, with `runner.stop()`, and when the loop is left early, as soon as `put` or the wait
    for a batch returns; ready results are lost then, as with prefetch of tf.data. `runner.state()`
    counts only what the loop was given, unless ranks share out batches. Raise OptionError for a
    `put` that is not callable and for a `depth` below 1.
    """

    def __init__(
        self, iterations: IterationManager, put: Callable[[Any], Any], *, depth: int
    ) -> None:
        if not callable(put):
            raise OptionError(f"prefetch_to_device({put!r}): must be a function of one batch")
        if not is_integer(depth) or depth < 1:
            raise OptionError(
                f"prefetch_to_device(depth={depth!r}): must be an integer >= 1, in batches"
            )
        self._iterations = iterations
        self._put = put
        self._depth = int(depth)

    def __len__(self) -> int:
        """Return the batches of an iteration. Raise TypeError if that is unknown."""
        return length(self._iterations)

    def __iter__(self) -> Iterator[Any]:
        return PrefetchIteration(self._iterations, self._put, depth=self._depth).results()


class PrefetchIteration:
    """The state that the thread and the loop of one iteration share.

    The thread must not refer to the generator of the loop: its end shows that the loop was left.
    """

    def __init__(
        self, iterations: IterationManager, put: Callable[[Any], Any], *, depth: int
    ) -> None:
        self._iterations = iterations
        self._iterator = iter(iterations)
        self._put = put
        self._free_places = threading.Semaphore(depth)
        # lists of one result and where the loop stands with it; an empty one is the last
        self._ready: SimpleQueue[list[Any]] = SimpleQueue()
        self._failure: BaseException | None = None
        self._loop_left = False
        self._thread = threading.Thread(target=self._run, name="fastfeed-ahead", daemon=True)

    def results(self) -> Iterator[Any]:
        """Yield the results, in the loop."""
        self._thread.start()
        atexit.register(self._leave)
        try:
            while results := self._next():
                self._iterations.give(results.pop())
                yield results.pop()  # leaves no reference in this frame
            failure, self._failure = self._failure, None
            if failure is None:
                self._iterations.give(None)
            else:
                try:
                    raise failure
                finally:
                    del failure  # its traceback refers to this frame
        finally:
            atexit.unregister(self._leave)
            self._leave()

    def _next(self) -> list[Any]:
        self._iterator.check()  # also if results are ready
        results = self._ready.get()
        self._free_places.release()
        return results

    def _run(self) -> None:
        """Run the thread."""
        try:
            while self._wait_for_place():
                # no variable holds a batch during the wait
                results = [self._put(batch) for batch in islice(self._iterator, 1)]
                if not results:
                    return
                mark = self._iterations.mark() if self._iterations.ahead else None
                self._ready.put([*results, mark])
                del results
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.put([])

    def _wait_for_place(self) -> bool:
        """Wait for a free place; return False if the loop was left. Raise FeedStopped."""
        while not self._free_places.acquire(timeout=LOOP_CHECK_S) and not self._loop_left:
            self._iterations.refuse_stopped()
        return not self._loop_left

    def _leave(self) -> None:
        """Mark the loop as left. It takes no lock: the garbage collector may call it anywhere."""
        self._loop_left = True
        self._iterator.leave()
        # at exit, a thread in native code of `put` would abort the interpreter
        if not threading.main_thread().is_alive():
            self._thread.join(EXIT_JOIN_S)


def one_ahead(iterations: IterationManager, put: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield `put` of each batch, called before the previous result is yielded: the work that it
    starts overlaps with a step.

    It runs in the thread of the loop, so that `snapshot().starvation` remains the wait of the step.
    The error of a batch is raised after the previous result. `runner.state()` counts what was
    yielded.
    """
    batches = iter(iter(iterations).take, None)
    if not iterations.ahead:
        yield from map(put, batches)
        return
    ready, following, ended = iterations.kept(), list[Any](), False
    try:
        while not ended:
            mark, failure = iterations.mark() if ready else None, None
            try:
                following = [put(batch) for batch in islice(batches, 1)]
            except (FeedStopped, StateError):  # errors of the loop itself are raised at once
                raise
            except Exception as error:  # of `put` or of a producer
                failure = error
            if ready:
                iterations.give(mark)
                yield ready.pop()
            if failure is not None:
                try:
                    raise failure
                finally:
                    del failure  # its traceback refers to this frame
            ended = not following
            ready, following = following, []
        iterations.give(None)
    except GeneratorExit:  # the loop was left
        iterations.keep(following)
        raise


def length(iterations: IterationManager) -> int:
    """Return the batches of an iteration, for `len()`. Raise TypeError if that is unknown."""
    if iterations.length is None:
        raise TypeError(
            "the number of batches is not known beforehand: it is for a source with len() and "
            "[index]"
        )
    return iterations.length

"""The end of a feed whose runner was forgotten, or whose interpreter ends."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

from fastfeed.engine.feed import Feed


class Finalizer:
    """Stops a feed when its runner is garbage or the interpreter ends."""

    def __init__(self, feed: Feed) -> None:
        self._feed: Feed | None = feed
        self._threads: Sequence[threading.Thread] = ()

    def run(self) -> None:
        """Stop the feed. At the exit of the interpreter also wait for its threads: one in native
        code would abort the process."""
        join_s = 0 if threading.main_thread().is_alive() else 1.0
        if self._feed is not None:
            self._feed.stop(join_s)
        for thread in self._threads:
            if thread.ident is not None:  # else it was never started
                thread.join(join_s)

    def release(self) -> None:
        """Forget a feed that has failed and ends by itself. Keeping it would keep the runner alive:
        feed -> error -> traceback -> frames -> runner."""
        if self._feed is not None:
            self._threads = self._feed.threads
            self._feed = None


def releasing(finalizer: Finalizer) -> Callable[[], None]:
    """Return a `release` that the feed may hold. It keeps no reference to the finalizer, which
    would form a cycle that keeps the memory of the feed until garbage is collected."""
    release = weakref.WeakMethod(finalizer.release)

    def release_if_alive() -> None:
        method = release()
        if method is not None:
            method()

    return release_if_alive

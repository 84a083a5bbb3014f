"""What ends a feed whose runner was forgotten, or whose interpreter ends."""

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
        """Stop the feed. At the interpreter's exit also wait for its threads: one that is inside
        native code then would abort the process."""
        patience_s = 0 if threading.main_thread().is_alive() else 1.0
        if self._feed is not None:
            self._feed.stop(patience_s)
        for thread in self._threads:
            if thread.ident is not None:  # else it was never started
                thread.join(patience_s)

    def release(self) -> None:
        """Let go of a feed that has failed and ends by itself. Keeping it would keep the runner
        alive: feed -> error -> traceback -> frames -> runner."""
        if self._feed is not None:
            self._threads = self._feed.threads
            self._feed = None


def releasing(finalizer: Finalizer) -> Callable[[], None]:
    """Return a `release` that the feed may hold: it does not keep the finalizer, and with it the
    feed's own memory (and a DALI pipeline), alive until garbage is collected."""
    release = weakref.WeakMethod(finalizer.release)

    def call() -> None:
        found = release()
        if found is not None:
            found()

    return call

"""What is to be done when a runner is forgotten, or the interpreter ends."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

from fastfeed.engine.feed import Feed


class Finalizer:
    """What is to be done when a runner is forgotten, or the interpreter ends."""

    def __init__(self, feed: Feed) -> None:
        self._feed: Feed | None = feed
        self._threads: Sequence[threading.Thread] = ()

    def run(self) -> None:
        """At the interpreter's exit the threads are waited for: one that is inside native code then
        would abort it."""
        patience_s = 0 if threading.main_thread().is_alive() else 1.0
        if self._feed is not None:
            self._feed.stop(patience_s)
        for thread in self._threads:
            if thread.ident is not None:  # else it was never started
                thread.join(patience_s)

    def leave(self) -> None:
        """The feed has failed and ends by itself. To hold it would be to hold its error, by the
        traceback of that the frames that hold the runner, and so the runner, for ever."""
        if self._feed is not None:
            self._threads = self._feed.threads
            self._feed = None


def leaving(ending: Finalizer) -> Callable[[], None]:
    """`leave` for the feed to call, which must not hold what holds it: its memory, and a pipeline
    of DALI's, would stay until garbage is collected."""
    leave = weakref.WeakMethod(ending.leave)

    def call() -> None:
        found = leave()
        if found is not None:
            found()

    return call

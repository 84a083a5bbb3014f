"""Release of the memory of a forgotten runner."""

from __future__ import annotations

import gc
import weakref

from fastfeed import FeedRunner
from tests.helpers.feeds import chunks


def test_what_a_stopped_runner_held_goes_with_it() -> None:
    """The garbage collector is not needed: slots and pipelines of DALI hold hundreds of
    megabytes."""
    gc.disable()
    try:
        with FeedRunner(chunks(8, 4)) as runner:
            list(runner)
            assert runner._stream.feed is not None
            feed = weakref.ref(runner._stream.feed)
        assert feed() is not None
        del runner
        assert feed() is None
    finally:
        gc.enable()

"""Numbers of producers, tried in the running job."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from fastfeed.core.stats import Decision
from fastfeed.errors import FeedError

LIVE_POLL_S = 0.1
LIVE_LIMIT_S = 60.0  # most that a search takes: some windows of seconds


def tune_live(pause: Callable[[float], bool]) -> tuple[tuple[Decision, ...], str]:
    """Search for the best number of producers of the FeedRunner that trains, and leave it; return
    what was decided, and why nothing was.

    `pause` waits for so many seconds, and returns False when the search is to end.
    """
    runners: Any = sys.modules.get("fastfeed.runner.stream")
    streams = [ref() for ref in list(runners.STREAMS)] if runners is not None else []
    found = [one for one in streams if one is not None and not one.shares]
    running = [one for one in found if one.feed and not (one.stopped or one.feed.ended)]
    if not running:
        return (), "no FeedRunner feeds the job"
    from fastfeed.tune.tuning_thread import count_of  # with NumPy, which the script has imported

    stream = max(running, key=lambda one: one.snapshot().consumed.batches)
    knob = "producers" if stream.options.remote is not None else "threads"
    knob = "processes" if stream.options.processes else knob
    if knob in stream.options.tuned:
        return (), f'{knob}="auto" looks for the number while the job runs'
    known, count = stream.tuning, int(count_of(stream.options, knob))
    try:
        stream.resize({knob: "auto"})
        end_s = time.monotonic() + LIVE_LIMIT_S
        while stream.searches and time.monotonic() < end_s and pause(LIVE_POLL_S):
            pass
        decided = tuple(one for one in stream.tuning if one not in known)
        for one in decided:  # the present number may be one that is being tried
            count = count if one.proposed else one.after if one.kept else one.before
        stream.resize({knob: count})
    except FeedError as error:
        return (), str(error)
    return decided, "" if decided else f"{knob}={count} is as fast as any"

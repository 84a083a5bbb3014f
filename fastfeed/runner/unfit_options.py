"""Options that gain nothing, or that this machine cannot hold: told before the first batch."""

from __future__ import annotations

import warnings

from fastfeed.core.machine import threads_that_fit, workers_that_fit
from fastfeed.errors import FeedWarning, OptionError
from fastfeed.options import FeedOptions
from fastfeed.source import SharedSource, Source


def warn_of_idle_producers(source: Source, options: FeedOptions) -> None:
    """Warn about several producers for one iterator that no function of the user's follows."""
    work = (options.transform, options.augment, options.batch_transform, options.collate)
    if not isinstance(source, SharedSource) or options.parallel == 1 or any(work):
        return
    knobs = ", ".join(
        f"{name}={getattr(options, name)!r}"
        for name in ("threads", "processes", "remote")
        if getattr(options, name)
    )
    warnings.warn(
        f"{knobs} gain nothing here: the source is one iterator, which one producer at a time "
        "reads. Do the slow part in transform=, which runs in all producers, or pass a function "
        "that takes `worker` and yields the share worker.index of worker.count",
        FeedWarning,
        stacklevel=5,
    )


def refuse_too_many(threads: int, processes: int) -> None:
    """Raise OptionError for more threads or worker processes than this machine can hold."""
    if processes > 1:
        most, limit = workers_that_fit()
        if processes > most:
            raise OptionError(
                f"processes={processes} do not fit: {most} do, because of {limit}. More than the "
                "cores seldom gain; threads= inside each hide waits"
            )
    if threads > 1:
        most, limit = threads_that_fit(max(1, processes))
        if threads > most:
            where = f" in each of processes={processes}" if processes else ""
            raise OptionError(
                f"threads={threads} do not fit{where}: {most} do, because of {limit}. They hide "
                "waits, and more than the records that wait at once gain nothing"
            )

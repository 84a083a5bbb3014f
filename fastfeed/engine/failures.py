"""The errors with which a feed ends."""

from __future__ import annotations

from fastfeed.errors import FeedStopped, FeedTimeout, OptionError, SpecError, StateError


def no_batch() -> SpecError:
    """Return the error of a source without any batch."""
    return SpecError(
        "the source ended before its first batch (batches of zero records are skipped): it must "
        "have at least one record. Is the iterator used up, the path empty, does filter= leave "
        "nothing, or have other ranks taken all?"
    )


def run_is_over() -> StateError:
    """Return the error of a sink that learns from the first batch, where none is left."""
    return StateError(
        "the state is at the end of its run: all epochs were delivered. Raise epochs= to go on"
    )


def never_filled(records: int, batch_size: int | None) -> OptionError:
    """Return the error of a source that last_batch="drop" would lose whole."""
    return OptionError(
        f"batch_size={batch_size} can never be filled: the source has {records} records and "
        'last_batch="drop". Lower batch_size, or set last_batch="keep"'
    )


def stalled(limit_s: float, stacks: str) -> FeedTimeout:
    """Return the error of producers that make no batch any more."""
    return FeedTimeout(
        f"no batch arrived for {limit_s:g} s (stall_timeout_s). What the producers are "
        f"doing:\n{stacks}"
    )


def stopped() -> FeedStopped:
    """Return the error of a feed that its owner has stopped."""
    return FeedStopped("the runner was stopped: make a new FeedRunner to go on")

"""Metrics of Keras that measure the starvation of each epoch of `fit`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastfeed.errors import required

with required("Keras", "keras"):
    import keras

if TYPE_CHECKING:
    from fastfeed.core.stats import Snapshot
    from fastfeed.runner.runner import FeedRunner


class FeedCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Adds measurements of the feed to the logs of each epoch. Put it first, so that the other
    callbacks see them, too.

    With name="feed": `feed_starvation` (0 to 1, the share of the epoch for which it waited for
    input, without the wait for the very first batch), `feed_au` (1 - starvation),
    `feed_queue_depth` (batches that were ready at the end) and `feed_wait_ms` (mean wait for a
    batch, in ms). They are floats, and nan if an epoch had too few batches. Validation does not
    count. If batches are taken ahead of the step (`prefetch=`, and by Keras itself with a PyDataset
    on TensorFlow), the figures are those of the thread that takes them: an upper bound of the wait
    of the step.
    """

    def __init__(self, runner: FeedRunner, *, name: str = "feed") -> None:
        super().__init__()
        self._runner = runner
        self._name = name
        self._snapshot_at_begin: Snapshot | None = None
        self._feed_at_begin: Any = None  # released with the epoch
        self._begin_s = 0.0
        self._measured: dict[str, float] | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        self._snapshot_at_begin = self._runner.snapshot()
        self._feed_at_begin = self._feed()
        self._begin_s = time.perf_counter()
        self._measured = None

    def on_test_begin(self, logs: Any = None) -> None:
        """Called by Keras at the beginning of a validation."""
        self._measure()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        measured = self._measure()
        if logs is not None:
            logs.update({f"{self._name}_{key}": value for key, value in measured.items()})

    def _measure(self) -> dict[str, float]:
        """Return the figures of the training of this epoch, at its end."""
        if self._measured is None:
            now = self._runner.snapshot()
            new_feed = self._feed_at_begin is not self._feed()  # its counters began at 0
            self._feed_at_begin = None
            self._measured = _difference(
                now,
                None if new_feed else self._snapshot_at_begin,
                clock_s=time.perf_counter() - self._begin_s,
            )
        return self._measured

    def _feed(self) -> Any:
        return getattr(getattr(self._runner, "_stream", None), "feed", None)


def _difference(now: Snapshot, before: Snapshot | None, *, clock_s: float) -> dict[str, float]:
    """Return the figures of one epoch, which took `clock_s`."""
    if before is not None and before.consumed.batches > now.consumed.batches:
        before = None
    batches, waited_s, elapsed_s = now.consumed.batches, now.consumed.wait_in_s, now.elapsed_s
    if before is not None:
        batches -= before.consumed.batches
        waited_s -= before.consumed.wait_in_s
        elapsed_s -= before.elapsed_s
    elapsed_s = min(elapsed_s, clock_s)  # the time between the epochs does not count
    starvation = (
        min(1.0, max(0.0, waited_s / elapsed_s)) if batches and elapsed_s > 0 else float("nan")
    )
    return {
        "starvation": float(starvation),
        "au": float(1.0 - starvation),
        "queue_depth": float(now.depth),
        "wait_ms": float(1000 * waited_s / batches) if batches else float("nan"),
    }

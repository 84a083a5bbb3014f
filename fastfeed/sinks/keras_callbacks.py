"""Callbacks of Keras: the starvation of each epoch of `fit`, and the state of a runner in a file
beside a model, exact although `fit` takes batches ahead."""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastfeed.core.order import is_integer
from fastfeed.errors import OptionError, StateError, required

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


class StateCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Writes the state of the runner to the file `path`, whenever ModelCheckpoint saves the model.

        feed = StateCallback(runner, "model.json")
        model.fit(
            feed.batches(), steps_per_epoch=500, epochs=10, initial_epoch=feed.restore(),
            shuffle=False, callbacks=[keras.callbacks.ModelCheckpoint("model.keras"), feed],
        )

    `save_freq` is "epoch" or a number of batches, as for ModelCheckpoint. Batches that fit() took
    from `batches()` and has not trained on do not count; they are kept until it has. Each rank of a
    data-parallel training needs a file of its own. Raise StateError in a fit() of other batches.
    """

    def __init__(
        self, runner: FeedRunner, path: str | os.PathLike[str], *, save_freq: int | str = "epoch"
    ) -> None:
        super().__init__()
        if save_freq != "epoch" and not (is_integer(save_freq) and int(save_freq) > 0):
            raise OptionError(
                f'save_freq={save_freq!r}: must be "epoch" or a number of batches > 0'
            )
        self._runner = runner
        self._path = Path(path)
        self._save_freq = save_freq if save_freq == "epoch" else int(save_freq)
        self._batch_source: Iterator[Any] | None = None
        # fit() reads in a thread of TensorFlow; the thread of an earlier fit() may still run
        self._reading = threading.Lock()
        # batches that were delivered and not trained on, and the states after them, by number
        self._pending: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._read = 0  # batches that came from the runner
        self._trained = 0  # batches that were trained on
        self._state: dict[str, Any] | None = None  # after the last batch that was trained on
        self._epoch = 0
        self._epoch_began = 0  # batches trained on before this epoch
        self._execution_start = 0  # number in the epoch of the first batch of this execution
        # Counts batches as the installed Keras does: up to 3.13 a first execution of three batches
        # counts as two. Its file is never written.
        self._checkpoint = keras.callbacks.ModelCheckpoint("of.keras", save_freq=self._save_freq)

    def batches(self) -> Iterator[Any]:
        """Yield the runner's batches for fit(): `epochs=` epochs, or without end, so that fit()
        needs `steps_per_epoch`.

        Another call, for another fit(), continues after the last batch that was trained on. Raise
        what iteration raises.
        """
        return self._batches(weakref.ref(self))

    def restore(self) -> int:
        """Restore the runner from the file, if there is one. Return the epoch for
        fit(initial_epoch=...).

        An epoch of fit() that was interrupted begins again, with all its steps, on the batches that
        come next. Raise OptionError for another kind of file, or the state of another stream, and
        StateError after the runner's start.
        """
        if not self._path.exists():
            return 0
        try:
            saved = json.loads(self._path.read_text())
            epoch, state = int(saved["epoch"]), saved["feed"]
        except (ValueError, TypeError, KeyError) as error:
            raise OptionError(f"{self._path}: must be a file that a StateCallback wrote") from error
        self._runner.restore(state)
        return epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        self._epoch, self._epoch_began = epoch, self._trained

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Called by Keras, with the number of the first batch of an execution."""
        self._execution_start = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called by Keras, with the number of the last batch of an execution (of the first, before
        3.11)."""
        if self._trained == self._read:
            raise StateError(
                "fit() has trained on a batch that is not a new one of this callback's: call "
                "fit(feed.batches(), steps_per_epoch=...). Without steps_per_epoch Keras reads a "
                "generator's first batches again when it has ended"
            )
        last = (
            batch
            if batch > self._execution_start
            else batch + int(getattr(self.model, "steps_per_execution", 1)) - 1
        )
        # the last execution of several steps may have had fewer batches than it counts
        while self._trained < min(self._epoch_began + last + 1, self._read):
            self._state = self._pending.pop(self._trained)[1]
            self._trained += 1
        # there is no public name
        if self._save_freq != "epoch" and self._checkpoint._should_save_on_batch(batch):
            steps = self.params.get("steps")
            self._save(self._epoch + (steps is not None and last + 1 >= steps))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        if self._save_freq == "epoch" and self._state is not None:
            self._save(epoch + 1)

    def _batch(self, number: int) -> Any:
        """Return a batch to train on; None after the last one, or if another fit() has begun."""
        with self._reading:
            if number == self._read and not self._read_one():
                return None
        ahead = self._pending.get(number)
        return None if ahead is None else ahead[0]

    def _read_one(self) -> bool:
        """Take the next batch from the runner; return True if there was one."""
        batch = self._next()
        if batch is None and not self._read:
            batch = self._next()  # the state was at the end of a run: the next one begins
        if batch is None:
            return False
        self._pending[self._read] = batch, self._runner.state()
        self._read += 1
        return True

    def _next(self) -> Any:
        """Return the next batch of the runner's present run, or None."""
        if self._batch_source is None:
            self._batch_source = chain.from_iterable(self._runner.epochs())
        try:
            return next(self._batch_source)
        except BaseException as error:
            # the runner decides what comes next: the error again, or another run
            self._batch_source = None
            if not isinstance(error, StopIteration):
                raise
            return None

    def _save(self, epoch: int) -> None:
        """Replace the file atomically."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(f"{self._path.name}.new")
        new.write_text(json.dumps({"epoch": epoch, "feed": self._state}))
        os.replace(new, self._path)

    @staticmethod
    def _batches(owner: weakref.ref[StateCallback]) -> Iterator[Any]:
        """Yield the batches after those that were trained on at the first request.

        The generator holds no runner, because TensorFlow never releases it.
        """
        number: int | None = None
        while (feed := owner()) is not None:
            number = feed._trained if number is None else number + 1
            batch = feed._batch(number)
            del feed
            if batch is None:
                return
            yield batch

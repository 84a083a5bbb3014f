"""Speed of a training by its own clock: steps per second after a warm-up, and the share of time
without a batch."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any


def arguments() -> argparse.Namespace:
    """Arguments of all scripts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("slow", "fixed", "free", "seen"), default="slow")
    parser.add_argument("--seconds", type=float, default=20.0)
    return parser.parse_args()


def same(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the first of some batches again and again: input that costs nothing."""
    batch = next(iter(batches))
    while True:
        yield batch


class Clock:
    """Counts steps for `args.seconds` after a warm-up; `asked` and `got` go around the wait for a
    batch."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.warmup_s = min(2.0, args.seconds / 3)
        self.first = self.start = 0.0  # the end of the first step, the end of the warm-up
        self.now = 0.0
        self.steps = 0
        self.waited_s = 0.0
        self.waits = False
        self._asked = 0.0

    def running(self) -> bool:
        """Return True if there is time for another step."""
        return not self.start or self.now < self.start + self.args.seconds

    def asked(self) -> None:
        """Record a request for a batch."""
        self._asked = time.perf_counter()

    def got(self) -> None:
        """Record the arrival of the batch."""
        self.waits = True
        if self.start:
            self.waited_s += time.perf_counter() - self._asked

    def over(self, batches: Any) -> Any:
        """Return `batches`; for the variant whose waits are visible, with a clock around each."""
        return self._timed(batches) if self.args.variant == "seen" else batches

    def _timed(self, batches: Any) -> Any:
        found, end = iter(batches), object()
        while True:
            self.asked()
            batch = next(found, end)
            self.got()
            if batch is end:
                return
            yield batch

    def fits(self, model: Any) -> None:
        """Keras requests a batch before its step, not inside, so that waits can be seen."""
        if self.args.variant != "seen":
            return
        model.make_train_function()
        train = model.train_function

        def apart(batches: Any) -> Any:
            self.asked()
            batch = next(batches)
            self.got()
            return train(iter([batch]))

        model.train_function = apart

    def timing(self) -> Any:
        """Return a callback that counts the steps of Keras, and ends its training."""
        import keras

        clock = self

        class Timing(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                clock.step()
                self.model.stop_training = not clock.running()

        return Timing()

    def step(self) -> None:
        """A step is done."""
        self.now = time.perf_counter()
        if self.start:
            self.steps += 1
        elif not self.first:
            self.first = self.now
        elif self.now >= self.first + self.warmup_s:
            self.start = self.now

    def report(self) -> None:
        """Print the figures as a line of JSON."""
        seconds = self.now - self.start
        found = {
            "variant": self.args.variant,
            "steps": self.steps,
            "seconds": seconds,
            "steps_per_second": self.steps / seconds,
            "starvation": self.waited_s / seconds if self.waits else None,
        }
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()

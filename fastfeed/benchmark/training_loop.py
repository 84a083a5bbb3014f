"""A training loop as a benchmark drives it: its parts and its feed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fastfeed import FeedRunner
from fastfeed.errors import OptionError
from fastfeed.model.workload import Producers

FOR_EVER = 10**9  # epochs
Options = Mapping[str, Any] | None  # of FeedRunner, beside those that a benchmark varies


@dataclass(frozen=True)
class TrainingLoop:
    """A training loop that is ready: `step` takes a batch, trains, and returns the seconds that it
    waited for it; `stock` returns how many batches are ready."""

    step: Callable[[], float]
    first_batch_s: float
    stock: Callable[[], float]


class Consumer(Protocol):
    """A kind of training loop."""

    name: str
    burns_cpu: bool  # True if its step competes with the producers for cores

    def cached(self, batch: Any) -> Any:
        """Return a context whose value is a function that takes one step on the same batch,
        repeatedly."""

    def loop(
        self, source: Any, *, producers: Producers, batch_size: int | None, options: Options = None
    ) -> Any:
        """Return a context whose value is a TrainingLoop fed by FeedRunner."""


def runner_for(
    source: Any, producers: Producers, *, batch_size: int | None, options: Options = None
) -> FeedRunner:
    """Return the runner under test: a finite iterator starts again, because speed is measured and
    not data."""
    if producers.remote is None:
        workers: dict[str, Any] = {"processes": producers.processes}
    else:
        workers = {"remote": producers.remote, "producers": producers.processes}
    return FeedRunner(
        source,
        threads=producers.threads,
        **workers,
        batch_size=batch_size,
        epochs=FOR_EVER,
        repeat_per_producer=True,
        **(options or {}),
    )


def images_and_labels(batch: Any) -> tuple[Any, Any]:
    """Return the two leaves of an image classifier. Raise OptionError if the batch holds something
    else."""
    if (
        isinstance(batch, (tuple, list))
        and len(batch) == 2
        and batch[0].ndim in (3, 4)
        and batch[1].ndim == 1
    ):
        return batch[0], batch[1]
    raise OptionError(
        "this consumer trains an image classifier: needed batches (images (B, H, W) or (B, H, W, "
        "C), labels (B,)). For other batches take --consumer sim:20ms with the time of your own "
        "step, or none"
    )

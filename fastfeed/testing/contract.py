"""check_sink: the whole battery, with producer threads and with worker processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fastfeed.errors import OptionError
from fastfeed.testing import scenes
from fastfeed.testing.promises import SinkBroken, SinkTraits
from fastfeed.testing.trial import Open, Trial

PLAIN_TRAITS = SinkTraits()
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def check_sink(
    open: Open,
    *,
    to_numpy: Callable[[Any], Any] | None = None,
    traits: SinkTraits = PLAIN_TRAITS,
    options: Mapping[str, Any] = NO_OPTIONS,
    processes: Sequence[int] = (0, 1),
    limit_s: float = 30.0,
) -> tuple[str, ...]:
    """Check a sink against every one of `PROMISES`; return the names of those that were checked.

    `open(runner)` returns the iterable of the training loop: elements in the containers of the
    batch. `to_numpy` converts an element to one whose leaves numpy.asarray accepts (`lambda batch:
    batch.cpu()`); None means that they are already. `options` are keywords for the runners of the
    battery, if the sink needs any. `processes` lists the numbers of worker processes to try, 0 for
    producer threads. No scene takes longer than `limit_s` seconds: a hang is a broken promise,
    reported with the stack of every thread. The sink is opened and iterated in a thread of the
    battery.

    Raise SinkBroken, which names every broken promise and what happened instead. Raise OptionError
    if `open` is not callable.
    """
    if not callable(open):
        raise OptionError(
            f"open must be a function of a runner that returns the sink, got {open!r}"
        )
    trial = Trial(open, to_numpy, traits, limit_s, options)
    for count in processes:
        trial.use_processes(count)
        battery = [scenes.iterations, scenes.errors, scenes.paced]
        if not count:
            battery += (
                [scenes.shuffled] * traits.again
                + [scenes.epochs, scenes.unsized]
                + [scenes.padded] * traits.padded
            )
        if not all(trial.play(scene) for scene in battery):
            break
    if trial.findings:
        raise SinkBroken(trial.findings) from trial.error
    return tuple(trial.checked)

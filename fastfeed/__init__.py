"""fastfeed: parallel producers feed any Python iterator into any training loop.

Importing this package imports no framework. Its names are imported on first use: a worker process,
which needs few of them, starts in little more than half of the time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastfeed.errors import (
    BadImage,
    FeedError,
    FeedStopped,
    FeedTimeout,
    FeedWarning,
    MissingExtra,
    OptionError,
    ProducerDied,
    ProducerError,
    ProducerFailed,
    SpecError,
    StateError,
)

if TYPE_CHECKING:
    from fastfeed.augment.spec import Augment
    from fastfeed.core.stats import Snapshot
    from fastfeed.core.worker import Worker
    from fastfeed.diagnose.run.block import BlockDiagnosis
    from fastfeed.options import Cache, FeedOptions, Pad, Remote, Reorder, Shard, Shuffle, Skip
    from fastfeed.runner.runner import FeedRunner
    from fastfeed.source.mix import Mix
    from fastfeed.steps.watch import watch
    from fastfeed.tune.profile import profile

    diagnose = BlockDiagnosis

__all__ = [
    "Augment",
    "BadImage",
    "Cache",
    "FeedError",
    "FeedOptions",
    "FeedRunner",
    "FeedStopped",
    "FeedTimeout",
    "FeedWarning",
    "MissingExtra",
    "Mix",
    "OptionError",
    "Pad",
    "ProducerDied",
    "ProducerError",
    "ProducerFailed",
    "Remote",
    "Reorder",
    "Shard",
    "Shuffle",
    "Skip",
    "Snapshot",
    "SpecError",
    "StateError",
    "Worker",
    "profile",
    "watch",
]
__version__ = "0.1.0"

_MODULES = {
    "Augment": "augment.spec",
    "Cache": "options",
    "FeedOptions": "options",
    "FeedRunner": "runner.runner",
    "Mix": "source.mix",
    "Pad": "options",
    "Remote": "options",
    "Reorder": "options",
    "Shard": "options",
    "Shuffle": "options",
    "Skip": "options",
    "Snapshot": "core.stats",
    "Worker": "core.worker",
    "profile": "tune.profile",
    "watch": "steps.watch",
}


def __getattr__(name: str) -> Any:
    if name == "diagnose":  # a package that can be called; importing it sets the attribute
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "diagnose"})

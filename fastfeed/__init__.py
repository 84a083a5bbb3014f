"""fastfeed: any Python iterator, made by parallel producers, fed into any training loop.

Importing this package imports no framework.
"""

from fastfeed.errors import (
    FeedError,
    FeedStopped,
    FeedTimeout,
    FeedWarning,
    MissingExtra,
    OptionError,
    ProducerError,
    SpecError,
    StateError,
)
from fastfeed.options import FeedOptions, Shuffle
from fastfeed.runner import FeedRunner
from fastfeed.stats import Snapshot
from fastfeed.watching import watch
from fastfeed.worker import Worker

__all__ = [
    "FeedError",
    "FeedOptions",
    "FeedRunner",
    "FeedStopped",
    "FeedTimeout",
    "FeedWarning",
    "MissingExtra",
    "OptionError",
    "ProducerError",
    "Shuffle",
    "Snapshot",
    "SpecError",
    "StateError",
    "Worker",
    "watch",
]
__version__ = "0.1.0"

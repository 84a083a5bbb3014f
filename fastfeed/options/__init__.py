"""The options of a FeedRunner.

Imports core, augment (when it is used) and errors.
"""

from fastfeed.core.order import Shard
from fastfeed.options.feed_options import FeedOptions, options_from, refuse_too_many
from fastfeed.options.option_values import (
    BYTE_UNITS,
    Cache,
    MetricsTarget,
    Pad,
    Remote,
    Shuffle,
    Skip,
    parse_bytes,
    parse_metrics,
)

__all__ = [
    "BYTE_UNITS",
    "Cache",
    "FeedOptions",
    "MetricsTarget",
    "Pad",
    "Remote",
    "Shard",
    "Shuffle",
    "Skip",
    "options_from",
    "parse_bytes",
    "parse_metrics",
    "refuse_too_many",
]

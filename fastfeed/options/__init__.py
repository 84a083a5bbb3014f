"""The options of a FeedRunner.

Imports core, augment (when it is used) and errors.
"""

from fastfeed.core.order import Shard
from fastfeed.options.feed_options import FeedOptions, options_from, refuse_too_many
from fastfeed.options.option_values import (
    AUTO,
    BYTE_UNITS,
    Auto,
    Cache,
    MetricsTarget,
    Pad,
    Remote,
    Reorder,
    Shuffle,
    Skip,
    parse_bytes,
    parse_metrics,
)

__all__ = [
    "AUTO",
    "BYTE_UNITS",
    "Auto",
    "Cache",
    "FeedOptions",
    "MetricsTarget",
    "Pad",
    "Remote",
    "Reorder",
    "Shard",
    "Shuffle",
    "Skip",
    "options_from",
    "parse_bytes",
    "parse_metrics",
    "refuse_too_many",
]

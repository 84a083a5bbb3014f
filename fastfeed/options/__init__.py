"""The options of a FeedRunner.

Imports core, augment (when it is used) and errors.
"""

from fastfeed.options.feed_options import AUTO_EXECUTOR, EXECUTORS, FeedOptions, options_from
from fastfeed.options.option_values import (
    BYTE_UNITS,
    Cache,
    MetricsTarget,
    Shuffle,
    parse_bytes,
    parse_metrics,
)

__all__ = [
    "AUTO_EXECUTOR",
    "BYTE_UNITS",
    "EXECUTORS",
    "Cache",
    "FeedOptions",
    "MetricsTarget",
    "Shuffle",
    "options_from",
    "parse_bytes",
    "parse_metrics",
]

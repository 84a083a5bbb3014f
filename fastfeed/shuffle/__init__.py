"""Record-level shuffle: the pool that batches are drawn from, and the memory that holds its
records."""

from __future__ import annotations

from fastfeed.shuffle.bulk import BulkPool
from fastfeed.shuffle.shuffle_pool import Origin, ShufflePool

__all__ = ["BulkPool", "Origin", "ShufflePool"]

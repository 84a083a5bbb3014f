"""Record-level shuffle: the pool that batches are drawn from, and the memory of its records.
Imports only errors, core and options."""

from __future__ import annotations

from fastfeed.engine.shuffle.shuffle_pool import Origin, ShufflePool

__all__ = ["Origin", "ShufflePool"]

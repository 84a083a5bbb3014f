"""Ranks of one job that share out the batches of each epoch as they go.

Imports core and errors.
"""

from fastfeed.ranks.shard_server import ShardServer

__all__ = ["ShardServer"]

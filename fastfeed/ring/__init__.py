"""Batches in memory that two processes share: slot layout, slot states, the memory and its two
ends. May import errors, options and core."""

"""Batches in memory that two processes share: layout, the states of a slot, the memory itself, and
its two ends. Imports only errors and core."""

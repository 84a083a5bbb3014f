"""Producers: the loop that each of them runs, threads that run it, and the buffer that they fill.
Imports ring, source, core, options and augment."""

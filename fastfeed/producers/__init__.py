"""Producers of batches: the loop that each of them runs, threads that run it, and the buffer they
fill. May import errors, options, core, source, augment and ring."""

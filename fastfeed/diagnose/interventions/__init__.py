"""Interventions: blocks of steps from which something else takes cores, the interpreter lock or
time, and nothing but time, so that batches, their order and random numbers stay."""

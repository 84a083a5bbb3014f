"""Samples of a running training: its threads, child processes and loops, as tasks and parts of
evidence. Imports evidence, steps and probes, never another room of diagnose."""

"""Samples of the threads, child processes and loops of a running training.

It turns them into the tasks and loop parts of evidence. It may import fastfeed.errors, core,
probes, steps and diagnose.evidence.
"""

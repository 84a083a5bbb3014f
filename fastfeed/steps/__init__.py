"""The steps of a training loop: the timeline, its recorders, and `fastfeed.watch`.

Imports only errors.
"""

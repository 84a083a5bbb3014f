"""Sinks: one file for each outside world; frameworks are imported nowhere else. Imports the engine
and everything below it."""

"""Producers as worker processes. Imports ring, source, core and the files of producers."""

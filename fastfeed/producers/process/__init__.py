"""Producers as worker processes, and the trainer's end of them. Imports ring, source and the files of
producers."""

"""Runs of a script as it is and as patches change it, in turn, in copies of its folder."""

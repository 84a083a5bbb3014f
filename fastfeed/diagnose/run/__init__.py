"""Launches a script under observation, watches it, and has the evidence judged and reported."""

"""Launches a script under observation, and has the evidence judged and reported. Imports every room
of diagnose."""

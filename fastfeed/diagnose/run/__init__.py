"""Launch of a script under observation, up to the report of its diagnosis.

It may import fastfeed.errors, core, probes, steps and everything of fastfeed.diagnose.
"""

"""Pairs of scripts: a loader of another library, and the same training on fastfeed."""

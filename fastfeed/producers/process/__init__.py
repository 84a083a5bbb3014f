"""Producers as worker processes. May import what the package `producers` may, and its files."""

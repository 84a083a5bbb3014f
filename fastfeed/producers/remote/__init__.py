"""Producers in actors of Ray, on any node of a cluster; the only place that imports ray. May
import what the package `producers.process` may, and its files."""

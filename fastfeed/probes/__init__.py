"""Probes: the only eyes on the machine: /proc, NVML, py-spy, the interpreter and its lock. Imports
only errors and core."""

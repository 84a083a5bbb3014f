"""The engine: source, producers and buffer as one chain of stages. Imports everything below sinks
and runner."""

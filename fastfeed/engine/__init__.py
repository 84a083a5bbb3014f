"""The engine: producers, stages and epochs as one feed. Imports everything below it: core, options,
augment, source, ring and producers; never a sink or the runner."""

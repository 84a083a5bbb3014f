"""From evidence to a diagnosis: figures, causes, changes and what they gain. Pure functions.
Imports diagnosis, evidence, model, steps and the thresholds of probes."""

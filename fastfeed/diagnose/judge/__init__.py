"""From evidence to a diagnosis: figures, causes, changes and what they gain. Pure functions."""

"""Whole trainings as people write them, fed by the loaders of their frameworks and by fastfeed."""

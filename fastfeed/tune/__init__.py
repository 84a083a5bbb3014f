"""The choice of the number of producers, while the training runs.

Imports core, options and errors.
"""

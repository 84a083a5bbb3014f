"""Where the batches go: one file for each outside world, and frameworks are imported nowhere else."""

"""Who makes the batches: the loop that every producer runs, threads that run it, and the buffer
they fill."""

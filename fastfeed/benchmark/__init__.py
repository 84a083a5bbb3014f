"""The harness behind `fastfeed-bench`: workloads, the models that consume them, sweeps and
plots."""

"""The harness behind `fastfeed bench`: workloads, the models that consume them, sweeps and plots.
Imports the public API, model and probes; compares diagnoses by their JSON."""

"""A runner seen from outside while it runs, and after its process died: black box, socket, metrics,
top, postmortem. Imports the engine's public status, probes and everything below; never sinks or the
runner."""

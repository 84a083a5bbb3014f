"""Running jobs and jobs that died: black box, metrics, `top`, `postmortem` and `doctor`. It imports
the engine's public status, probes and everything below; never sinks or the runner."""

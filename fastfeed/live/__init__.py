"""A runner seen from outside while it runs, and after its process died: black box, socket, metrics,
top, postmortem."""

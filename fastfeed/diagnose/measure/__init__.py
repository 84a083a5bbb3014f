"""Looks at a running training from beside it: its threads, its child processes, the interpreter lock, the machine."""

"""Hooks: they observe the steps of a script that does not know fastfeed. Imports steps and probes,
never another room of diagnose.

Every module here that observes a library has `MODULES`, the names of the modules that it patches,
and `install(module, log)`, which is called right after the script has imported one of them,
patches it, and returns a function that undoes the patch. No module here imports what it patches.
"""

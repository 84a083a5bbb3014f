"""Hooks that observe the steps of a script that does not know fastfeed.

Imports errors, core, probes, steps and diagnose.evidence, never another room of diagnose.

A module here that observes a library has `MODULES`, the names of the modules that it patches, and
`install(module, log)`. `install` is called right after the script has imported one of these
modules, patches it, and returns a function that undoes the patch. No module here imports what it
patches.
"""

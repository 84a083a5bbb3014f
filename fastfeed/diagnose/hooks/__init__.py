"""Hooks: how a script that knows nothing of us is seen while it makes its steps.

Every module here that watches something of a library has `MODULES`, the names of the modules that
it patches, and `install(module, context)`, which is called right after the script has imported one
of them, patches it, and returns a function that undoes the patch. Nothing here imports what it
patches.
"""

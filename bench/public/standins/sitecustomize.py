"""Start of every public script: stand-ins for its data and, for a truth, a tally of its steps.

`PUBLIC_SETTINGS` names a JSON file that `bench.public.prepare` wrote. Nothing is imported before
the script imports it; each framework is changed right after its own import.
"""

import os

if "PUBLIC_SETTINGS" in os.environ:
    import public_hooks

    public_hooks.install(os.environ["PUBLIC_SETTINGS"])

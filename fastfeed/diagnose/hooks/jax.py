"""Hook of JAX's backends: the threads that they start only run compiled programs."""

from __future__ import annotations

import functools
import os
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.patches import Undo, patch
from fastfeed.probes import procfs

MODULES = ("jax._src.xla_bridge",)


def install(module: Any, log: HookLog) -> Undo:
    """Record the native threads that appear while a backend is made."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            before = procfs.threads_of(os.getpid())
            try:
                return original(*args, **kwargs)
            finally:
                log.computing.update(procfs.threads_of(os.getpid()) - before)

        return make

    return patch(module, "_init_backend", wrap=wrap)

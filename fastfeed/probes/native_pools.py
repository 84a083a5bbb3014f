"""Thread counts of the native libraries that the script has loaded, as they report them."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any


def pools_of(modules: Mapping[str, ModuleType | Any]) -> dict[str, int]:
    """Return the number of threads by library, without importing any.

    A library that does not report it is left out.
    """
    found: dict[str, int] = {}
    for name, module, function in (
        ("OpenCV", "cv2", "getNumThreads"),
        ("torch", "torch", "get_num_threads"),
    ):
        count = int(_call(modules.get(module), function, default=0))
        if count:
            found[name] = count
    for pool in _call(modules.get("threadpoolctl"), "threadpool_info", default=()):
        name = str(pool.get("internal_api", "native"))
        found[name] = max(found.get(name, 0), int(pool.get("num_threads", 0)))
    return found


def _call(module: Any, function: str, *, default: Any) -> Any:
    """Return the result of a function of a module, or the default if it cannot be called."""
    try:
        return getattr(module, function)()
    except Exception:  # the script's own library, of any version, may raise anything
        return default

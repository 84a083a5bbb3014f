"""Numbers of threads of native libraries, reported by those that the script has loaded."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any


def pools_of(modules: Mapping[str, ModuleType | Any]) -> dict[str, int]:
    """Return threads by library; one that does not report them is left out, and nothing is
    imported."""
    found: dict[str, int] = {}
    for name, module, ask in (
        ("OpenCV", "cv2", "getNumThreads"),
        ("torch", "torch", "get_num_threads"),
    ):
        count = _asked(getattr(modules.get(module), ask, None))
        if count:
            found[name] = count
    info = getattr(modules.get("threadpoolctl"), "threadpool_info", None)
    for one in _list(info):
        name = str(one.get("internal_api", "native"))
        found[name] = max(found.get(name, 0), int(one.get("num_threads", 0)))
    return found


def _asked(question: Any) -> int:
    try:
        return int(question()) if question is not None else 0
    except Exception:  # the script's own library, of any version, may raise anything
        return 0


def _list(question: Any) -> list[Mapping[str, Any]]:
    try:
        return list(question()) if question is not None else []
    except Exception:  # as above
        return []

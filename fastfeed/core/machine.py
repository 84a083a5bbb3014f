"""Memory limits of the machine and of control groups, and kills for lack of memory."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

ROOT = Path("/sys/fs/cgroup")
MIN_FREE_NBYTES = 2**20
UNLIMITED = 2**60  # control groups of version 1 write a huge number if there is no limit


def free_memory_nbytes(root: Path = ROOT, own: str | None = None) -> int:
    """Return the bytes that this process may still allocate.

    This is the free memory of the machine, or of the tightest control group if that is less.
    """
    free = int(psutil.virtual_memory().available)
    for folder in memory_groups(root, own):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        used = _number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < UNLIMITED:
            free = min(free, limit - used)
    return max(free, MIN_FREE_NBYTES)


def oom_kills(root: Path = ROOT, own: str | None = None) -> int | None:
    """Return the number of processes killed for memory in this control group, None if unknown."""
    for folder in memory_groups(root, own):
        for name in ("memory.events", "memory.oom_control"):
            found = re.search(r"^oom_kill (\d+)$", _text(folder / name), re.MULTILINE)
            if found:
                return int(found[1])
    return None


def memory_groups(root: Path = ROOT, own: str | None = None) -> list[Path]:
    """Return the control group folders that bound this process's memory, innermost first.

    The format is described in cgroups(7).
    """
    folders: list[Path] = []
    for line in (_text(Path("/proc/self/cgroup")) if own is None else own).splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        for base in (root / "memory",) if kinds else (root, root / "unified"):
            # Inside a container, the path is the host's and only the root is visible.
            steps = Path(path.lstrip("/"))
            folders += [base / part for part in (steps, *steps.parents)]
    return [f for f in dict.fromkeys(folders) if f.is_dir()]


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _number(folder: Path, *names: str) -> int | None:
    texts = [_text(folder / name).strip() for name in names]
    return next((int(text) for text in texts if text.isdigit()), None)

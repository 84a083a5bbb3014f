"""Memory that this machine, or the control group of this process, has left, and processes that the
kernel killed for the lack of it."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

ROOT = Path("/sys/fs/cgroup")
LEAST_NBYTES = 2**20
UNLIMITED = 2**60  # control groups of version 1 write a huge number where there is no limit


def free_memory_nbytes(root: Path = ROOT, own: str | None = None) -> int:
    """Return the bytes that this process may still allocate: the machine's, or those of its control
    groups if that is less."""
    free = int(psutil.virtual_memory().available)
    for folder in memory_groups(root, own):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        used = _number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < UNLIMITED:
            free = min(free, limit - used)
    return max(free, LEAST_NBYTES)


def oom_kills(root: Path = ROOT, own: str | None = None) -> int | None:
    """Return how many processes of this control group the kernel has killed for memory; None if it
    does not count."""
    for folder in memory_groups(root, own):
        for name in ("memory.events", "memory.oom_control"):
            found = re.search(r"^oom_kill (\d+)$", _text(folder / name), re.MULTILINE)
            if found:
                return int(found[1])
    return None


def memory_groups(root: Path = ROOT, own: str | None = None) -> list[Path]:
    """Return the folders of the control groups that bound this process's memory, the innermost
    first (see cgroups(7))."""
    folders: list[Path] = []
    for line in (_text(Path("/proc/self/cgroup")) if own is None else own).splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        for base in (root / "memory",) if kinds else (root, root / "unified"):
            # Inside a container the path is the host's, and only the root is visible.
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

"""What other systems than Linux lack: modules that are None there, and calls that are replaced."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
from typing import Any


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:  # Windows
        return None


fcntl, resource = _module("fcntl"), _module("resource")
PAGE_NBYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
TICKS_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
# True where processes can share memory without a name, and wait for each other by descriptors.
ON_LINUX = all(hasattr(os, name) for name in ("memfd_create", "pidfd_open"))


PR_SET_PDEATHSIG = 1


def die_with(parent: int, by: int | None = None) -> None:
    """Let the kernel end this process, by SIGKILL or the signal `by`, when `parent` ends, whatever
    either of them is doing then. See prctl(2)."""
    by = signal.SIGKILL if by is None else by
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "prctl"):
        return  # another system
    library.prctl(PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def usable_cores() -> int:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def reserve(file: int, nbytes: int) -> None:
    """Make a file at least so long, with space on the disk where the system can reserve it. Raise
    OSError if there is none."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, nbytes)
    else:
        os.ftruncate(file, nbytes)


def lock(file: Any) -> None:
    """Wait until no other process or thread has this file locked, and lock it until it is closed.
    Without fcntl, do nothing."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX)

"""Importing this takes away what only Linux has: modules, calls, signals and /proc."""

import builtins
import ctypes
import importlib.abc
import io
import os
import signal
import socket
import sys
from typing import Any

import psutil  # it has another implementation on other systems
import tqdm  # noqa: F401  # imports fcntl where there is one

MODULES = ("fcntl", "resource")
CALLS = (
    "memfd_create pidfd_open posix_fallocate sched_getaffinity sched_yield setpriority getpriority "
    "eventfd eventfd_read eventfd_write fork waitid getuid preadv pread MFD_CLOEXEC "
    "MFD_ALLOW_SEALING EFD_NONBLOCK EFD_CLOEXEC P_PIDFD killpg"
)
SIGNALS = "pidfd_send_signal pthread_kill SIGUSR1 SIGUSR2 SIGKILL SIGCHLD setitimer pthread_sigmask"
SOCKETS = "send_fds recv_fds AF_UNIX SCM_RIGHTS CMSG_SPACE"


class Missing(importlib.abc.MetaPathFinder):
    """Finds that some modules do not exist."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raise ImportError for them."""
        if name in MODULES:
            raise ImportError(f"there is no module {name!r} here")


def without_proc(real: Any) -> Any:
    """Return a function that fails for files of the kernel, except when psutil calls it."""

    def called(path: Any, *rest: Any, **named: Any) -> Any:
        reader = os.path.dirname(sys._getframe(1).f_code.co_filename)
        own = reader == os.path.dirname(psutil.__file__)
        kernels = ("/proc", "/sys", "/dev/shm")
        if isinstance(path, (str, os.PathLike)) and str(path).startswith(kernels) and not own:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return real(path, *rest, **named)

    return called


class Library(ctypes.CDLL):
    """A library of C without the calls of Linux."""

    def __getattr__(self, name: str) -> Any:
        if name in ("prctl", "process_vm_readv", "gettid", "syscall", "malloc_trim", "mallopt"):
            raise AttributeError(name)
        return super().__getattr__(name)


for name in MODULES:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
for module, names in ((os, CALLS), (signal, SIGNALS), (socket, SOCKETS)):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
builtins.open = io.open = without_proc(io.open)
for name in ("open", "listdir", "scandir", "readlink", "stat"):
    setattr(os, name, without_proc(getattr(os, name)))
ctypes.CDLL = Library  # type: ignore[misc]

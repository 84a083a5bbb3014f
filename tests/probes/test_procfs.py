"""Processes as the kernel shows them."""

from __future__ import annotations

import subprocess
import sys

from fastfeed.probes.procfs import has_internet_sockets

LOCAL = "import socket; pair = socket.socketpair(); print(flush=True); input()"
SERVES = (
    "import socket; server = socket.create_server(('127.0.0.1', 0)); print(flush=True); input()"
)


def networked(program: str) -> bool:
    """What is found of a process once its program has its sockets."""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = has_internet_sockets(process.pid)
        process.communicate(b"\n")
    return found


def test_sockets_of_the_internet_are_told_from_those_between_processes() -> None:
    assert not networked(LOCAL)
    assert networked(SERVES)
    assert has_internet_sockets(2**22 + 1), "nobody knows of a process that does not exist"

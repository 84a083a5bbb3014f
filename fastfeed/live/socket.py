"""The per-user socket of a process that has runners, and its clients.

The process answers each connection with one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Any

from fastfeed.errors import OptionError
from fastfeed.live.folders import first_usable, own_entries, socket_folders

ASK_TIMEOUT_S = 1.0
MAX_SOCKET_ANSWER_NBYTES = 2**24
MAX_PATH_NBYTES = 107  # of a UNIX socket; see unix(7)


def serve() -> tuple[socket.socket, Path]:
    """Return a listening socket of mode 0600 in a folder of mode 0700, and its path with the pid.

    Raise OSError if that is not possible.
    """
    folder = first_usable(socket_folders())
    path = folder / f"{os.getpid()}.sock"
    if len(os.fsencode(path)) > MAX_PATH_NBYTES:
        raise OSError(f"{path} is too long for the name of a socket")
    for stale in (path, *own_entries([folder], "*.sock", kind=stat.S_ISSOCK)):
        if stale == path or _is_abandoned(stale):
            with contextlib.suppress(OSError):
                stale.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))  # no other user can enter the folder meanwhile
        path.chmod(0o600)
        listener.listen(64)
    except BaseException:
        listener.close()
        raise
    return listener, path


def same_user(conn: socket.socket) -> bool:
    """Return True if the other end runs as this user."""
    size = struct.calcsize("iII")
    _, uid, _ = struct.unpack("iII", conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(uid == os.geteuid())


def jobs() -> dict[int, dict[str, Any]]:
    """Return by pid the answers of all processes of this user that have runners.

    Remove the sockets of killed processes.
    """
    found: dict[int, dict[str, Any]] = {}
    for path in _sockets():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            try:
                answer = _ask(path)
            except ConnectionRefusedError:
                path.unlink()
                continue
            found[int(answer["pid"])] = answer
    return found


def ask(pid: int) -> dict[str, Any] | None:
    """Return the answer of a process, or None if it has no socket or does not answer."""
    for path in _sockets():
        if path.stem == str(pid):
            with contextlib.suppress(OSError, ValueError):
                return _ask(path)
    return None


def _sockets() -> list[Path]:
    """Return the sockets of this user."""
    return list(own_entries(socket_folders(), "*.sock", kind=stat.S_ISSOCK))


def _ask(path: Path) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as conn:
        conn.settimeout(ASK_TIMEOUT_S)
        conn.connect(str(path))
        if not same_user(conn):
            raise PermissionError(f"{path} is served by another user")
        data = bytearray()
        while part := conn.recv(2**16):
            data += part
            if len(data) > MAX_SOCKET_ANSWER_NBYTES:
                raise ValueError("the answer is too long")
    answer = json.loads(data)
    if not isinstance(answer, dict) or not isinstance(answer.get("runners"), list):
        raise OptionError(f"{path} did not send the answer of a process with a FeedRunner")
    return answer


def _is_abandoned(path: Path) -> bool:
    """Return True if no process listens there, because it was killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as conn:
        conn.settimeout(0.1)
        try:
            conn.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False

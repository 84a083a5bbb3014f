"""Where black boxes and sockets lie: in folders that belong to this user and that nobody else can
enter."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

SHARED = Path("/tmp")  # and not TMPDIR, which another login of the same user may have elsewhere


def private(folder: Path) -> Path:
    """The folder, made where it is not there, with mode 0700.

    Raises OSError where it cannot be made, is a link, or belongs to somebody else, who could look
    in or replace files.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        check(folder)
    if stat.S_IMODE(folder.lstat().st_mode) != 0o700:
        folder.chmod(0o700)
    return folder


def check(folder: Path) -> None:
    """Raises OSError where this is no folder, a link, or somebody else's."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(
            f"{folder} is no folder, or a link to one: needed a folder of this user's own"
        )
    if found.st_uid != os.geteuid():
        raise PermissionError(
            f"{folder} belongs to user {found.st_uid}, not to this one ({os.geteuid()})"
        )


def state_folders() -> Iterator[Path]:
    """Where black boxes may lie: what outlasts a login first, what is always there second."""
    given = os.environ.get("XDG_STATE_HOME", "")
    if given.startswith("/"):
        yield Path(given) / "fastfeed"
    elif os.path.expanduser("~") != "~":
        yield Path.home() / ".local" / "state" / "fastfeed"
    yield Path(tempfile.gettempdir()) / f"fastfeed-{os.geteuid()}"


def socket_folders() -> Iterator[Path]:
    """Where sockets may lie; whoever looks for them looks in both, for its login may be another
    one."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given.startswith("/") and os.path.isdir(given):
        yield Path(given) / "fastfeed"
    yield SHARED / f"fastfeed-{os.geteuid()}"


def usable(folders: Iterator[Path]) -> Path:
    """The first one that this user can have for itself; OSError says why there is none."""
    reasons = []
    for folder in folders:
        try:
            return private(folder)
        except OSError as error:
            reasons.append(str(error))
    raise OSError("; ".join(reasons))

"""Folders of black boxes and sockets: they belong to this user, and no other user can enter
them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

SHARED = Path("/tmp")  # not TMPDIR, which may differ in another login of the same user


def private(folder: Path) -> Path:
    """Return the folder, created with mode 0700 if needed.

    Raise OSError if it cannot be created, is a link, or belongs to another user, who could read or
    replace files.
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
    """Raise OSError for something that is no folder, a link, or another user's."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(
            f"{folder} is no folder, or a link to one: must be a folder of this user's own"
        )
    if found.st_uid != os.geteuid():
        raise PermissionError(
            f"{folder} belongs to user {found.st_uid}, not to this one ({os.geteuid()})"
        )


def state_folders() -> Iterator[Path]:
    """Yield the possible folders of black boxes: first one that outlasts a login, then one that
    always exists."""
    given = os.environ.get("XDG_STATE_HOME", "")
    if given.startswith("/"):
        yield Path(given) / "fastfeed"
    elif os.path.expanduser("~") != "~":
        yield Path.home() / ".local" / "state" / "fastfeed"
    yield Path(tempfile.gettempdir()) / f"fastfeed-{os.geteuid()}"


def socket_folders() -> Iterator[Path]:
    """Yield the possible folders of sockets; readers check both, because their login may differ."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given.startswith("/") and os.path.isdir(given):
        yield Path(given) / "fastfeed"
    yield SHARED / f"fastfeed-{os.geteuid()}"


def usable(folders: Iterator[Path]) -> Path:
    """Return the first one that this user can have alone. Raise OSError, which says why there is
    none."""
    reasons = []
    for folder in folders:
        try:
            return private(folder)
        except OSError as error:
            reasons.append(str(error))
    raise OSError("; ".join(reasons))

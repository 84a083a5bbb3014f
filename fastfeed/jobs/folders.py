"""Private folders of black boxes, which no other user can enter."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


def make_private(folder: Path) -> Path:
    """Return the folder, created with mode 0700 if needed.

    Raise OSError if it cannot be created, is a link, or belongs to another user, who could read or
    replace files.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        check_owner(folder)
    if stat.S_IMODE(folder.lstat().st_mode) != 0o700:
        folder.chmod(0o700)
    return folder


def check_owner(folder: Path) -> None:
    """Raise OSError for a link, a folder of another user, or anything else."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(
            f"{folder} is no folder, or a link to one: must be a folder of this user's own"
        )
    if found.st_uid != os.geteuid():
        raise PermissionError(
            f"{folder} belongs to user {found.st_uid}, not to this one ({os.geteuid()})"
        )


def own_entries(
    folders: Iterable[Path], pattern: str, *, kind: Callable[[int], bool]
) -> Iterator[Path]:
    """Yield what matches in these folders and is of this kind (such as stat.S_ISREG), by name.

    Folders and files of another user, and links, are passed over: they may be forged.
    """
    for folder in dict.fromkeys(folders):
        with contextlib.suppress(OSError):
            check_owner(folder)
            for path in sorted(folder.glob(pattern)):
                with contextlib.suppress(FileNotFoundError):
                    found = path.lstat()
                    if kind(found.st_mode) and found.st_uid == os.geteuid():
                        yield path


def state_folders() -> Iterator[Path]:
    """Yield the possible folders of black boxes, the most lasting first."""
    given = os.environ.get("XDG_STATE_HOME", "")
    if given.startswith("/"):
        yield Path(given) / "fastfeed"
    elif os.path.expanduser("~") != "~":
        yield Path.home() / ".local" / "state" / "fastfeed"
    yield Path(tempfile.gettempdir()) / f"fastfeed-{os.geteuid()}"


def first_usable(folders: Iterator[Path]) -> Path:
    """Return the first folder that is or can be made private.

    Raise OSError with the reason for each folder if there is none.
    """
    reasons = []
    for folder in folders:
        try:
            return make_private(folder)
        except OSError as error:
            reasons.append(str(error))
    raise OSError("; ".join(reasons))

"""Reports become files completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def write_whole(path: str | os.PathLike[str], pieces: Iterable[str]) -> None:
    """Write the text to `path`, in UTF-8: readers see the old file or the new one, never a part of
    it.

    Something that is no ordinary file (/dev/stdout, a pipe) is written directly. Raise OSError if
    it cannot be written.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
        return
    target = path.resolve()  # a link stays a link
    new = target.with_name(f".{target.name[:100]}.{os.getpid()}")
    try:
        with new.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
        os.replace(new, target)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise

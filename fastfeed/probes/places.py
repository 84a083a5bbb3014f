"""Lines of code as reports name them; lines of the user are distinguished from libraries."""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import CodeType
from typing import NamedTuple

from fastfeed.core.user_code import is_users, short_name

Spot = tuple[CodeType, int]  # a code object and the offset of the instruction in it
FORKS = "multiprocessing/process.py"


class Place(NamedTuple):
    """A line of code, such as `decode` at data.py:41.

    `users` is True for code of the user, which is neither in the standard library nor in
    site-packages.
    """

    function: str
    file: str
    line: int
    users: bool

    def __str__(self) -> str:
        return f"`{self.function}` at {self.file}:{self.line}"


class Places:
    """The places of spots in the code of frames, in a cache."""

    def __init__(self) -> None:
        self._here = os.getcwd() + os.sep
        self._files: dict[str, str] = {}
        self._spots: dict[Spot, Place] = {}

    def of(self, spot: Spot) -> Place:
        """Return the place of a spot."""
        found = self._spots.get(spot)
        if found is None:
            code = spot[0]
            found = self._spots[spot] = self.named(
                code.co_name, code.co_filename, line=line_of(spot)
            )
        return found

    def named(self, function: str, filename: str, *, line: int) -> Place:
        """Return the place of a line in a function of a file, which has its full name."""
        return Place(function, self.file(filename), line, is_users(filename, function))

    def file(self, filename: str) -> str:
        """Return the name of a file in reports."""
        if filename not in self._files:
            self._files[filename] = short_name(filename, self._here)
        return self._files[filename]


def line_of(spot: Spot) -> int:
    """Return the line of a spot, or the line of its function if the instruction has none."""
    code, offset = spot
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= offset < end and number is not None:
            line = number
    return line


def without_start(stack: Iterable[Place]) -> tuple[Place, ...]:
    """Return a stack, the outermost place first, without the frames of its start.

    Frames that only start threads, processes and scripts are left out, and so are the frames of the
    parent in a forked child.
    """
    places = tuple(stack)
    starts = [
        i
        for i, (function, file, *_) in enumerate(places)
        if function.endswith("_bootstrap") and file == FORKS
    ]
    places = places[starts[-1] + 1 :] if starts else places
    first = next((i for i, place in enumerate(places) if place.users), 0)
    return places[first:]

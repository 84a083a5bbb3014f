"""Calls of the user's source that made what feeds a loop, as a run saw them."""

from __future__ import annotations

from typing import NamedTuple


class CallSite(NamedTuple):
    """A line of the user's that called `name` ("DataLoader", "tf.data map", "Thread").

    `used_at`: the line of the loop whose batches come from what it made, as `Loop.where`; "" if it
    fed no loop. `about`: facts of what was made, by their names.
    """

    name: str
    file: str  # its full name
    line: int
    used_at: str = ""
    about: tuple[tuple[str, str], ...] = ()

    def fact(self, name: str) -> str:
        """Return a fact; "" if it is unknown."""
        return dict(self.about).get(name, "")

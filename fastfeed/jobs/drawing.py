"""Elements of what the commands print: sparklines, numbers with units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from rich import filesize
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fastfeed.errors import clean

SPARK_LEVELS = "▁▂▃▄▅▆▇█"


class Terminal(Console):
    """A console on which texts of others, such as names of threads, are shown literally."""

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        super().__init__(stderr=stderr, markup=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the pieces of a renderable; only those of rich itself control the terminal."""
        for piece in super().render(renderable, options):
            lines = piece.text.split("\n")
            yield piece if piece.control else Segment("\n".join(map(clean, lines)), piece.style)


def sparkline(values: Sequence[float | None], *, top: float | None = None) -> str:
    """Return values over time as blocks, with a dot for each unknown one.

    The highest value, or `top`, is a full block.
    """
    highest = top or max((v for v in values if v is not None), default=0.0) or 1.0
    levels = len(SPARK_LEVELS)
    return "".join(
        "·" if v is None else SPARK_LEVELS[min(levels - 1, max(0, int(v / highest * levels)))]
        for v in values
    )


def percent(share: float | None) -> str:
    """Return a share as whole percent."""
    return "–" if share is None else f"{share * 100:.0f} %"


def decimal(value: float | None) -> str:
    """Return a number with its significant digits."""
    if value is None:
        return "–"
    digits = 0 if value >= 100 or value == int(value) else 1 if value >= 1 else 2
    return f"{value:,.{digits}f}"


def size(nbytes: float | None) -> str:
    """Return bytes with a unit."""
    return "–" if nbytes is None else filesize.decimal(int(nbytes))


def duration(seconds: float) -> str:
    """Return a time span in hours, minutes and seconds, as 0:03:20."""
    return str(timedelta(seconds=int(seconds)))

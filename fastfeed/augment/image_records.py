"""What all executors do with records first: the plan of their draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fastfeed.augment.images import size_of
from fastfeed.augment.operations import Size
from fastfeed.augment.spec import Augment, Targets
from fastfeed.core.structure import describe, leaves_of, structure_of
from fastfeed.errors import SpecError


class PlannedRecord(NamedTuple):
    """A record before decoding, the sizes of its images, and their rows of the plan."""

    targets: Targets
    leaves: list[Any]
    key: int
    sizes: list[Size]
    rows: list[list[float]]
    place: str


class RecordPlanner:
    """Splits records into leaves, and plans their draws."""

    def __init__(self, spec: Augment) -> None:
        self._spec = spec
        self._targets: Targets | None = None  # those of the last record, which most others share
        self.image: Any = None  # the first key of the records, if it tells their image

    def _check_first(self, record: Any) -> None:
        """Raise SpecError for a dict whose first key is another one, if that tells the image."""
        if self._spec.images is None and isinstance(record, Mapping) and record:
            first = next(iter(record))
            if self.image is None:
                self.image = first
            elif first != self.image:
                raise SpecError(
                    f"Augment: records begin with {self.image!r} and with {first!r}, and the "
                    "first leaf is the image: name it, such as images='image'"
                )

    def plan(self, record: Any, key: int, *, place: str = "") -> PlannedRecord:
        """Return what is known without decoding; the same key gives the same draws. Raise BadImage
        for a file whose header is not that of an image, SpecError for any other leaf."""
        targets = self._targets
        self._check_first(record)
        leaves = None if targets is None else leaves_of(targets.structure, record)
        if targets is None or leaves is None:
            structure = structure_of(record)
            leaves = leaves_of(structure, record) or []
            if not leaves:
                raise SpecError(
                    f"Augment: a record is {describe(structure)}: must have at least an image"
                )
            targets = self._targets = self._spec.targets(structure, len(leaves))
        sizes = [size_of(leaves[n], self._spec, name=targets.names[n]) for n in targets.images]
        rows = self._spec.plan(key, sizes)
        return PlannedRecord(targets, leaves, key, sizes, rows, place)

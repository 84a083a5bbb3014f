"""Leaves of records: those that a spec applies to, and their names."""

from __future__ import annotations

from typing import Any, NamedTuple

from fastfeed.augment.spec import Augment, Targets
from fastfeed.core.structure import Structure, describe, leaves_of, paths_of, structure_of
from fastfeed.errors import SpecError


class RecordLayout(NamedTuple):
    """The structure of a record, the targets among its leaves, and the name of each leaf."""

    structure: Structure
    targets: Targets
    names: list[str]


class LeafFinder:
    """Splits records into leaves. `layout` is that of the last record, which most others share."""

    def __init__(self, spec: Augment) -> None:
        self._spec = spec
        self.layout: RecordLayout | None = None

    def find(self, record: Any) -> tuple[RecordLayout, list[Any]]:
        """Return the layout and the leaves of a record. Raise SpecError if it has no leaves, or not
        those that the spec names."""
        layout = self.layout
        leaves = None if layout is None else leaves_of(layout.structure, record)
        if layout is None or leaves is None:
            structure = structure_of(record)
            leaves = leaves_of(structure, record) or []
            if not leaves:
                raise SpecError(
                    f"Augment: a record is {describe(structure)}: must have at least an image"
                )
            targets = self._spec.targets(structure, len(leaves))
            layout = self.layout = RecordLayout(structure, targets, paths_of(structure, "record"))
        return layout, leaves

"""Augment: the operations in order, the leaves of a record that they apply to, and the plan of each
record's draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

from fastfeed.augment.operations import OPERATIONS, TONES, Colour, Operation, Size
from fastfeed.augment.parameters import Draws, key_of, one_of
from fastfeed.core.structure import Structure, describe, paths_of, rebuild
from fastfeed.errors import OptionError, SpecError

# path of a leaf in a record: 0, "image" or ("left", 0)
LeafPath: TypeAlias = int | str | tuple[int | str, ...]
# operations in order, each with the place of its numbers in the row of an image in the plan
Program: TypeAlias = tuple[tuple[Operation, slice], ...]
EXECUTORS = ("producers", "dali-cpu", "dali-gpu")
AnyOperation = TypeVar("AnyOperation", bound=Operation)


class Targets(NamedTuple):
    """The leaves of records of a `structure`, by number, and the names of all leaves.

    Masks are moved as the first image is, and never blended between pixels. Boxes are float32 of
    shape (n, 4): left, top, right, bottom in pixels.
    """

    structure: Structure
    names: list[str]
    images: tuple[int, ...]
    masks: tuple[int, ...]
    boxes: tuple[int, ...]


@dataclass(frozen=True)
class Augment:
    """Image operations in order. They apply to the leaves `images` (default: the first leaf), and
    beside them to `masks` and `boxes`.

    Several images of a record are moved and coloured alike, or independently with `draws="own"`.
    `on` says where they are executed: "producers" uses OpenCV, "dali-cpu" and "dali-gpu" use DALI
    in the trainer. Raise OptionError for an order without meaning.
    """

    operations: Sequence[Any]
    images: LeafPath | list[LeafPath] | None = None
    masks: LeafPath | list[LeafPath] = ()
    boxes: LeafPath | list[LeafPath] = ()
    draws: str = "same"
    on: str = EXECUTORS[0]

    def __post_init__(self) -> None:
        if not isinstance(self.operations, Sequence) or not self.operations:
            raise OptionError(
                f"Augment({self.operations!r}): must be a list of operations, as in "
                "Augment([Flip()])"
            )
        object.__setattr__(self, "operations", tuple(self.operations))
        one_of("same", "own")("Augment(draws", self.draws)
        one_of(*EXECUTORS)("Augment(on", self.on)
        for op in self.operations:
            if type(op) not in OPERATIONS:
                raise OptionError(
                    f"Augment: {op!r} is no operation: must be one of fastfeed.augment, such as "
                    "Flip(horizontal=0.5)"
                )
        for op, later in pairwise(self.operations):
            if op.rank > later.rank or (op.rank == later.rank != Operation.PIXELS):
                raise OptionError(
                    f"Augment: {type(later).__name__} comes after {type(op).__name__}: the order "
                    "must be Decode, pixel operations, Normalize, Cast, Layout, each but pixel "
                    "operations once"
                )

    def first(self, kind: type[AnyOperation]) -> AnyOperation | None:
        """Return the first operation of this kind, or None."""
        return next((op for op in self.operations if isinstance(op, kind)), None)

    @cached_property
    def program(self) -> Program:
        """The operations for the executors; neighbouring tones are one."""
        merged: list[Operation] = []
        for op in self.operations:
            if not isinstance(op, TONES):
                merged.append(op)
            elif merged and isinstance(merged[-1], Colour):
                merged[-1] = Colour((*merged[-1].tones, op))
            else:
                merged.append(Colour((op,)))
        placed, start = [], 0
        for op in merged:
            placed.append((op, slice(start, start + op.numbers)))
            start += op.numbers
        return tuple(placed)

    def plan(self, key: int, sizes: Sequence[Size]) -> list[list[float]]:
        """Return a row of numbers for each image of a record, whose (height, width) are
        `sizes`, decoded and turned.

        `key` stands for the record (`key_of`): the same key and sizes give the same plan.
        """
        rows = []
        for image, size in enumerate(sizes):
            draws = Draws(key_of((key, image)) if self.draws == "own" and image else key)
            row: list[float] = []
            for op, _ in self.program:
                numbers, size = op.plan(draws, size)
                row += numbers
            rows.append(row)
        return rows

    def targets(self, structure: Structure, leaves: int) -> Targets:
        """Return the targets among the `leaves` of a record. Raise SpecError if a path leads to
        none."""
        numbered = rebuild(structure, list(range(leaves)))
        images, masks, boxes = (
            _leaves_at(name, getattr(self, name), numbered=numbered, structure=structure)
            for name in ("images", "masks", "boxes")
        )
        names = paths_of(structure, "record")
        return Targets(structure, names, images, masks, boxes)


def _first_leaf(structure: Structure) -> int:
    """Return the number of the leaf that comes first in a record: the keys of a dict are sorted."""
    if structure is None:
        return 0
    counts = [len(paths_of(child)) for child in structure.children]
    for at in map(structure.keys.index, structure.shown):
        if counts[at]:  # else it is None
            return sum(counts[:at]) + _first_leaf(structure.children[at])
    return 0


def _leaves_at(
    name: str, paths: LeafPath | list[LeafPath] | None, *, numbered: Any, structure: Structure
) -> tuple[int, ...]:
    """Return the numbers of the leaves at `paths`, the value of the argument `name`."""
    if paths is None:  # images
        return (_first_leaf(structure),)
    found = []
    for path in paths if isinstance(paths, list) else [] if paths == () else [paths]:
        leaf = numbered
        try:
            for step in path if isinstance(path, tuple) else (path,):
                is_field = isinstance(step, str) and hasattr(leaf, "_fields")
                leaf = getattr(leaf, step) if is_field else leaf[step]  # type: ignore[arg-type]
        except (TypeError, LookupError, AttributeError):
            leaf = None
        if not isinstance(leaf, int):
            raise SpecError(
                f"Augment({name}={path!r}): no such leaf: must be the path of an array in a "
                f"record, which is {describe(structure)}, such as 0, 'image' or ('left', 0)"
            )
        found.append(leaf)
    return tuple(found)

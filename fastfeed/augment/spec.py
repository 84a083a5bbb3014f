"""Augment: the operations in order, the leaves of a record that they apply to, and the plan of each
record's draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

from fastfeed.augment.draws import Draws, key_of
from fastfeed.augment.geometry import Affine, Crop, Decode, Flip, RandomResizedCrop, Resize, Rotate
from fastfeed.augment.steps import Colour, Constant, ProgramStep, Size
from fastfeed.augment.values import (
    Brightness,
    Cast,
    Contrast,
    Erase,
    GaussianBlur,
    Hue,
    Layout,
    Mixup,
    Normalize,
    OneHot,
    Saturation,
)
from fastfeed.core.structure import Structure, describe, rebuild
from fastfeed.errors import OptionError, SpecError

# path of a leaf in a record: 0, "image" or ("left", 0)
LeafPath: TypeAlias = int | str | tuple[int | str, ...]


@dataclass(frozen=True)
class HandOver(Constant):
    """Operations before it are executed in the producers, by any executor: `[Decode(), Crop(224),
    HandOver(), ...]` sends small uint8 images to DALI instead of whole files."""


PIXEL_OPERATIONS = (Resize, RandomResizedCrop, Crop, Flip, Rotate, Affine, GaussianBlur, Erase)
TONE_OPERATIONS = (Brightness, Contrast, Saturation, Hue)
# By rank: an operation may be followed by those of later ranks, and of its own if it is repeatable.
OPERATION_ORDER: tuple[tuple[type, ...], ...] = (
    (Decode,),
    (*PIXEL_OPERATIONS, *TONE_OPERATIONS),
    (Normalize,),
    (Cast,),
    (Layout,),
    (OneHot,),
    (Mixup,),
)
REPEATABLE_RANK = 1
EXECUTORS = ("producers", "dali-cpu", "dali-gpu")
AUTO_EXECUTOR = "auto"  # the fastest one, measured


@dataclass(frozen=True)
class PlacedStep:
    """A step of the program, and the place of its numbers in the row of an image in the plan."""

    step: ProgramStep
    start: int

    @property
    def numbers(self) -> slice:
        """The part of the row that holds its numbers."""
        return slice(self.start, self.start + self.step.numbers)


@dataclass(frozen=True)
class Targets:
    """The leaves of a record, by number: images, masks (moved as the first image is, never blended
    between pixels), boxes (float32 of shape (n, 4): left, top, right, bottom in pixels) and labels
    (None: there are none)."""

    images: tuple[int, ...]
    masks: tuple[int, ...]
    boxes: tuple[int, ...]
    labels: int | None


@dataclass(frozen=True)
class Augment:
    """Image operations in order. They apply to the leaves `images` (default: the first leaf), and
    beside them to `masks`, `boxes` and `labels` (default: the second leaf of two, if an operation
    needs labels).

    Several images of a record are moved and coloured alike, or independently with `draws="own"`.
    `on` says where they are executed: "producers" uses OpenCV, "dali-cpu" and "dali-gpu" use DALI
    in the trainer, and "auto" measures all that are installed and takes the fastest. Raise
    OptionError for an order without meaning.
    """

    operations: Sequence[Any]
    images: LeafPath | list[LeafPath] | None = None
    masks: LeafPath | list[LeafPath] = ()
    boxes: LeafPath | list[LeafPath] = ()
    labels: LeafPath | None = None
    draws: str = "same"
    on: str = EXECUTORS[0]

    def __post_init__(self) -> None:
        if not isinstance(self.operations, Sequence):
            raise OptionError(
                f"Augment({self.operations!r}): must be a list of operations, as in "
                "Augment([Flip()])"
            )
        object.__setattr__(self, "operations", tuple(self.operations))
        if not self.operations:
            raise OptionError("Augment([]): must have at least one operation")
        if self.draws not in ("same", "own"):
            raise OptionError(f'Augment(draws={self.draws!r}): must be "same" or "own"')
        if self.on not in (*EXECUTORS, AUTO_EXECUTOR):
            names = ", ".join(map(repr, (*EXECUTORS, AUTO_EXECUTOR)))
            raise OptionError(f"Augment(on={self.on!r}): must be one of {names}")
        ranked = [(_rank_of(op), op) for op in self.operations if not isinstance(op, HandOver)]
        for (rank, op), (later_rank, later) in pairwise(ranked):
            if rank > later_rank or (rank == later_rank != REPEATABLE_RANK):
                raise OptionError(
                    f"Augment: {_name_of(later)} comes after {_name_of(op)}: the order must be "
                    "Decode, pixel operations, Normalize, Cast, Layout, OneHot, Mixup, each but "
                    "pixel operations once"
                )
        if sum(isinstance(op, HandOver) for op in self.operations) > 1:
            raise OptionError(
                "Augment: HandOver comes twice: the producers' part ends in one place"
            )
        if self.has(Mixup) and not (self.has(Normalize) or self.dtype == "float32"):
            raise OptionError(
                'Augment: Mixup blends floats: put Normalize(...) or Cast("float32") before it'
            )

    def has(self, kind: type) -> bool:
        """Return True if there is an operation of this kind."""
        return any(isinstance(op, kind) for op in self.operations)

    @property
    def decodes(self) -> Decode | None:
        """The operation that turns bytes into images; None if they are images already."""
        first = self.operations[0]
        return first if isinstance(first, Decode) else None

    @property
    def dtype(self) -> str | None:
        """The dtype of Cast, or None."""
        return next((op.dtype for op in self.operations if isinstance(op, Cast)), None)

    @cached_property
    def program(self) -> tuple[PlacedStep, ...]:
        """The steps for the executors, in order; neighbouring tones are one step."""
        steps: list[ProgramStep] = []
        for op in self.operations:
            if not isinstance(op, TONE_OPERATIONS):
                steps += (op,) if isinstance(op, Constant) else op.steps()
            elif steps and isinstance(steps[-1], Colour):
                steps[-1] = Colour((*steps[-1].tones, op.tone()))
            else:
                steps.append(Colour((op.tone(),)))
        placed, start = [], 0
        for step in steps:
            placed.append(PlacedStep(step, start))
            start += step.numbers
        return tuple(placed)

    @cached_property
    def numbers(self) -> int:
        """Numbers in the row of an image in the plan."""
        return sum(placed.step.numbers for placed in self.program)

    def plan(self, key: int, sizes: Sequence[Size]) -> list[list[float]]:
        """Return a row of `numbers` for each image of a record, whose (height, width) are `sizes`,
        decoded and turned.

        `key` stands for the record (`key_of`): the same key and sizes give the same plan.
        """
        rows = []
        for image, size in enumerate(sizes):
            draws = Draws(key_of((key, image)) if self.draws == "own" and image else key)
            row: list[float] = []
            for placed in self.program:
                numbers, size = placed.step.plan(draws, size)
                row += numbers
            rows.append(row)
        return rows

    def targets(self, structure: Structure, leaves: int) -> Targets:
        """Return the targets among the `leaves` of a record. Raise SpecError if a path leads to
        none."""
        numbered = rebuild(structure, list(range(leaves)))
        images = (
            (0,)
            if self.images is None
            else _leaves_at(self.images, numbered, structure=structure, name="images")
        )
        labels = None
        if self.labels is not None:
            labels = _leaves_at(self.labels, numbered, structure=structure, name="labels")[0]
        elif self.has(OneHot) or self.has(Mixup):
            if leaves != 2 or images not in ((0,), (1,)):
                raise SpecError(
                    "Augment: OneHot and Mixup need the labels, and a record is "
                    f'{describe(structure)}: set labels=1 or labels="name" to their place'
                )
            labels = 1 - images[0]
        return Targets(
            images,
            _leaves_at(self.masks, numbered, structure=structure, name="masks"),
            _leaves_at(self.boxes, numbered, structure=structure, name="boxes"),
            labels,
        )


def _rank_of(op: Any) -> int:
    for rank, kinds in enumerate(OPERATION_ORDER):
        if isinstance(op, kinds):
            return rank
    raise OptionError(
        f"Augment: {op!r} is no operation: must be one of fastfeed.augment, such as "
        "Flip(horizontal=0.5)"
    )


def _name_of(op: Any) -> str:
    return type(op).__name__


def _leaves_at(
    paths: LeafPath | list[LeafPath], numbered: Any, *, structure: Structure, name: str
) -> tuple[int, ...]:
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

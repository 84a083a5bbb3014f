"""What producers execute of a spec: everything, with OpenCV, or the packing of what DALI needs of a
record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from fastfeed.augment.spec import Augment
from fastfeed.core.collate import Allocate, Pad


class Executor(Protocol):
    """What a producer does to records, and how it makes batches of the results. The first two
    methods raise BadImage, and SpecError for what the spec does not fit."""

    def begun(self, record: Any, key: int, *, place: str) -> Any:
        """Return what is known of the record at `place` before its images are decoded, with the
        draws of `key`; for `made`."""

    def made(self, begun: Any) -> Any:
        """Return what the record becomes, for `collated`."""

    def collated(
        self, made: Sequence[Any], pad: Pad, *, place: str, allocate: Allocate, lengths: bool
    ) -> Any:
        """Return one batch of what `made` returned, and for each leaf which axes of its records
        varied, as `collate`.

        `lengths`: as (batch, shapes of its records).
        """


def executor_for(spec: Augment, on: str, *, crowded: bool, threads: bool = False) -> Executor:
    """Return the executor of `on`: "producers", "dali-cpu" or "dali-gpu". `crowded`: other
    producers work in this process, too; `threads`: they are threads of the trainer."""
    if on == "producers":
        from fastfeed.augment.opencv import OpenCV

        return OpenCV(spec, crowded=crowded)
    return _Packing(spec, threads=threads)


class _Packing:
    """A Packer as an Executor."""

    def __init__(self, spec: Augment, *, threads: bool) -> None:
        from fastfeed.augment import packing

        self.begun = packing.Packer(spec, threads=threads).record
        self._collated = packing.collated

    def made(self, begun: Any) -> Any:
        """Return it unchanged."""
        return begun

    def collated(
        self, made: Sequence[Any], pad: Pad, *, place: str, allocate: Allocate, lengths: bool
    ) -> Any:
        """Collate packed records; shapes are known only where they are augmented."""
        return self._collated(made, pad, place=place, allocate=allocate)

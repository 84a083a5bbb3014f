"""The part of a spec that producers execute: all of it, with OpenCV, or the packing of records for
DALI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from fastfeed.augment.spec import Augment
from fastfeed.core.collate import Allocate, Fill


class Executor(Protocol):
    """Augments records, and collates the results. The first two methods raise BadImage, and
    SpecError for records that the spec does not fit."""

    def prepare(self, record: Any, key: int, *, place: str) -> Any:
        """Return the record at `place` with the draws of `key`, before its images are decoded."""

    def execute(self, prepared: Any) -> Any:
        """Return a prepared record after its operations, for `collate`."""

    def collate(
        self, results: Sequence[Any], pad: Fill, *, place: str, allocate: Allocate, lengths: bool
    ) -> Any:
        """Return one batch of what `execute` returned, and which axes of each leaf varied.

        With `lengths` the batch is (batch, shapes of its records).
        """


def executor_for(spec: Augment, *, crowded: bool, threads: bool = False) -> Executor:
    """Return the executor of the producers' part. `crowded`: other producers work in this process,
    too; `threads`: they are threads of the trainer."""
    if spec.on == "producers":
        from fastfeed.augment.opencv import OpenCV

        return OpenCV(spec, crowded=crowded)
    from fastfeed.augment.packing import Packer

    return Packer(spec, threads=threads)

"""The part of a spec that producers execute: all of it, with OpenCV, or the packing of records for
DALI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastfeed.augment.image_records import PlannedRecord, RecordPlanner
from fastfeed.augment.spec import Augment


class Executor:
    """Augments records. `crowded`: other producers work in this process, too; `threads`: they are
    threads of the trainer.

    `prepare(record, key, place=...)` returns the record at `place` with the draws of `key`, before
    its images are decoded. `execute` returns a prepared record after its operations, for `collate`.
    Both raise BadImage, and SpecError for records that the spec does not fit.
    """

    def __init__(self, spec: Augment, *, crowded: bool = False, threads: bool = False) -> None:
        self._planner = RecordPlanner(spec)
        self.prepare = self._planner.plan
        self.execute: Callable[[PlannedRecord], Any]
        if spec.on == "producers":
            from fastfeed.augment.opencv import OpenCV

            self.execute = OpenCV(spec, crowded=crowded).execute
        else:
            from fastfeed.augment.packing import Packer

            self.execute = Packer(spec, threads=threads).execute

    @property
    def image(self) -> Any:
        """The first key of the records, if it tells their image, or None."""
        return self._planner.image

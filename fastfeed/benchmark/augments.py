"""Comparison of the executors of augmentation: the same operations on photographs by each, against
producer threads."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fastfeed import augment
from fastfeed.augment import Augment
from fastfeed.benchmark.measure import StepCost, Window, measure_loop, measure_step
from fastfeed.benchmark.sweep import PROFILE_S, Meter, Progress, SweepPlan
from fastfeed.benchmark.training_loop import Consumer, runner_for
from fastfeed.errors import OptionError
from fastfeed.model.workload import Producers
from fastfeed.options import EXECUTORS

SUFFIXES = (".jpg", ".jpeg", ".png")
CROP_SIDE = 224
# The channels' means and deviations over ImageNet's training images, times 255.
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


class Photographs:
    """(file's bytes as uint8, label) by index, each file `times`: at least as many as a batch has
    records, so that all batches are whole. Labels are made up."""

    def __init__(self, folder: Path, times: int = 1) -> None:
        self._times = times
        self._files = sorted(p for p in folder.glob("**/*") if p.suffix.lower() in SUFFIXES)
        if not self._files:
            raise OptionError(
                f"--workload photos:{folder}: must be a folder with .jpg or .png files, it holds "
                "none"
            )

    def __len__(self) -> int:
        return len(self._files) * self._times

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], np.int64]:
        return np.fromfile(self._files[index % len(self._files)], np.uint8), np.int64(index % 10)


@dataclass(frozen=True)
class Cell:
    """All windows of one executor with one number of producers."""

    executor: str
    producers: Producers
    windows: tuple[Window, ...]

    def middle(self, field: str) -> float:
        """Return the median of a window's figure."""
        return float(median(getattr(w, field) for w in self.windows))

    @property
    def rates(self) -> list[float]:
        """Steps/s of each window."""
        return [w.rate for w in self.windows]


@dataclass(frozen=True)
class ExecutorComparison:
    """All measurements."""

    workload: str
    consumer: str
    spec: Augment
    plan: SweepPlan
    step: StepCost
    cells: tuple[Cell, ...]

    @property
    def batch_size(self) -> int:
        """Images of a step."""
        return int(self.plan.batch_size or 1)

    def of(self, executor: str) -> list[Cell]:
        """Return the cells of one curve."""
        return [cell for cell in self.cells if cell.executor == executor]


def spec_from(text: str) -> Augment:
    """Return the operations that `text` names: "standard", "strong", or
    package.module:attribute."""
    standard = [augment.Decode(), augment.RandomResizedCrop(CROP_SIDE), augment.Flip()]
    if text == "standard":
        return Augment(standard)
    if text == "strong":
        factor = augment.Uniform(0.6, 1.4)
        tones = [augment.Brightness(factor), augment.Contrast(factor), augment.Saturation(factor)]
        rest = [
            augment.GaussianBlur(augment.Uniform(0.1, 2.0), p=0.5),
            augment.Erase(),
            augment.Normalize(MEAN, STD),
        ]
        return Augment([*standard, *tones, *rest])
    module, colon, attribute = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: the module is found in the working directory
    try:
        found = getattr(importlib.import_module(module), attribute) if colon else None
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"--augment {text!r}: {error}; must be standard, strong or package.module:spec"
        ) from error
    if not isinstance(found, Augment):
        raise OptionError(
            f"--augment {text!r}: must be standard, strong or package.module:spec of an Augment"
        )
    return found


def executors_from(text: str) -> tuple[str, ...]:
    """Return the executors in "producers,dali-cpu", each once."""
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in EXECUTORS:
            raise OptionError(
                f"--augment-on {text!r}: must be some of {', '.join(EXECUTORS)}, with "
                "commas between them"
            )
    return names


def folder_of(workload: str) -> Path:
    """Return the folder in photos:DIR."""
    kind, _, rest = workload.partition(":")
    if kind != "photos" or not rest:
        raise OptionError(
            f"--augment works on encoded images: needed --workload photos:DIR, got {workload!r}"
        )
    return Path(rest).expanduser()


def compare_executors(
    workload: str,
    consumer: Consumer,
    *,
    spec: Augment,
    executors: Sequence[str],
    plan: SweepPlan,
    progress: Progress,
) -> ExecutorComparison:
    """Measure every executor with every number of producers, in turn, repeatedly. Raise what the
    executors raise."""
    source = Photographs(folder_of(workload), plan.batch_size or 1)
    runs = [(name, producers) for name in executors for producers in plan.grid]
    meter = Meter(progress, 1 + len(runs) * plan.repeats)
    with meter.part("the step on a cached batch") as tick:
        options = {"augment": spec, "augment_on": executors[0], "shuffle": True, "seed": 0}
        with runner_for(
            source, plan.grid[0], batch_size=plan.batch_size, options=options
        ) as runner:
            batch = next(iter(runner))
        step = measure_step(consumer, batch, seconds=PROFILE_S, tick=tick)
    windows: dict[tuple[str, Producers], list[Window]] = {run: [] for run in runs}
    for repeat in range(plan.repeats):
        for (name, producers), found in windows.items():
            chosen = {**options, "augment_on": name}
            with (
                meter.part(f"{name}, {producers}, run {repeat + 1} of {plan.repeats}") as tick,
                consumer.loop(
                    source, producers=producers, batch_size=plan.batch_size, options=chosen
                ) as loop,
            ):
                found.append(measure_loop(loop, seconds=plan.seconds, steps=plan.steps, tick=tick))
    cells = tuple(
        Cell(name, producers, tuple(found)) for (name, producers), found in windows.items()
    )
    return ExecutorComparison(workload, consumer.name, spec, plan, step, cells)

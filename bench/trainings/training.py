"""A training of the comparison, its forms, and the progress of a run."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fastfeed import FeedRunner, watch
from fastfeed.benchmark.tree import cpu_s

NAMES = ("mnist_session", "photographs", "audio", "pairs", "tokens", "masks")
# of a round: of the network, the order and the draws
SEED = int(os.environ.get("FASTFEED_TRAINING_SEED", "0"))
DATA_SEED = 0
QUICK_STEPS = 3
WARM_UP = 10  # steps that count for the time to the target alone
SMOOTHING = 0.02  # of the mean loss: about the last 50 steps
FIRST_LOSSES = 3  # that a result tells, to compare the batches of two forms


class Progress:
    """Counts the steps of a run, which is over when the mean loss has reached `target`, or after
    `cap` steps.

    A form reports each loss to `over`. The waits for input come from `watch`, which takes a loader,
    from `feed`, which takes a runner, or from `waited`, which takes the seconds of one wait.
    """

    def __init__(self, target: float, cap: int) -> None:
        self.cap = cap
        self.result: dict[str, Any] = {}  # of the run, when it is over
        self._target = target
        self._losses: list[float] = []
        self._mean = float("nan")
        self._steps = 0
        self._waited_s = 0.0
        # seconds, for a watched loader those of the steps since a time
        self._waits: Callable[[float], float] | None = None
        self._warm: tuple[float, float | None] = 0.0, None
        self._begin_s, self._begin_cpu_s = time.perf_counter(), cpu_s()

    def watch(self, loader: Any) -> Any:
        """Return the loader, watched by fastfeed."""
        watched = watch(loader)
        loops = watched.timeline.loops
        self._waits = lambda since_s: sum(
            step.wait_s for loop in loops.values() for step in loop.steps if step.begin_s >= since_s
        )
        return watched

    def feed(self, runner: FeedRunner) -> FeedRunner:
        """Return the runner, whose snapshots are read."""
        self._waits = lambda since_s: runner.snapshot().consumed.wait_in_s
        return runner

    def waited(self, seconds: float) -> None:
        """Count a wait that was measured elsewhere."""
        self._waited_s += seconds
        self._waits = lambda since_s: self._waited_s

    def over(self, loss: float) -> bool:
        """Count a step, and return True if it was the last one."""
        if self.result:
            return True
        loss, now_s = float(loss), time.perf_counter()
        self._steps += 1
        self._losses = [*self._losses, loss][:FIRST_LOSSES]
        self._mean = loss if self._steps == 1 else self._mean + SMOOTHING * (loss - self._mean)
        if self._steps == min(WARM_UP, self.cap // 2):
            self._warm = now_s, self._waits and self._waits(now_s)
        reached = self._mean <= self._target
        if reached or self._steps >= self.cap:
            self._end(now_s, reached=reached)
        return bool(self.result)

    def _end(self, now_s: float, *, reached: bool) -> None:
        warm_s, waited_s = self._warm
        waits = self._waits and self._waits(warm_s)
        steps = self._steps - min(WARM_UP, self.cap // 2)
        measured_s = now_s - warm_s
        known = waits is not None and waited_s is not None and steps > 0
        self.result = {
            "seconds": now_s - self._begin_s,
            "reached": reached,
            "steps": self._steps,
            "loss": self._mean,
            "steps_per_s": steps / measured_s if steps > 0 else None,
            "starvation": (waits - waited_s) / measured_s if known else None,
            "cpu_s": cpu_s() - self._begin_cpu_s,
            "first_losses": self._losses,
        }


@dataclass(frozen=True)
class Form:
    """A way to feed a training: a function of its data and the progress of the run.

    `ours` is "fixed" or "auto" where fastfeed feeds it. `needs` are modules beside those of the
    training. `uses` are functions and classes that belong to this form, so that their lines count.
    """

    name: str
    run: Callable[[Any, Progress], None]
    ours: str = ""
    needs: tuple[str, ...] = ()
    uses: tuple[Any, ...] = ()

    @property
    def lines(self) -> int:
        """Lines of code of the form, without blank lines, comments and docstrings."""
        return sum(map(lines_of, (self.run, *self.uses)))


@dataclass(frozen=True)
class Training:
    """A training by its forms, which all have the same data, network, seed, target and cap.

    `load(quick)` returns the data and their origin. `target` is a mean loss, `cap` a number of
    steps. `needs` are the modules of its framework, which are imported before the clock starts, as
    is the module that it `prefers`: without that, it has a plain loop.
    """

    title: str
    load: Callable[[bool], tuple[Any, str]]
    forms: tuple[Form, ...]
    target: float
    cap: int
    needs: tuple[str, ...] = ()
    prefers: str = ""

    @property
    def note(self) -> str:
        """What a reader must know of its loop, or ""."""
        if not self.prefers or importlib.util.find_spec(self.prefers):
            return ""
        return f"a plain loop, because {self.prefers} is not installed"

    def missing(self, form: Form) -> list[str]:
        """Return the modules that a form needs and that are not installed."""
        needed = (*self.needs, *form.needs)
        return [name for name in needed if importlib.util.find_spec(name) is None]


def training_of(name: str) -> Training:
    """Return a training by one of NAMES."""
    found: Training = importlib.import_module(f"bench.trainings.{name}").TRAINING
    return found


def one_run(cell: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of one form of a training, in this process."""
    training = training_of(cell["training"])
    (form,) = (one for one in training.forms if one.name == cell["form"])
    for name in (*training.needs, *form.needs, training.prefers):
        if name and importlib.util.find_spec(name):
            importlib.import_module(name)
    data, origin = training.load(cell["quick"])
    target, cap = (-1.0, QUICK_STEPS) if cell["quick"] else (training.target, training.cap)
    progress = Progress(target, cap)
    form.run(data, progress)
    if not progress.result:
        raise RuntimeError(f"the data ended before {cap} steps")
    return {**progress.result, "origin": origin, "note": training.note}


def lines_of(code: Any) -> int:
    """Return the lines of a function or class, without blank lines, comments and docstrings."""
    code = code.func if isinstance(code, partial) else code
    source = textwrap.dedent(inspect.getsource(code))
    lines = {n for n, line in enumerate(source.split("\n"), 1) if line.strip()}
    lines -= {n for n in lines if source.split("\n")[n - 1].strip().startswith("#")}
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node)
        if documented:
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def data_folder() -> Path:
    """Return the folder of data beside the repository, or that of $FASTFEED_DATA."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(os.environ.get("FASTFEED_DATA") or beside).expanduser()

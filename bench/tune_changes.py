"""How well `workers="auto"` follows a training that changes: `python -m bench.tune_changes`.

    python -m bench.tune_changes --output FOLDER [CASE ...]
    python -m bench.tune_changes --output FOLDER --report
    python -m bench.tune_changes --output FOLDER --again bench/results/tuning.json [CASE ...]

A training runs for 30 s, then its work, its step or its machine changes. Its rate from 20 to 25 s
after the change is compared with that of every fixed number of producers under the new conditions;
with `--again`, in `--rounds` turns with that of the best one that is known. Where batches come from
one lock, "auto" begins with eight threads after 10 s, and is measured 20 s later.
Each has a process of its own; one that is killed has no rate. The quota and the limit of the memory
are those of control groups of version 1, for which root is needed. Figures are kept in
changes.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.tune import PROCESSES, ROUNDS, THREADS, WARM_S, best_fixed, measured
from bench.workloads import burn, rounds_for
from fastfeed.core.unix import die_with

CHANGE_S, BEFORE_S, FOLLOW_S, MEASURED_S = 30.0, 10.0, 20.0, 5.0
AUTO, COST = 'workers="auto"', "its search, of a core"
TUNER = "fastfeed-tuner"
GROUPS = Path("/sys/fs/cgroup")  # of version 1
PERIOD_US = 100_000
# Bytes of the control group, of what each worker holds, and of what the trainer comes to hold: then
# there is room for two workers.
LIMIT_NBYTES, WORKER_NBYTES, TRAINER_NBYTES = 1200 << 20, 150 << 20, 760 << 20
GROWTH_NBYTES, GROWTH_S = 10 << 20, 0.2
HELD: list[Any] = []  # of a process


class ContendedSource:
    """A source behind one lock, which each that waits for it makes slower."""

    def __init__(self) -> None:
        self._lock, self._waiting = threading.Lock(), 0

    def __reduce__(self) -> Any:
        return ContendedSource, ()

    def read(self, seconds: float) -> None:
        """Hold the lock for `seconds`, and for a fifth of it more for each that waits."""
        self._waiting += 1
        with self._lock:
            self._waiting -= 1
            time.sleep(seconds * (1 + self._waiting / 5))


SOURCE = ContendedSource()


@dataclass(frozen=True)
class ChangingWork:
    """Work of a batch, `sleep`, `python` or `lock` (a third of it), which takes `seconds`, and
    `later` from the time `at` on (time.monotonic, which all processes share)."""

    kind: str
    rounds: int
    seconds: float
    later: float
    at: float
    held_nbytes: int = 0  # of each worker, but not of the trainer
    trainer: int = 0

    def __call__(self, number: int) -> Any:
        if self.held_nbytes and not HELD and os.getpid() != self.trainer:
            HELD.append(np.ones(self.held_nbytes, np.uint8))
        seconds = self.later if time.monotonic() >= self.at else self.seconds
        if self.kind == "lock":
            SOURCE.read(seconds / 3)
            time.sleep(2 * seconds / 3)
        elif self.kind == "sleep":
            time.sleep(seconds)
        else:
            burn(round(self.rounds * seconds / 0.01))
        return np.full(1000, number, np.float32)


class Neighbour:
    """Another program that keeps a core busy; with `goes`, until the change, else from it on."""

    def __init__(self, *, goes: bool) -> None:
        self._goes = goes
        self._process: Any = None
        if goes:
            self._come()

    def change(self, *, at_once: bool) -> None:
        """Come, or go."""
        if self._goes:
            self.close()
        else:
            self._come()

    def _come(self) -> None:
        self._process = multiprocessing.get_context("spawn").Process(
            target=_busy, args=(os.getpid(),), daemon=True
        )
        self._process.start()

    def close(self) -> None:
        """End."""
        if self._process is not None:
            self._process.kill()
            self._process.join()


class Group:
    """A control group of this process and its children, without a limit."""

    kind = "cpu"

    def __init__(self) -> None:
        self.folder = GROUPS / self.kind / f"fastfeed-tune-{os.getpid()}"
        self.folder.mkdir()
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def close(self) -> None:
        """Leave the group."""
        HELD.clear()
        (self.folder.parent / "cgroup.procs").write_text(str(os.getpid()))
        for _ in range(100):
            try:
                return self.folder.rmdir()
            except OSError:  # a child is ending
                time.sleep(0.1)


class Quota(Group):
    """A control group that may use one core after the change."""

    def change(self, *, at_once: bool) -> None:
        """Allow one core."""
        (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (self.folder / "cpu.cfs_quota_us").write_text(str(PERIOD_US))


class Memory(Group):
    """A control group whose memory the trainer fills from the change on."""

    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        (self.folder / "memory.limit_in_bytes").write_text(str(LIMIT_NBYTES))

    def change(self, *, at_once: bool) -> None:
        """Let the trainer grow."""
        if at_once:
            HELD.append(np.ones(TRAINER_NBYTES, np.uint8))
        else:
            threading.Thread(target=_grow, daemon=True).start()


def _grow() -> None:
    for _ in range(TRAINER_NBYTES // GROWTH_NBYTES):
        HELD.append(np.ones(GROWTH_NBYTES, np.uint8))
        time.sleep(GROWTH_S)


def _busy(parent: int) -> None:
    die_with(parent)
    while True:
        pass


@dataclass(frozen=True)
class ChangeCase:
    """A kind of work, its seconds before and after the change, and those of the step; with
    `threads`, which the search of threads begins with, nothing changes but that it begins."""

    kind: str
    work: tuple[float, float]
    step: tuple[float, float]
    machine: Callable[[], Any] | None = None
    held_nbytes: int = 0
    threads: int = 0


PYTHON = ChangeCase("python", (0.01, 0.01), (0.005, 0.005))
CASES = {
    "a batch takes four times as long": ChangeCase("sleep", (0.02, 0.08), (0.005, 0.005)),
    "a step is twice as fast": ChangeCase("sleep", (0.05, 0.05), (0.02, 0.01)),
    "a neighbour comes": replace(PYTHON, machine=partial(Neighbour, goes=False)),
    "a neighbour goes": replace(PYTHON, machine=partial(Neighbour, goes=True)),
    "the quota is halved": replace(PYTHON, machine=Quota),
    "a source behind one lock": ChangeCase("lock", (0.012, 0.012), (0.001, 0.001), threads=8),
    "memory runs short": replace(PYTHON, machine=Memory, held_nbytes=WORKER_NBYTES),
}


def ways(case: ChangeCase) -> dict[str, dict[str, Any]]:
    """Return the options of each way by its name, "auto" first."""
    found: dict[str, dict[str, Any]] = {AUTO: {"workers": "auto"}}
    found |= {f"threads={n}": {"threads": n} for n in THREADS}
    if case.threads:
        return found | {AUTO: {"threads": case.threads}}
    return found | {f"processes={n}": {"processes": n} for n in PROCESSES}


def one(case: ChangeCase, way: str) -> tuple[float, float]:
    """Return the steps/s after the change, in this process, and the cores that the search took."""
    from fastfeed import FeedRunner

    machine = case.machine() if case.machine is not None else None
    auto, options = way == AUTO, ways(case)[way]
    begin_s = time.monotonic()
    at_s = begin_s + (BEFORE_S if case.threads else CHANGE_S) if auto else 0.0
    measured_s = at_s + FOLLOW_S if auto else begin_s + WARM_S
    rounds = int(os.environ.get(ROUNDS) or rounds_for(0.01))
    memory = {"held_nbytes": case.held_nbytes, "trainer": os.getpid()}
    work = ChangingWork(case.kind, rounds, *case.work, at=at_s, **memory)
    changes = [machine.change] if machine is not None else []
    steps, since_s = 0, 0.0
    with FeedRunner(range(10**7), batch_size=1, transform=work, **options) as runner:
        if auto and case.threads:
            changes.append(lambda at_once: runner.resize(threads="auto"))
        for _ in runner:
            now_s = time.monotonic()
            if changes and now_s >= at_s:
                changes.pop()(at_once=not auto)
            if since_s:
                steps += 1
                if now_s >= since_s + MEASURED_S:
                    break
            elif now_s >= measured_s:
                since_s = now_s
            time.sleep(case.step[now_s >= at_s])
        rate = steps / (time.monotonic() - since_s)
        tuners = [one.native_id for one in threading.enumerate() if one.name == TUNER]
        # in nanoseconds; user and system time are counted by ticks, with which a timer wakes
        ran = [Path(f"/proc/self/task/{one}/schedstat").read_text().split()[0] for one in tuners]
        cost = sum(map(int, ran)) / 1e9 / (time.monotonic() - begin_s)
        for decision in runner.tuning():
            print(f"  {decision.seconds:5.1f} s {decision}", file=sys.stderr)
    if machine is not None:
        machine.close()
    return rate, cost


def table(found: dict[str, dict[str, float]]) -> str:
    """Return the figures as Markdown."""
    lines = [
        f"| change | {AUTO}, steps/s | best fixed | steps/s | part of the best | {COST} |",
        "|---|--:|---|--:|--:|--:|",
    ]
    for case, rates in found.items():
        fixed = {way: rate for way, rate in rates.items() if way not in (AUTO, COST)}
        if not fixed:
            continue
        best = max(fixed, key=lambda way: fixed[way])
        part = rates[AUTO] / fixed[best]
        words = f"{rates[AUTO]:.1f} | {best} | {fixed[best]:.1f} | {part:.2f} | {rates[COST]:.2%}"
        lines.append(f"| {case} | {words} |")
    return "\n".join(lines)


def measure(case: str, way: str) -> tuple[float, float]:
    """Return what `one` returns, in a process of its own; zeros if it is killed."""
    command = [sys.executable, "-m", "bench.tune_changes", "--one", way, case]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=180, check=False)
    rate, cost = map(float, done.stdout.split()[-2:] or (0, 0))
    return rate, cost


def measure_again(given: argparse.Namespace) -> None:
    """Measure "auto" and the best fixed number of each case, in turn."""
    known = json.loads(given.again.read_text())["changes"]
    given.output.mkdir(parents=True, exist_ok=True)
    path = given.output / "changes_again.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    os.environ[ROUNDS] = str(rounds_for(0.01))
    for _ in range(given.rounds):
        for case in given.cases or CASES:
            rates = found.setdefault(case, {})
            fixed = {way: [rate] for way, rate in known[case].items()}
            for way in (AUTO, best_fixed(fixed)):
                rate, cost = measure(case, way)
                rates.setdefault(way, []).append(rate)
                if way == AUTO:
                    rates.setdefault(COST, []).append(cost)
            path.write_text(json.dumps(found, indent=1) + "\n")
            print(case, rates, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tune_changes")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases; all, if none is named")
    parser.add_argument("--output", type=Path, default=Path("build/tune"))
    parser.add_argument("--again", type=Path, metavar="FILE", help="beside the best in this file")
    parser.add_argument("--rounds", type=int, default=3, help="of --again")
    parser.add_argument("--report", action="store_true", help="print what was measured")
    parser.add_argument("--one", metavar="WAY", help="measure one way in this process")
    given = parser.parse_args()
    if given.one:
        print(*one(CASES[given.cases[0]], given.one))
        return
    if given.again:
        return measure_again(given)
    for case, rates, keep in measured(given, "changes.json", cases=CASES, show=table):
        for way in ways(CASES[case]):
            rate, cost = measure(case, way)
            rates |= {way: rate, COST: cost} if way == AUTO else {way: rate}
            keep()


if __name__ == "__main__":
    main()

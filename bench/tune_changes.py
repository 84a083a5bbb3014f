"""How well `workers="auto"` follows a training that changes: `python -m bench.tune_changes`.

    python -m bench.tune_changes --output FOLDER [CASE ...]
    python -m bench.tune_changes --output FOLDER --report

A training runs for 30 s, then its work, its step or its machine changes. Its rate from 20 to 25 s
after the change is compared with that of every fixed number of producers under the new conditions.
Each has a process of its own. The quota is that of a control group of version 1, for which root is
needed. Figures are kept in changes.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.tune import PROCESSES, ROUNDS, THREADS, WARM_S, measured
from bench.workloads import burn, rounds_for
from fastfeed.core.unix import die_with

CHANGE_S, FOLLOW_S, MEASURED_S = 30.0, 20.0, 5.0
AUTO, COST = 'workers="auto"', "its search, of a core"
TUNER = "fastfeed-tuner"
GROUP = Path("/sys/fs/cgroup/cpu")  # of version 1
PERIOD_US = 100_000


@dataclass(frozen=True)
class ChangingWork:
    """Work of a batch, `sleep` or `python`, which takes `seconds`, and `later` from the time `at`
    on (time.monotonic, which all processes share)."""

    kind: str
    rounds: int
    seconds: float
    later: float
    at: float

    def __call__(self, number: int) -> Any:
        seconds = self.later if time.monotonic() >= self.at else self.seconds
        if self.kind == "sleep":
            time.sleep(seconds)
        else:
            burn(round(self.rounds * seconds / 0.01))
        return np.full(1000, number, np.float32)


class Neighbour:
    """Another program that keeps a core busy."""

    def __init__(self) -> None:
        self._process: Any = None

    def come(self) -> None:
        """Begin."""
        self._process = multiprocessing.get_context("spawn").Process(
            target=_busy, args=(os.getpid(),), daemon=True
        )
        self._process.start()

    def go(self) -> None:
        """End."""
        self._process.kill()
        self._process.join()


class Quota:
    """A control group of this process and its children, without a limit."""

    def __init__(self) -> None:
        self._folder = GROUP / f"fastfeed-tune-{os.getpid()}"
        self._folder.mkdir()
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def halve(self) -> None:
        """Allow one core."""
        (self._folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (self._folder / "cpu.cfs_quota_us").write_text(str(PERIOD_US))

    def close(self) -> None:
        """Leave the group."""
        (GROUP / "cgroup.procs").write_text(str(os.getpid()))
        for _ in range(100):
            try:
                return self._folder.rmdir()
            except OSError:  # a child is ending
                time.sleep(0.1)


def _busy(parent: int) -> None:
    die_with(parent)
    while True:
        pass


@dataclass(frozen=True)
class ChangeCase:
    """A kind of work, its seconds before and after the change, and those of the step."""

    kind: str
    work: tuple[float, float]
    step: tuple[float, float]
    machine: str = ""


CASES = {
    "a batch takes four times as long": ChangeCase("sleep", (0.02, 0.08), (0.005, 0.005)),
    "a step is twice as fast": ChangeCase("sleep", (0.05, 0.05), (0.02, 0.01)),
    "a neighbour comes": ChangeCase("python", (0.01, 0.01), (0.005, 0.005), "comes"),
    "a neighbour goes": ChangeCase("python", (0.01, 0.01), (0.005, 0.005), "goes"),
    "the quota is halved": ChangeCase("python", (0.01, 0.01), (0.005, 0.005), "quota"),
}


def ways() -> dict[str, dict[str, Any]]:
    """Return the options of each way by its name, "auto" first."""
    found: dict[str, dict[str, Any]] = {AUTO: {"workers": "auto"}}
    found |= {f"threads={n}": {"threads": n} for n in THREADS}
    return found | {f"processes={n}": {"processes": n} for n in PROCESSES}


def one(case: ChangeCase, options: dict[str, Any]) -> tuple[float, float]:
    """Return the steps/s after the change, in this process, and the cores that the search took."""
    from fastfeed import FeedRunner

    neighbour, quota = Neighbour(), Quota() if case.machine == "quota" else None
    auto = "auto" in options.values()
    begin_s = time.monotonic()
    at_s = begin_s + CHANGE_S if auto else 0.0
    measured_s = at_s + FOLLOW_S if auto else begin_s + WARM_S
    rounds = int(os.environ.get(ROUNDS) or rounds_for(0.01))
    work = ChangingWork(case.kind, rounds, *case.work, at=at_s)
    changes: list[Callable[[], None]] = []
    if quota is not None:
        changes.append(quota.halve)
    elif case.machine:
        changes.append(neighbour.come if case.machine == "comes" else neighbour.go)
    if case.machine == "goes":
        neighbour.come()
    steps, since_s = 0, 0.0
    with FeedRunner(range(10**7), batch_size=1, transform=work, **options) as runner:
        for _ in runner:
            now_s = time.monotonic()
            if changes and now_s >= at_s:
                changes.pop()()
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
    if case.machine == "comes":
        neighbour.go()
    if quota is not None:
        quota.close()
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tune_changes")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases; all, if none is named")
    parser.add_argument("--output", type=Path, default=Path("build/tune"))
    parser.add_argument("--report", action="store_true", help="print what was measured")
    parser.add_argument("--one", metavar="WAY", help="measure one way in this process")
    given = parser.parse_args()
    if given.one:
        print(*one(CASES[given.cases[0]], ways()[given.one]))
        return
    for case, rates, keep in measured(given, "changes.json", cases=CASES, show=table):
        for way in ways():
            command = [sys.executable, "-m", "bench.tune_changes", "--one", way, case]
            done = subprocess.run(command, stdout=subprocess.PIPE, timeout=180, check=True)
            rate, cost = map(float, done.stdout.split()[-2:])
            rates |= {way: rate, COST: cost} if way == AUTO else {way: rate}
            keep()


if __name__ == "__main__":
    main()

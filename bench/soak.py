"""Batches at full rate for minutes, each of them checked: `python -m bench.soak [minutes]`.

Every batch carries a checksum over all of its bytes and the number of each of its records. At the
end nothing may have grown since the first tenth, no record may be torn, lost or repeated, and every
slot must be accounted for. Exit code 1 on any fault.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from typing import Any

from bench.checked import Footprint, InPlace, Ledger, Stamped, grown, quiet
from fastfeed import FeedRunner
from fastfeed.core.stats import SlotCounts

HELD = 5
LINES = 20
FULL_S = 5.0


def soak(runner: FeedRunner, seconds: float) -> tuple[Ledger, list[Footprint]]:
    """Run for that long; return the ledger, and the footprint at each twentieth of the time."""
    ledger, seen = Ledger(), []
    held: deque[dict[str, Any]] = deque(maxlen=HELD)
    began = time.perf_counter()
    for batch in runner:
        if len(held) == HELD:
            # as late as can be: a slot that was lent twice would have changed by now
            ledger.take(held[0])
        held.append(batch)
        now = time.perf_counter() - began
        if now > seconds * (len(seen) + 1) / LINES:
            seen.append(Footprint.now())
            rate = ledger.nbytes / 1e9 / now
            print(
                f"{now:7.1f} s  {ledger.batches:9d} batches  {rate:.2f} GB/s  {seen[-1]}",
                flush=True,
            )
        if now > seconds:
            break
    held.clear()
    del batch
    _account(runner, ledger)
    return ledger, seen


def _account(runner: FeedRunner, ledger: Ledger) -> None:
    """Count the slots that remain lent after the consumer stopped and the producers filled the
    rest; these are lost."""
    deadline = time.monotonic() + FULL_S
    slots = runner.snapshot().slots
    while not _settled(slots):
        if time.monotonic() > deadline:
            ledger.note("slots", f"{slots}: needed all of them ready or in the producers' hands")
            return
        time.sleep(0.01)
        slots = runner.snapshot().slots
    print(f"at the end {slots}")


def _settled(slots: SlotCounts) -> bool:
    return slots.lent == 0 and slots.ready > 0


def runner_for(given: argparse.Namespace) -> FeedRunner:
    """Filled in place by streams of their own, or dealt out in one order."""
    options = {
        "processes": given.processes,
        "threads": given.threads,
        "pad": 0 if given.vary else None,
    }
    if given.in_place:
        return FeedRunner(InPlace(given.width, given.vary), **options)
    return FeedRunner(Stamped(10**12, given.width, given.vary), records=False, **options)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=10.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, default=4096, help="bytes of a record; a batch has 16")
    parser.add_argument("--vary", action="store_true", help="records of varying width")
    parser.add_argument("--in-place", action="store_true", help="a callable that fills lent memory")
    given = parser.parse_args()
    quiet()
    with runner_for(given) as runner:
        ledger, seen = soak(runner, given.minutes * 60)
    growth = seen[-1] - seen[LINES // 10]
    faults = {**ledger.faults, **grown(growth)}
    print(f"{ledger.batches} batches; growth from the first tenth to the end: {growth}")
    print(f"faults: {faults or 'none'} {ledger.first or ''}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

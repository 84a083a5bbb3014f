"""Random kills of workers at full rate: a short run of bench/chaos.py, and proof that its checks
can fail."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bench import chaos
from bench.chaos import Killer, Outcome, Plan, run
from bench.checked import RECORDS, Ledger, Stamped, checksum
from fastfeed import FeedRunner, Worker
from tests.helpers.dying import LONG_S


@pytest.mark.parametrize(
    "plan",
    [
        Plan(kills=16, processes=2, threads=1, mean_s=0.05, seed=1),
        Plan(kills=8, processes=1, threads=1, mean_s=0.05, seed=2),
        Plan(kills=10, processes=2, threads=3, mean_s=0.1, vary=True, seed=3),
        Plan(kills=10, processes=2, threads=1, mean_s=0.1, auto=True, seed=4),
    ],
    ids=["2x1", "1x1", "2x3, rings that grow", "auto"],
)
def test_nothing_is_torn_lost_repeated_or_stalled(plan: Plan) -> None:
    outcome = run(plan)
    faults = outcome.faults
    # The number of rings that a worker has grown varies at each moment; after the run none is left.
    if plan.vary:
        faults.pop("descriptors", None)
    # In such a short time memory is still being touched for the first time; bench/chaos.py runs
    # longer.
    faults.pop("pss_mb", None)
    # On a busy machine workers start slowly; a lasting stall is a FeedTimeout.
    faults.pop("stall", None)
    assert not faults, outcome.ledger.first
    assert outcome.kills == outcome.audits == plan.kills
    assert outcome.ledger.batches > plan.kills


def batch_of(index: int) -> dict[str, Any]:
    return Stamped(10, 64)[index]


def test_the_ledger_sees_a_torn_batch() -> None:
    """One bit of one byte differs, at any position."""
    for name in ("data", "ids", "check"):
        ledger, batch = Ledger(), batch_of(0)
        batch[name][-1] ^= 1
        ledger.take(batch)
        assert ledger.faults["torn"] == 1


@pytest.mark.parametrize(
    ("indices", "fault"), [((0, 2), "lost"), ((0, 1, 1), "repeated"), ((0, 1, 0), "repeated")]
)
def test_the_ledger_sees_lost_and_repeated_records(indices: tuple[int, ...], fault: str) -> None:
    ledger = Ledger()
    for index in indices:
        ledger.take(batch_of(index))
    assert dict(ledger.faults) == {fault: 1}


def test_a_worker_that_writes_after_it_has_sent_is_seen() -> None:
    """A real torn batch: the slot changes while the trainer has it. The check must be able to fail
    on the real path."""

    def tearing(worker: Worker) -> Iterator[Any]:
        for index in range(10**6):
            made = batch_of(index)
            batch = worker.empty(made)
            for name, value in made.items():
                batch[name][...] = value
            data = batch["data"]
            yield batch
            data ^= 255

    outcome = run(Plan(kills=1, processes=1, mean_s=0.2), source=tearing)
    assert outcome.ledger.faults["torn"]


class Untold:
    """An indexable whose item 100 repeats item 99: what a mistake in the dispatch would look
    like."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> Any:
        return batch_of(index - 1 if index == 100 else index)


def test_a_source_that_repeats_is_seen() -> None:
    ledger = Ledger()
    with FeedRunner(Untold(), records=False, processes=1) as runner:
        for number, batch in enumerate(runner):
            ledger.take(batch)
            if number == 150:
                break
    assert dict(ledger.faults) == {"repeated": 1, "lost": 1}


def test_the_audit_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring in which a slot is missing."""
    monkeypatch.setattr(chaos, "AUDIT_S", 0.1)
    with FeedRunner(Stamped(10**6, 64), records=False, processes=1) as runner:
        next(iter(runner))
        killer = Killer(runner, outcome := Outcome(Plan(kills=1, processes=1)))
        killer._per_worker = runner.snapshot().slots.all + 1
        killer._audit()
        assert outcome.ledger.faults["audit"] == 1
        assert not outcome.audits


def test_a_callable_under_chaos() -> None:
    """Other processes run its streams again from the beginning, and go on at the right place."""

    def stream(worker: Worker) -> Iterator[Any]:
        for index in range(worker.index, 4000, worker.count):
            ids = np.arange(index * RECORDS, (index + 1) * RECORDS)
            data = np.full((RECORDS, 64), index % 251, np.uint8)
            check = np.full(RECORDS, checksum(ids, data))
            time.sleep(0.0005)
            yield {"ids": ids, "data": data, "check": check, "pid": np.full(RECORDS, os.getpid())}

    found: list[int] = []
    makers: set[int] = set()
    options = {"on_worker_death": "restart", "stall_timeout_s": LONG_S}
    runner = FeedRunner(stream, processes=2, threads=2, **options)
    with runner.start(), Killer(runner, outcome := Outcome(Plan(kills=8, mean_s=0.05))):
        for batch in runner:
            assert (batch["check"] == checksum(batch["ids"], batch["data"])).all()
            found += batch["ids"].tolist()
            makers.add(int(batch["pid"][0]))
    assert sorted(found) == list(range(4000 * RECORDS))
    assert len(makers) > 2, "somebody was killed"
    assert outcome.kills
    assert not outcome.ledger.faults

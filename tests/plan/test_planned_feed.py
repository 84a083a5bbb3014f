"""A trainer and its feed: producers for a step by the simulated feed, and memory."""

from __future__ import annotations

import numpy as np
import pytest

from fastfeed import FeedRunner
from fastfeed.benchmark.consumers import consumer_from
from fastfeed.benchmark.workloads import NamedSource, workload_from
from fastfeed.core.worker import batches_ahead
from fastfeed.errors import OptionError
from fastfeed.model.prediction import Prediction
from fastfeed.model.workload import LIMIT_DISK, Producers
from fastfeed.plan import planned_feed
from fastfeed.plan.balance import CostLine
from fastfeed.plan.needs import make_plan
from fastfeed.plan.plan_figures import assume, figures_from
from fastfeed.plan.planned_feed import (
    FeedMemory,
    PlannedSetting,
    cores_needed,
    fewest,
    profile_source,
    seconds_of_step,
    settings_of,
    workload_of,
)

BATCH = np.zeros((64, 4096), np.uint8)


def memory(batch, **fields):
    return FeedMemory(batch, 1e8, **fields)


def chosen(workload, given=None):
    return settings_of(workload, memory(1e4), given=given)[1]


def batches(worker):
    while True:
        yield BATCH.copy()


@pytest.mark.parametrize(
    ("batch", "more", "producers", "starved", "nbytes"),
    [
        (1e6, {}, Producers(8), False, (batches_ahead(8) + 8) * 1e6),  # the buffer, and one each
        (1e6, {}, Producers(8), True, 9e6),
        (1e9, {"bound": 10**9}, Producers(1), False, 2e9),  # more than fits still has a size
        (1e9, {"bound": 10**9}, Producers(1, 2), False, 2 * 3 * 1e9),
    ],
)
def test_the_batches_ahead(batch, more, producers, starved, nbytes):
    found = memory(batch, **more).ring(producers, starved=starved)
    assert found == pytest.approx(nbytes, rel=0.01)


@pytest.mark.parametrize("producers", [Producers(1, 1), Producers(2, 2)])
def test_the_ring_has_as_many_slots_as_planned(producers):
    planned, slots = memory(BATCH.nbytes).ring(producers) / BATCH.nbytes, 0
    with FeedRunner(batches, threads=producers.threads, processes=producers.processes) as runner:
        for _ in zip(range(5000), runner, strict=False):  # until the last worker has begun
            slots = runner.snapshot().slots.all
            if slots >= planned:
                break
    assert slots == planned


def test_the_parts_add_up():
    costs = {"threads": CostLine(10e6, 1e6), "processes": CostLine(50e6, 10e6)}
    size = memory(1e6, pool=5e6, captured=40e6, **costs)
    found = size.parts(Producers(1, 2))
    assert found["producers"] == pytest.approx(70e6) and found["captured"] == 40e6
    assert sum(found.values()) == pytest.approx(1e8 + 70e6 + 40e6 + 5e6 + found["ring"])
    threads = size.parts(Producers(2))
    assert threads["captured"] == 0 and threads["producers"] == pytest.approx(12e6)
    assert memory(1e3).parts(Producers(1, 4))["producers"] == 4 * 30e6, "interpreters"


def figures(words: str):
    return assume(figures_from(words.split()))


def test_a_waiting_source_needs_as_many_threads_as_steps_fit_into_a_batch():
    workload = workload_of(figures("batch=10 source=4ms wait=100% step=10ms cores=2"))
    found = chosen(workload).producers
    assert 4 <= found.count <= 6 and not found.processes


def test_bytecode_needs_processes():
    workload = workload_of(figures("batch=10 source=2ms lock=100% step=10ms cores=8"))
    assert chosen(workload).producers.processes >= 2
    assert cores_needed(workload) == pytest.approx(2.0)


def test_slow_storage_is_the_limit():
    workload = workload_of(
        figures("batch=100 source=10us step=10ms stored=100KB storage=100MB/s cores=4")
    )
    found = chosen(workload, Producers(8)).prediction
    assert found.rate == pytest.approx(10, rel=0.05) and found.limit == LIMIT_DISK


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("step=8ms", 0.008),
        ("batch=64 step=32:8ms", 0.016),
        ("batch=48 step=32:164ms,64:292ms", 0.228),
        ("batch=64 flops=1G peak=1T efficiency=50%", 0.128),
        ("batch=64", None),
    ],
)
def test_seconds_of_a_step(words, seconds):
    found = seconds_of_step(figures(words))
    assert found == (seconds if seconds is None else pytest.approx(seconds, rel=0.01))


def settings(*found):
    """Return settings of 1, 2, ... threads with these steps/s and starvations."""
    for threads, (rate, starvation) in enumerate(found, 1):
        prediction = Prediction(rate, 0.9 * rate, 1.1 * rate, starvation, "the step")
        yield PlannedSetting(Producers(threads), prediction, {})


@pytest.mark.parametrize(
    ("found", "threads"),
    [
        ([(40, 0.6), (96, 0.01), (100, 0.0)], 2),  # at the pace of the step
        ([(40, 0.4), (70, 0.0), (72, 0.0), (75, 0.0)], 2),  # slowed down, but it never waits
        ([(50, 0.0), (50, 0.3), (90, 0.0)], 3),  # never waits, but is much slower
        ([(10, 0.9), (19, 0.8), (20, 0.8)], 2),  # starves with any number
    ],
)
def test_the_fewest_that_are_enough(found, threads):
    assert fewest(settings(*found), pace=95).producers == Producers(threads)


def test_what_is_chosen_is_shown():
    workload = workload_of(figures("batch=10 source=6ms wait=100% step=10ms cores=2"))
    shown, found = settings_of(workload, memory(1e4))
    assert found in shown and found.producers.threads not in (1, 2, 4, 8)


@pytest.fixture
def brief(monkeypatch):
    monkeypatch.setattr(planned_feed, "PROFILE_S", 0.05)
    monkeypatch.setattr(planned_feed, "LIVE_PROCESSES", (1, 2))


@pytest.mark.slow
def test_the_figures_of_a_profile_are_measured(brief):
    source = workload_from("sleep:2ms", batch_size=8, real=False)
    seen = []
    profile = profile_source(
        source, consumer_from("sim:1ms"), progress=lambda _, share: seen.append(share)
    )
    assert seen[-1] == pytest.approx(1)
    assert profile.figures["batch"].value == 8 and profile.figures["batch"].source == "measured"
    assert 0.0002 < profile.figures["source"].value < 0.002
    assert profile.memory.captured > 2000 * 28 * 28
    plan = make_plan(figures_from(["samples=8000"]), profile)
    assert plan.chosen.producers.count >= 2
    assert plan.settings[-1].nbytes > plan.settings[0].nbytes
    with pytest.raises(OptionError, match="batch, source beside --workload"):
        make_plan(figures_from(["batch=8", "source=1ms"]), profile)


def texts():
    while True:
        yield "text"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (NamedSource("texts", texts, ""), "must be arrays"),
        (NamedSource("batches", lambda: batches(None), ""), "--train none has no step"),
    ],
)
def test_what_cannot_be_profiled(source, text, brief):
    with pytest.raises(OptionError, match=text):
        profile_source(source, consumer_from("none"), progress=lambda *_: None)

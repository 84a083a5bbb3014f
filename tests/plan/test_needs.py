"""Formulas of a plan, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.errors import OptionError
from fastfeed.plan.hardware import assume
from fastfeed.plan.needs import exchange_seconds, exchanged_nbytes
from fastfeed.plan.plan_figures import figures_from
from fastfeed.plan.planner import Plan, make_plan


def plan_of(words: str) -> Plan:
    return make_plan(figures_from(words.split()))


def value(plan: Plan, topic: str, name: str) -> float:
    (found,) = [n.value for n in plan.needs if (n.topic, n.name) == (topic, name)]
    return found


@given(st.integers(2, 4096), st.integers(1, 64))
def test_an_exchange_is_two_times_the_weights_at_most(workers, servers):
    words = f"weights=100MB accelerators={workers} interconnect=1GB/s parameters=25M".split()
    ring = assume(figures_from(words))
    assert 100e6 <= exchanged_nbytes(ring) < 200e6
    served = assume(figures_from([*words, f"servers={servers}"]))
    assert exchanged_nbytes(served) == 200e6
    assert exchange_seconds(served) == pytest.approx(0.2 * max(1, workers / servers))


def test_one_worker_exchanges_nothing():
    assert exchanged_nbytes(assume(figures_from(["weights=100MB"]))) == 0


def test_a_speed_up_implies_a_bandwidth():
    words = "weights=100MB accelerators=4 batch=1 step=100ms speedup=2 exchange=servers"
    assert value(plan_of(words), "exchange", "measured: bandwidth") == pytest.approx(2e9)
    with pytest.raises(OptionError, match="speedup=5, accelerators=4 contradict"):
        plan_of(words.replace("speedup=2", "speedup=5"))


def test_states_of_the_optimizer_and_checkpoints():
    plan = plan_of("parameters=10M optimizer=adam steps=10000 checkpoint_every=1000")
    assert value(plan, "device", "parameters + optimizer") == 160e6
    assert value(plan, "storage", "checkpoints") == 10 * 120e6
    few = plan_of("parameters=10M optimizer=adam steps=10000 checkpoints=2")
    assert value(few, "storage", "checkpoints") == 2 * 120e6


def test_time_money_and_starvation():
    plan = plan_of(
        "samples=36000 epochs=2 batch=10 source=2ms wait=100% step=10ms price=10 threads=1 cores=2"
    )
    assert plan.chosen.prediction.starvation == pytest.approx(0.5, abs=0.05)
    assert value(plan, "time", "an epoch") == pytest.approx(72, rel=0.05)
    assert value(plan, "money", "the run") == pytest.approx(0.4, rel=0.05)
    assert value(plan, "money", "starvation, an hour") == pytest.approx(5, rel=0.1)
    assert any("starves" in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("dataset=300GB disk=100GB", "does not fit on disk"),
        ("parameters=25.6M batch=4096 flops=22.8G accelerator=P100", "accelerator_memory"),
        ("batch=64 sample=1MB source=1ms step=9ms cores=4 ram=100MB", "does not fit into ram"),
        (
            "batch=8 sample=1MB samples=1M source=1ms step=9ms cores=4 ram=64GB cache=ram",
            "does not fit into ram",
        ),
        ("batch=64 stored=1MB step=10ms network=1Gbit/s", "network is slower"),
        ("batch=64 source=1ms native=100% step=10ms cores=2", "cannot keep the steps"),
        ("weights=1GB batch=1 step=9ms accelerators=8 interconnect=1Gbit/s", "is the limit"),
    ],
)
def test_what_does_not_fit_is_said(words, text):
    assert any(text in warning for warning in plan_of(words).warnings)


def test_the_largest_batch_that_fits_bounds_the_balance():
    words = "source=1ms step=32:164ms,64:292ms batch=32 flops=22.8G parameters=25.6M"
    assert value(plan_of(words), "input", "balanced batch") == 171
    small = plan_of(words + " accelerator_memory=4GB")
    assert value(small, "input", "balanced batch") < 64


def test_remote_producers_instead_of_machines_with_accelerators():
    words = "batch=64 sample=150KB source=1ms native=100% step=10ms cores=2"
    plan = plan_of(words)
    assert value(plan, "input", "remote producers") == 7  # 64 ms of work for each 10 ms
    assert value(plan, "input", "remote link") == pytest.approx(64 * 150e3 / 0.01)
    enough = plan_of(words.replace("cores=2", "cores=8"))
    assert not any(need.name == "remote producers" for need in enough.needs)

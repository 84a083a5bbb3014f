"""Plans: formulas by hand, and five published reports of trainings as their cases."""

from __future__ import annotations

import pytest

from fastfeed.plan.needs import (
    LINES,
    WARNINGS,
    Plan,
    make_plan,
)
from fastfeed.plan.plan_figures import assume, figures_from
from fastfeed.plan.planned_feed import FeedMemory, SourceProfile, workload_of


def plan_of(words: str) -> Plan:
    return make_plan(figures_from(words.split()))


def value(plan: Plan, topic: str, name: str) -> float:
    (found,) = [n.value for n in plan.needs if (n.topic, n.name) == (topic, name)]
    return found


@pytest.mark.parametrize("workers", [2, 48, 4096])
def test_an_exchange_is_two_times_the_weights_at_most(workers):
    plan = plan_of(f"weights=100MB accelerators={workers} interconnect=1GB/s batch=1 step=9ms")
    nbytes = value(plan, "exchange", "a worker and step")
    assert 100e6 <= nbytes < 200e6
    assert value(plan, "exchange", "time of a step") == pytest.approx(nbytes / 1e9)
    enough = value(plan, "exchange", "interconnect for 90 %")
    assert 9e-3 / (9e-3 + nbytes / enough) == pytest.approx(0.9)
    unknown = plan_of(f"weights=100MB accelerators={workers} batch=1 step=9ms")
    assert value(unknown, "exchange", "interconnect for 90 %") == enough, "it is what is asked"


def test_one_worker_exchanges_nothing():
    plan = plan_of("weights=100MB batch=1 step=9ms interconnect=1Gbit/s")
    assert not [need for need in plan.needs if need.topic == "exchange"]


def test_states_of_the_optimizer_and_checkpoints():
    plan = plan_of("parameters=10M optimizer=adam steps=10000 checkpoint_every=1000")
    assert value(plan, "device", "in all") == 160e6
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
    assert plan.needs[1].value == plan.chosen.prediction.starvation
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
        ("samples=1M epochs=90 batch=100 took=1s", "took= is too short to be true"),
        ("steps=1000 batch=100 step=1s took=10min", "took= is too short to be true beside step="),
        ("steps=1000 batch=100 flops=1T accelerator=H100 took=10s", "more than the peak"),
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


def test_machines_have_up_to_eight_accelerators():
    words = "batch=64 source=1us step=10ms cores=2"
    assert value(plan_of(f"{words} accelerators=12"), "input", "machines") == 2
    assert value(plan_of(f"{words} accelerators=12 per_machine=4"), "input", "machines") == 3


def test_every_line_has_a_name_of_its_own_and_every_warning_a_line():
    names = [line[:2] for line in LINES]
    assert len(set(names)) == len(names)
    assert {warning[:2] for warning in WARNINGS} <= set(names)


def test_a_step_that_no_number_of_producers_feeds_is_not_said_to_be_fed():
    plan = plan_of("batch=64 source=1ms native=100% step=3ms cores=1")
    producers = plan.needs[0]
    assert plan.chosen.prediction.starvation > 0.9
    assert "no number feeds the step" in producers.why and "starves" in producers.warning


RESNET = "parameters=25.6M step=32:164ms,64:292ms"  # TensorFlow's benchmarks, May 2017, on a P100
PAIRS = "flops=45.6G steps=1000"  # two images of 22.8 GFLOP each
MLP = "samples=50000 epochs=20 batch=100 flops=0.75M"
# By report: the figures, and what the plan says; bench/evidence/planning.md has it beside them.
REPORTS = {
    "pairs, P100, measured 54 min": (
        f"accelerator=P100 batch=64 {PAIRS} took=54min",
        {"time, the run": 586, "measured, samples/s": 19.75, "measured, of the peak": 0.085},
    ),
    "pairs, TPU v2, measured 15.5 min": (
        f"accelerator=TPUv2 batch=1024 {PAIRS} took=15.5min",
        {"time, the run": 648, "measured, samples/s": 1101, "money, an hour": 4.50},
    ),
    "weights of ResNet-50, measured 104 MB": ("parameters=25.6M", {"device, weights": 102.4e6}),
    "asynchronous, 48 GPUs, measured 30 times": (
        f"{RESNET} batch=32 accelerators=48 interconnect=10Gbit/s",
        {"exchange, speed-up": 24.3},
    ),
    "ImageNet, 1,024 GPUs, measured 15 min": (
        f"{RESNET} minibatch=32768 accelerators=1024 parameter_bytes=2 interconnect=56Gbit/s "
        "samples=1281167 epochs=90 accelerator=P100 per_machine=8 flops=22.8G took=15min",
        {"time, the run": 628, "measured, samples/s": 128117, "exchange, speed-up": 940},
    ),
    "MLP, CPU, measured 3 min": (
        f"{MLP} peak=100G efficiency=100% took=3min",
        {"measured, FLOP/s": 4.17e9, "time, the run": 7.5},
    ),
    "MLP, P100, measured 1 min": (
        f"{MLP} accelerator=P100 took=1min",
        {"measured, FLOP/s": 12.5e9, "time, the run": 0.151},
    ),
    "14 million images, 300 GB": (
        "samples=14M dataset=300GB network=1Gbit/s",
        {"storage, data set": 300e9, "storage, its download": 2400},
    ),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report(name):
    words, wanted = REPORTS[name]
    found = {f"{need.topic}, {need.name}": need.value for need in plan_of(words).needs}
    assert {key: found[key] for key in wanted} == {
        key: pytest.approx(value, rel=0.01) for key, value in wanted.items()
    }


def test_the_missing_figures_are_named():
    plan = plan_of("dataset=300GB")
    assert any(hint.startswith("samples=") for hint in plan.missing)
    assert not any("interconnect" in hint for hint in plan.missing)


def test_the_users_own_producers_are_kept():
    words = "batch=10 source=2ms wait=100% step=10ms cores=2 threads=1 processes=2"
    plan = plan_of(words)
    assert str(plan.chosen.producers) == "2 processes x 1 thread"
    assert [str(one.producers) for one in plan.settings][:2] == ["1 thread", "2 threads"]


def test_other_programs_during_the_profile_are_said():
    words = "batch=10 source=2ms wait=100% step=10ms cores=2"
    figures = assume(figures_from(words.split()))
    workload = workload_of(figures)
    for others, said in ((0.05, False), (0.7, True)):
        memory = FeedMemory(1e4, 1e8)
        profile = SourceProfile(workload, memory, dict(figures.known), others)
        plan = make_plan(figures_from([]), profile)
        assert any("other programs" in warning for warning in plan.warnings) is said


def test_an_exchange_makes_steps_longer():
    words = "batch=10 source=1us step=10ms cores=4 weights=62.5MB"
    plans = [plan_of(words), plan_of(words + " accelerators=2 interconnect=100Gbit/s")]
    rates = [plan.chosen.prediction.rate for plan in plans]
    assert rates[0] / rates[1] == pytest.approx(1.5, rel=0.02)

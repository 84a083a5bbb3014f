"""Plans, with five published reports of trainings as their cases."""

from __future__ import annotations

import pytest

from fastfeed.errors import OptionError
from fastfeed.plan.footprint import FeedSize, MemoryCost
from fastfeed.plan.hardware import assume
from fastfeed.plan.plan_figures import figures_from
from fastfeed.plan.planner import make_plan
from fastfeed.plan.profiled import SourceProfile
from fastfeed.plan.speed import workload_of

RESNET = "parameters=25.6M step=32:164ms,64:292ms"  # TensorFlow's benchmarks, May 2017, on a P100
PAIRS = "flops=45.6G steps=1000"  # two images of 22.8 GFLOP each
MLP = "samples=50000 epochs=20 batch=100 flops=0.75M"
# By report: the figures, and what the plan says; docs/planning.md has it beside the measurements.
REPORTS = {
    "pairs, P100, measured 54 min": (
        f"accelerator=P100 batch=64 {PAIRS} took=54min",
        {"time, the run": 586, "measured, samples/s": 19.75, "measured, of the peak": 0.085},
    ),
    "pairs, TPU v2, measured 15.5 min": (
        f"accelerator=TPUv2 batch=1024 {PAIRS} took=15.5min",
        {"time, the run": 552, "measured, samples/s": 1101, "money, an hour": 4.50},
    ),
    "weights of ResNet-50, measured 104 MB": ("parameters=25.6M", {"device, weights": 102.4e6}),
    "asynchronous, 48 GPUs, measured 30 times": (
        f"{RESNET} batch=32 accelerators=48 exchange=servers interconnect=10Gbit/s speedup=30",
        {"exchange, speed-up on 48": 24.0, "exchange, measured: bandwidth": 2.08e9},
    ),
    "ImageNet, 1,024 GPUs, measured 15 min": (
        f"{RESNET} minibatch=32768 accelerators=1024 parameter_bytes=2 interconnect=56Gbit/s "
        "samples=1281167 epochs=90 accelerator=P100 per_machine=8 flops=22.8G took=15min",
        {"time, the run": 628, "measured, samples/s": 128117, "exchange, speed-up on 1024": 940},
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
    plan = make_plan(figures_from(words.split()))
    found = {f"{need.topic}, {need.name}": need.value for need in plan.needs}
    assert {key: found[key] for key in wanted} == {
        key: pytest.approx(value, rel=0.01) for key, value in wanted.items()
    }


def test_nothing_given_lists_the_figures():
    with pytest.raises(OptionError, match=r"nothing to plan from(.|\n)*interconnect"):
        make_plan(figures_from([]))


def test_the_missing_figures_are_named():
    plan = make_plan(figures_from(["dataset=300GB"]))
    assert any(hint.startswith("samples=") for hint in plan.missing)
    assert not any("interconnect" in hint for hint in plan.missing)


def test_the_users_own_producers_are_kept():
    words = "batch=10 source=2ms wait=100% step=10ms cores=2 threads=1 processes=2"
    plan = make_plan(figures_from(words.split()))
    assert str(plan.chosen.producers) == "2 processes x 1 thread"
    assert [str(one.producers) for one in plan.settings][:2] == ["1 thread", "2 threads"]


def test_other_programs_during_the_profile_are_said():
    words = "batch=10 source=2ms wait=100% step=10ms cores=2"
    figures = assume(figures_from(words.split()))
    workload = workload_of(figures)
    for others, said in ((0.05, False), (0.7, True)):
        profile = SourceProfile(
            workload, FeedSize(1e4), MemoryCost.assumed(1e8), dict(figures.known), others
        )
        plan = make_plan(figures_from([]), profile)
        assert any("other programs" in warning for warning in plan.warnings) is said

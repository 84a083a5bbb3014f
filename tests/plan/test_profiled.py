"""A plan from a short profile."""

from __future__ import annotations

import pytest

from fastfeed.benchmark.consumers import consumer_from
from fastfeed.benchmark.workloads import NamedSource, workload_from
from fastfeed.errors import OptionError
from fastfeed.plan import profiled
from fastfeed.plan.plan_figures import figures_from
from fastfeed.plan.planner import make_plan
from fastfeed.plan.profiled import profile_source


@pytest.fixture
def brief(monkeypatch):
    monkeypatch.setattr(profiled, "PROFILE_S", 0.05)
    monkeypatch.setattr(profiled, "LIVE_PROCESSES", (1, 2))


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
    assert profile.size.captured > 2000 * 28 * 28
    plan = make_plan(figures_from(["samples=8000"]), profile)
    assert plan.chosen.producers.count >= 2
    assert plan.settings[-1].memory.total > plan.settings[0].memory.total
    with pytest.raises(OptionError, match="batch, source beside --workload"):
        make_plan(figures_from(["batch=8", "source=1ms"]), profile)


def test_batches_that_are_no_arrays_are_refused():
    def texts():
        while True:
            yield "text"

    with pytest.raises(OptionError, match="must be arrays"):
        profile_source(
            NamedSource("texts", texts, ""), consumer_from("none"), progress=lambda *_: None
        )


def test_a_plan_needs_a_step(brief):
    source = workload_from("sleep:1ms", batch_size=8, real=False)
    with pytest.raises(OptionError, match="--train none has no step"):
        profile_source(source, consumer_from("none"), progress=lambda *_: None)

"""Assumptions and their sources."""

from __future__ import annotations

import pytest

from fastfeed.errors import OptionError
from fastfeed.plan.hardware import ACCELERATORS, DEFAULTS, OPTIMIZER_SLOTS, assume
from fastfeed.plan.plan_figures import KNOWN, PROFILED, Figure, figures_from


def test_a_given_figure_wins_over_that_of_the_accelerator():
    figures = assume(figures_from(["accelerator=P100", "price=0.5", "flops=1G"]))
    assert figures["price"] == 0.5 and figures["peak"] == ACCELERATORS["P100"].peak
    assert "NVIDIA" in figures.known["peak"].source


def test_an_unknown_accelerator():
    with pytest.raises(OptionError, match="must be one of P100.*or give peak="):
        assume(figures_from(["accelerator=Abacus"]))


def test_every_assumption_has_a_source_and_a_name():
    assert set(DEFAULTS) <= set(KNOWN)
    assert all(figure.source for figure in DEFAULTS.values())
    assert all(kind.source for kind in ACCELERATORS.values())


def test_assumptions_that_matter_to_nothing_are_left_out():
    figures = assume(figures_from(["dataset=300GB"]))
    assert not {"efficiency", "optimizer", "trainer"} & set(figures.known)


@pytest.mark.parametrize("name", OPTIMIZER_SLOTS)
def test_the_optimizers_can_be_given(name):
    assert figures_from([f"optimizer={name}"])["optimizer"] == name


def test_what_a_given_source_does_is_assumed_and_a_measured_one_is_known():
    assert assume(figures_from(["source=2ms"]))["native"] == 1
    measured = figures_from([]).filled({"source": Figure(0.002, PROFILED)})
    assert "native" not in assume(measured)

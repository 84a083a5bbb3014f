"""Figures: how they are written, what follows from them, and those that contradict each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.errors import OptionError
from fastfeed.plan.plan_figures import (
    DEFAULTS,
    KNOWN,
    OPTIMIZER_SLOTS,
    PRODUCTS,
    PROFILED,
    Figure,
    accelerators,
    assume,
    figures_from,
    parsed,
    said,
)


def test_figures_follow_from_others():
    words = (
        "samples=1.28M batch=32 accelerators=1024 epochs=90 dataset=128GB weights=102.4MB "
        "parameters=25.6M"
    )
    figures = figures_from(words.split())
    assert figures["minibatch"] == 32768
    assert figures["steps"] == pytest.approx(90 * 1.28e6 / 32768)
    assert figures["stored"] == pytest.approx(100e3)
    assert figures["parameter_bytes"] == pytest.approx(4)
    assert figures.known["minibatch"].source == "from batch and accelerators"


@pytest.mark.parametrize(
    "words",
    [
        "minibatch=100 batch=32 accelerators=4",
        "dataset=1TB samples=14M stored=21KB",
        "weights=10MB parameters=25.6M",
        "steps=10 minibatch=100 epochs=90 samples=1M",
        "lock=60% native=60%",
        "lock=20% native=20% wait=20%",
        "batch=128 samples=100",
        "batch=32 accelerators=8 samples=100",
    ],
)
def test_contradictions_are_said_as_they_were_given_and_blame_nothing_else(words):
    with pytest.raises(OptionError, match="contradict") as error:
        assume(figures_from(words.split()))
    assert str(error.value).startswith(f"{', '.join(words.split())} contradict each other")


def test_a_data_set_of_petabytes_is_possible_if_it_is_given():
    assert figures_from(["samples=14M", "stored=300GB", "dataset=4200000TB"])["samples"] == 14e6


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("samples=14M stored=300GB", "samples=14M, stored=300GB: the data set would be 4.2 EB.*d"),
        ("step=64:164ms,32:292ms", "step=64:164ms,32:292ms: a larger batch cannot take less time"),
        ("batch=1.5", "batch=1.5: must be a number > 0.*without a fraction"),
        ("sampels=3", "did you mean samples"),
        ("samples", "is no figure such as"),
        ("batch=3 batch=4", "given twice"),
        ("batch=some", "batch=some: must be"),
        ("accelerator=Abacus", "Must be one of P100.*or give peak="),
        ("accelerator=TPUv7", "did you mean TPUv"),
    ],
)
def test_slips_are_answered_in_plain_words(words, text):
    with pytest.raises(OptionError, match=text):
        assume(figures_from(words.split()))


@given(st.data())
def test_any_figure_of_a_product_follows_from_the_others(data):
    product = data.draw(st.sampled_from(PRODUCTS[:2]))
    values = {name: data.draw(st.integers(1, 100), name) for name, p in product.items() if p < 0}
    (whole,) = (name for name, p in product.items() if p > 0)
    total = 1
    for value in values.values():
        total *= value
    every = {**values, whole: total}
    left_out = data.draw(st.sampled_from(sorted(every)))
    words = [f"{name}={value}" for name, value in every.items() if name != left_out]
    assert figures_from(words)[left_out] == pytest.approx(every[left_out])
    off = [f"{name}={value * (3 if name == whole else 1)}" for name, value in every.items()]
    with pytest.raises(OptionError, match="contradict"):
        figures_from(off)


def test_every_product_names_known_figures():
    assert {name for product in PRODUCTS for name in product} <= set(KNOWN)


@pytest.mark.parametrize(
    ("unit", "text", "value"),
    [
        ("", "25.6M", 25.6e6),
        ("", "14 million", 14e6),
        ("", "0.75MFLOP", 0.75e6),
        ("", "10.6 TFLOP/s", 10.6e12),
        ("", "1.2e6", 1.2e6),
        ("B", "300GB", 300e9),
        ("B", "1TB", 1e12),
        ("s", "8ms", 0.008),
        ("s", "15.5min", 930.0),
        ("s", "2h", 7200.0),
        ("%", "30%", 0.3),
        ("%", "0", 0.0),
        ("B/s", "10Gbit/s", 1.25e9),
        ("B/s", "500MB/s", 500e6),
        ("$", "$1.46", 1.46),
        ("steps", "8ms", ((0.0, 0.008),)),
        ("steps", "32:164ms,64:292ms", ((32.0, 0.164), (64.0, 0.292))),
    ],
)
def test_a_value_with_its_unit(unit, text, value):
    wanted = value if isinstance(value, tuple) else pytest.approx(value)
    assert parsed(text, unit, name="x") == wanted


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        ("", "many"),
        ("", "0"),
        ("", "1e999"),
        ("B", "3 apples"),
        ("s", "8 parsecs"),
        ("%", "130%"),
        ("B/s", "10GB"),
        ("steps", "8ms,9ms"),
        ("steps", "32:8ms,32:9ms"),
        ("sgd|adam", "lion"),
    ],
)
def test_a_value_without_sense_is_refused_by_name(unit, text):
    with pytest.raises(OptionError, match="figure_name"):
        parsed(text, unit, name="figure_name")


@given(st.floats(1e-6, 1e14), st.sampled_from(["s", "$", "%", "B", "B/s", "FLOP/s", "", "x"]))
def test_every_number_is_said_in_few_characters(value, unit):
    assert 0 < len(said(value, unit)) < 30


@given(st.floats(1, 9.99e14))
def test_bytes_that_were_said_can_be_given_again(value):
    text = said(value, "B").replace("B", "")
    assert parsed(text, "", name="x") == pytest.approx(value, rel=0.01)


def test_a_given_figure_wins_over_that_of_the_accelerator():
    figures = assume(figures_from(["accelerator=P100", "price=0.5", "flops=1G"]))
    assert figures["price"] == 0.5 and figures["peak"] == accelerators()["P100"]["peak"]
    assert "NVIDIA" in figures.known["peak"].source


@pytest.mark.parametrize(
    ("name", "same"), [("tpu v3", "TPUv3"), ("h100", "H100"), ("nvidia-l40s", "L40S")]
)
def test_names_of_accelerators_in_any_spelling(name, same):
    found = assume(figures_from([f"accelerator={name}"]))
    assert found["peak"] == accelerators()[same]["peak"]


@pytest.mark.parametrize("name", accelerators())
def test_every_accelerator_has_figures_that_can_be_and_their_sources(name):
    kind = accelerators()[name]
    assert 1e12 < kind["peak"] < 1e17 and 1e9 < kind["memory"] < 1e12
    assert 0.1 < kind["efficiency"] < 0.8 and 0.1 < kind["price"] < 100
    assert kind["specification"] and kind["price_source"] and kind["efficiency_source"]


@pytest.mark.parametrize(
    ("words", "accelerators", "per_machine"),
    [
        ("accelerators=8", 8, 8),
        ("accelerators=12", 12, 8),
        ("accelerators=12 per_machine=4", 12, 4),
        ("per_machine=4", 4, 4),
        ("minibatch=256 batch=16", 16, 8),
        ("batch=16", 1, 1),
    ],
)
def test_accelerators_and_their_machines(words, accelerators, per_machine):
    found = assume(figures_from(words.split()))
    assert (found["accelerators"], found["per_machine"]) == (accelerators, per_machine)


def test_every_assumption_has_a_source_and_a_name():
    assert set(DEFAULTS) <= set(KNOWN)
    assert all(source for _, source, _ in DEFAULTS.values())


def test_assumptions_that_matter_to_nothing_are_left_out():
    figures = assume(figures_from(["dataset=300GB"]))
    assert not {"efficiency", "optimizer", "trainer"} & set(figures.known)


def test_the_optimizers_can_be_given():
    assert KNOWN["optimizer"][0].split("|") == list(OPTIMIZER_SLOTS)


def test_what_a_given_source_does_is_assumed_and_a_measured_one_is_known():
    assert assume(figures_from(["source=2ms"]))["native"] == 1
    measured = figures_from([]).filled({"source": Figure(0.002, PROFILED)})
    assert "native" not in assume(measured)

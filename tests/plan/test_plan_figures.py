"""Figures: what follows from them, and those that contradict each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.errors import OptionError
from fastfeed.plan.plan_figures import KNOWN, PRODUCTS, figures_from


def test_figures_follow_from_others():
    words = (
        "samples=1.28M batch=32 accelerators=1024 epochs=90 image=224x224x3 element_bytes=1 "
        "dataset=128GB weights=102.4MB parameters=25.6M"
    )
    figures = figures_from(words.split())
    assert figures["minibatch"] == 32768
    assert figures["steps"] == pytest.approx(90 * 1.28e6 / 32768)
    assert figures["sample"] == 224 * 224 * 3
    assert figures["stored"] == pytest.approx(100e3)
    assert figures["parameter_bytes"] == pytest.approx(4)
    assert figures.known["minibatch"].source == "from batch and accelerators"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("minibatch=100 batch=32 accelerators=4", ("minibatch", "batch", "accelerators")),
        ("samples=14M stored=21KB dataset=1TB", ("samples", "stored", "dataset")),
        ("weights=10MB parameters=25.6M", ("weights", "parameters")),
        ("image=224x224x3 sample=1MB", ("sample", "image")),
        ("steps=10 epochs=90 samples=1M minibatch=100", ("steps", "epochs", "samples")),
        ("lock=60% native=60%", ("lock", "native")),
        ("lock=20% native=20% wait=20%", ("lock", "native", "wait")),
        ("machines=3 per_machine=8 accelerators=8", ("machines", "per_machine")),
        ("samples=100 batch=128 accelerators=1", ("minibatch", "samples")),
    ],
)
def test_contradictions_name_both_figures(words, named):
    with pytest.raises(OptionError, match="contradict") as error:
        figures_from(words.split())
    assert all(name in str(error.value) for name in named)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["sampels=3"], "did you mean samples"),
        (["samples"], "is no figure such as"),
        (["batch=3", "batch=4"], "given twice"),
        (["batch=some"], "batch='some'"),
    ],
)
def test_words_that_are_no_figures(words, text):
    with pytest.raises(OptionError, match=text):
        figures_from(words)


@given(st.data())
def test_any_figure_of_a_product_follows_from_the_others(data):
    product = data.draw(st.sampled_from(PRODUCTS[:1] + PRODUCTS[2:3]))
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

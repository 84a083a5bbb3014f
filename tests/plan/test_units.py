"""Numbers as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.errors import OptionError
from fastfeed.plan import units


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.count, "25.6M", 25.6e6),
        (units.count, "14 million", 14e6),
        (units.count, "0.75MFLOP", 0.75e6),
        (units.count, "10.6 TFLOP/s", 10.6e12),
        (units.count, "1.2e6", 1.2e6),
        (units.nbytes, "300GB", 300e9),
        (units.nbytes, "1TB", 1e12),
        (units.seconds, "8ms", 0.008),
        (units.seconds, "15.5min", 930.0),
        (units.seconds, "2h", 7200.0),
        (units.share, "30%", 0.3),
        (units.share, "0", 0.0),
        (units.rate, "10Gbit/s", 1.25e9),
        (units.rate, "500MB/s", 500e6),
        (units.money, "$1.46", 1.46),
        (units.shape, "224x224x3", (224, 224, 3)),
        (units.steps, "8ms", ((0.0, 0.008),)),
        (units.steps, "32:164ms,64:292ms", ((32.0, 0.164), (64.0, 0.292))),
    ],
)
def test_a_value_with_its_unit(parse, text, value):
    assert (
        parse(text, "x") == pytest.approx(value)
        if not isinstance(value, tuple)
        else (parse(text, "x") == value)
    )


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.count, "many"),
        (units.count, "0"),
        (units.count, "1e999"),
        (units.nbytes, "3 apples"),
        (units.seconds, "8 parsecs"),
        (units.share, "130%"),
        (units.rate, "10GB"),
        (units.shape, "224x0"),
        (units.steps, "8ms,9ms"),
        (units.steps, "32:8ms,32:9ms"),
        (units.word("sgd", "adam"), "lion"),
    ],
)
def test_a_value_without_sense_is_refused_by_name(parse, text):
    with pytest.raises(OptionError, match="figure_name"):
        parse(text, "figure_name")


@given(st.floats(1e-6, 1e14), st.sampled_from(["s", "$", "%", "B", "B/s", "FLOP/s", "", "x"]))
def test_every_number_is_said_in_few_characters(value, unit):
    assert 0 < len(units.said(value, unit)) < 30


@given(st.floats(1, 9.99e14))
def test_bytes_that_were_said_can_be_given_again(value):
    text = units.said(value, "B").replace("B", "")
    assert units.count(text, "x") == pytest.approx(value, rel=0.01)

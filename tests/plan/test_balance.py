"""The batch size that balances input and step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.errors import OptionError
from fastfeed.plan.balance import balanced_batch, cost_line

STEPS = [(32, 0.164), (64, 0.292)]  # 36 ms + 4 ms for each sample


@pytest.mark.parametrize(
    ("source", "more", "batch", "limit"),
    [
        (0.005, {}, 36, "input"),
        (0.009, {"producers": 2}, 72, "input"),
        (0.001, {}, 171, "step"),  # 36 ms are 5 % of 36 ms + 171 x 4 ms
        (0.001, {"most": 64}, 64, "step"),
    ],
)
def test_the_batch_at_which_input_and_step_take_the_same_time(source, more, batch, limit):
    found = balanced_batch(source, STEPS, **more)
    assert (found.batch, found.limit) == (batch, limit)


@pytest.mark.parametrize(
    ("source", "steps"), [(0.01, [(32, 0.1)]), (0.0, STEPS), (float("nan"), STEPS), (0.01, [])]
)
def test_figures_that_cannot_be(source, steps):
    with pytest.raises(OptionError):
        balanced_batch(source, steps)


@given(st.floats(1e-4, 1.0), st.floats(1e-5, 1e-2), st.floats(1e-5, 1e-1), st.integers(1, 64))
def test_no_larger_batch_is_faster_and_a_smaller_one_is_slower(fixed, each, source, producers):
    steps = [(n, fixed + each * n) for n in (16, 64)]
    found = balanced_batch(source, steps, producers=producers)

    def rate(batch):
        return batch / max(fixed + each * batch, source / producers * batch)

    assert found.samples_per_second == pytest.approx(rate(found.batch), rel=1e-3)
    if found.limit == "input":
        assert rate(10 * found.batch) <= found.samples_per_second * 1.001
        assert found.batch == 1 or rate(found.batch - 1) < found.samples_per_second * 1.001


@given(st.floats(0, 10), st.floats(0.01, 10), st.lists(st.integers(1, 99), min_size=2, unique=True))
def test_a_line_is_found_again(fixed, each, counts):
    line = cost_line([(n, fixed + each * n) for n in counts])
    assert line.at(50) == pytest.approx(fixed + each * 50, rel=0.01)
    assert line.fixed >= 0 and line.each >= 0

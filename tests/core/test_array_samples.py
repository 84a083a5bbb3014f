"""Samples of arrays: they change with what the arrays hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.core.array_samples import WHOLE_NBYTES, sample_of

shapes = st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)
dtypes = st.sampled_from(["bool", "uint8", "float32", "complex128", "S3", "S5000", "object"])
layouts = st.sampled_from([lambda a: a, np.transpose, lambda a: a[::2], lambda a: a[..., ::-1]])


@given(shapes, dtypes, layouts)
def test_a_sample_is_another_once_all_elements_are(shape: Any, dtype: str, layout: Any) -> None:
    array = layout(np.zeros(shape, dtype))
    before = sample_of([array])
    assert before == sample_of([array])
    array[...] = 1
    assert before != sample_of([array])


def test_an_element_of_a_small_array_is_enough() -> None:
    array = np.zeros(WHOLE_NBYTES, np.uint8)
    for place in range(len(array)):
        before = sample_of([array])
        array[place] = 1
        assert before != sample_of([array])


@pytest.mark.parametrize("length", [7, 300, 512, 768, 1000])
@pytest.mark.parametrize("dtype", ["int32", "int64", object])
def test_rows_that_end_in_padding_are_seen(length: int, dtype: Any) -> None:
    tokens = np.zeros((256, length), dtype)
    before = sample_of([tokens])
    tokens[:, 1 : 1 + length // 10] = 5
    assert length < 10 or before != sample_of([tokens])


def test_objects_that_are_gone_are_not_taken_for_new_ones() -> None:
    """Even if they lie where the old ones did."""
    array = np.empty(1, object)
    array[0] = b"%d" % 1000
    before = sample_of([array])
    for number in range(1001, 1020):
        array[0] = b"%d" % number
        assert before != sample_of([array])

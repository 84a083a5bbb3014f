"""A tensor that shares the memory of a slot keeps the slot: it never changes, and its end frees the
slot."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from fastfeed import FeedRunner

tf = pytest.importorskip("tensorflow")

SHAPE = (8, 1000)


def numbered() -> Iterator[np.ndarray]:
    for number in range(200):
        yield np.full(SHAPE, number, np.float32)


def few_slots() -> FeedRunner:
    """Return options with few slots, which are reused soon."""
    return FeedRunner(numbered, processes=1, memory=8 * 36864, epochs=1)


@pytest.mark.slow
def test_a_dlpack_tensor_shares_the_slot_and_keeps_it() -> None:
    with few_slots() as runner:
        batches = iter(runner)
        array = next(batches)
        assert array.ctypes.data % 64 == 0
        with tf.device("/CPU:0"):
            tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        array[0, 0] = -1
        assert float(tensor[0, 0]) == -1, "the tensor is no copy"
        del array
        for _ in batches:
            assert float(tf.reduce_sum(tensor)) == -1
        assert runner.snapshot().slots.lent == 2
        del tensor, _
        gc.collect()
        assert runner.snapshot().slots.lent == 0


@pytest.mark.slow
def test_tensors_of_a_dataset_keep_theirs() -> None:
    with few_slots() as runner:
        signature = tf.TensorSpec(SHAPE, tf.float32)
        alive = weakref.ref(runner)  # TensorFlow never lets go of a generator function
        dataset = tf.data.Dataset.from_generator(
            lambda: iter(alive()), output_signature=signature
        ).prefetch(4)
        kept = list(dataset)
        assert [int(tensor[0, 0]) for tensor in kept] == list(range(200))
        assert all(bool(tf.reduce_all(tensor == tensor[0, 0])) for tensor in kept)
        snapshot = runner.snapshot()
        # TensorFlow 2.18 copies arrays itself, and lends no slot.
        assert snapshot.consumed.copied > 0 or not snapshot.slots.lent, (
            "more are kept than there are slots"
        )

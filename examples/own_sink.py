"""A custom sink: batches for a framework that fastfeed does not know, and the tests that check it.

    python examples/own_sink.py

The framework here is a device with separate memory, to which a thread copies two batches ahead of
the training.
"""

import mmap

import numpy as np

from fastfeed import FeedRunner
from fastfeed.testing import check_sink


class DeviceArray:
    """An array in the memory of the device."""

    def __init__(self, array):
        self._like = array.dtype, array.shape
        self._memory = mmap.mmap(-1, array.nbytes)
        self.numpy()[...] = array

    def numpy(self):
        dtype, shape = self._like
        return np.frombuffer(self._memory, dtype, count=int(np.prod(shape))).reshape(shape)


def each(function, batch):
    """Apply `function` to every array, in the same containers; tree.map of most frameworks."""
    if isinstance(batch, dict):
        return {key: each(function, part) for key, part in batch.items()}
    if isinstance(batch, (tuple, list)):
        parts = [each(function, part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return function(batch)


def on_device(runner):
    """Return the sink, over which the training loop iterates."""
    return runner.prefetch_to_device(lambda batch: each(DeviceArray, batch), depth=2)


def main():
    with FeedRunner(range(1000), transform=lambda i: (i, i * i), batch_size=32) as runner:
        total = sum(int(squares.numpy().sum()) for _, squares in on_device(runner))
    print("the sum of all squares is right:", total == sum(i * i for i in range(1000)))
    promises = check_sink(on_device, to_numpy=lambda batch: each(DeviceArray.numpy, batch))
    print("the sink keeps its promises:", ", ".join(promises))


if __name__ == "__main__":
    main()

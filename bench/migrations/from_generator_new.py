"""The same on fastfeed."""

from bench.migrations.work import BATCHES, TWO, loop, work
from fastfeed import FeedRunner, Worker


def batches(worker: Worker) -> object:
    """Yield this producer's share."""
    for index in range(worker.index, BATCHES, worker.count):
        yield work(index)


with FeedRunner(batches, **TWO) as runner:
    loop(runner.dataset())

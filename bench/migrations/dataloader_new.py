"""The same on fastfeed, which needs no base class."""

from bench.migrations.work import BATCHES, TWO, loop, work
from fastfeed import FeedRunner


class Batches:
    """Batches by index."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> object:
        return work(index)


with FeedRunner(Batches(), records=False, **TWO) as runner:
    loop(runner.torch())

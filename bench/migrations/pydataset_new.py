"""The same on fastfeed."""

import keras

from bench.migrations.work import BATCHES, TWO, Clock, work
from fastfeed import FeedRunner


class Batches(keras.utils.PyDataset):
    """Batches by index."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> object:
        return work(index)


clock = Clock()
model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: clock.tick())
with FeedRunner(Batches(), records=False, **TWO) as runner:
    model.fit(runner.keras(), verbose=0, shuffle=False, callbacks=[count])

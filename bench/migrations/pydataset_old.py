"""A PyDataset of Keras with two workers."""

import keras

from bench.migrations.work import BATCHES, KIND, Clock, work


class Batches(keras.utils.PyDataset):
    """Batches by index."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> object:
        return work(index)


if __name__ == "__main__":
    clock = Clock()
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: clock.tick())
    data = Batches(workers=2, use_multiprocessing=KIND == "python", max_queue_size=8)
    model.fit(data, verbose=0, shuffle=False, callbacks=[count])

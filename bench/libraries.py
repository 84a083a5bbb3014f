"""The other libraries as peers; each docstring states the settings. Import this module to register
them.

Numbers of workers are equal. Queues are at their defaults, or at the best that their documentation
recommends where the default is said not to suit whole batches.
"""

from __future__ import annotations

import importlib
import itertools
import multiprocessing as mp
import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from bench.peers import peer
from bench.workloads import Batch, Photos, Work

ENDLESS = 1 << 40
TENSORFLOW = ("tensorflow-cpu", "tensorflow")


def load(module: str) -> None:
    """Imports a library. tensorpack imports TensorFlow too where it can, and forks then; its
    DataFlow needs none."""
    if module.startswith("tensorpack"):
        sys.modules.setdefault("tensorflow", None)  # type: ignore[arg-type]
    importlib.import_module(module)


class Indexed:
    """Work as a dataset with a length and an index: what most libraries ask for."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> Batch:
        return self.work.batch(index)


@peer("torch", module="torch.utils.data", packages=("torch",))
def torch_loader(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """DataLoader(dataset, batch_size=None, num_workers=workers) over an indexed dataset of whole
    batches; forked workers, prefetch_factor=2, its default; tensors, looked at as numpy arrays.
    """
    from torch.utils.data import DataLoader

    loader = DataLoader(Indexed(work), batch_size=None, num_workers=workers)
    batches = iter(loader)
    yield (tuple(leaf.numpy() for leaf in batch) for batch in batches)


@peer("grain", module="grain", packages=("grain",))
def grain_loader(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """MapDataset.range().map(batch).to_iter_dataset(ReadOptions(0,
    0)).mp_prefetch(MultiprocessingOptions(workers, per_worker_buffer_size=2)): no threads inside a
    worker, whose 500 prefetched elements are meant for records.
    """
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # of a program that does not begin by absl.app.run

    read = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
    data = grain.MapDataset.range(ENDLESS).map(work.batch).to_iter_dataset(read)
    yield iter(data.mp_prefetch(options))


def _spdl(work: Work, workers: int, *, pooled: bool) -> Iterator[Iterator[Batch]]:
    from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

    def worker(index: int) -> Iterator[Batch]:
        size = sum(leaf.nbytes + 4096 for leaf in work.like())
        arena = SharedMemorySegmentPool(size, 5) if pooled else None
        return iter(
            iterate_in_subprocess(partial(work.stream, index, workers), buffer_size=3, arena=arena)
        )

    streams = [worker(index) for index in range(workers)]
    yield itertools.chain.from_iterable(zip(*streams, strict=True))


@peer("spdl", module="spdl.pipeline", packages=("spdl_core",))
def spdl_pool(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """SPDL: one iterate_in_subprocess(buffer_size=3) per worker, read in turn.

    Each has a SharedMemorySegmentPool of 5 segments (buffer_size + 2, as documented); arrays below
    4 KB go through its queue.
    """
    yield from _spdl(work, workers, pooled=True)


@peer("spdl, queue", module="spdl.pipeline", packages=("spdl_core",))
def spdl_queue(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """SPDL: one iterate_in_subprocess(buffer_size=3) per worker, read in turn, without an arena,
    which is its default."""
    yield from _spdl(work, workers, pooled=False)


def _tensorpack(work: Work, workers: int) -> Any:
    load("tensorpack.dataflow")
    from tensorpack.dataflow import DataFlow

    class Share(DataFlow):
        def __iter__(self) -> Iterator[list[np.ndarray]]:
            return map(list, work.stream(mp.current_process().idx, workers))

    return Share()


@peer("tensorpack", module="tensorpack.dataflow", packages=("tensorpack",), ordered=False)
def tensorpack_zmq(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """MultiProcessRunnerZMQ(dataflow, num_proc=workers) with its default of 50 batches of high
    water."""
    share = _tensorpack(work, workers)
    from tensorpack.dataflow import MultiProcessRunnerZMQ

    runner = MultiProcessRunnerZMQ(share, num_proc=workers)
    runner.reset_state()
    yield iter(runner)


@peer("keras", module="keras", packages=("keras",))
def keras_dataset(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """keras.utils.PyDataset(workers=workers, use_multiprocessing=True, max_queue_size=10, the
    default), read as numpy arrays by the adapter that fit() uses.
    """
    import keras
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    class Endless(keras.utils.PyDataset):
        num_batches = None

        def __getitem__(self, index: int) -> Batch:
            return work.batch(index)

    adapter = PyDatasetAdapter(Endless(workers=workers, use_multiprocessing=True))
    yield iter(adapter.get_numpy_iterator())


@peer("tf.data", module="tensorflow", packages=TENSORFLOW)
def tf_data(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """Dataset.counter().map(numpy_function(batch), num_parallel_calls=workers).prefetch(2 *
    workers), in order."""
    import tensorflow as tf

    types = [tf.as_dtype(leaf.dtype) for leaf in work.like()]
    data = tf.data.Dataset.counter().map(
        lambda index: tuple(tf.numpy_function(lambda i: list(work.batch(int(i))), [index], types)),
        num_parallel_calls=workers,
    )
    yield data.prefetch(2 * workers).as_numpy_iterator()


@peer("tf.data, native", module="tensorflow", packages=TENSORFLOW)
def tf_native(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """TensorFlow's own operations for photographs: decode_and_crop_jpeg, resize, flip with
    num_parallel_calls=workers and a private pool of as many threads, batch(64), prefetch(2); crops
    and interpolation of the same kind as ours.
    """
    import tensorflow as tf

    if not isinstance(work, Photos):
        raise ValueError("only photographs have native operations")
    size, side = work.shape[0], work.shape[1]
    data = tf.data.Dataset.from_tensor_slices(work._files).shuffle(1000).repeat()
    data = data.map(partial(_native_photo, side=side), num_parallel_calls=workers).batch(
        size, drop_remainder=True
    )
    options = tf.data.Options()
    options.threading.private_threadpool_size = workers
    yield numbered(data.with_options(options).prefetch(2).as_numpy_iterator())


def _native_photo(file: Any, *, side: int) -> Any:
    import tensorflow as tf

    encoded = tf.io.read_file(file)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(encoded),
        tf.zeros((0, 0, 4)),
        area_range=(0.08, 1.0),
        aspect_ratio_range=(3 / 4, 4 / 3),
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.stack([begin[0], begin[1], size[0], size[1]])
    part = tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
    part = tf.image.random_flip_left_right(tf.image.resize(part, (side, side)))
    return tf.cast(part, tf.uint8)


def numbered(batches: Iterator[np.ndarray]) -> Iterator[Batch]:
    """Native operations cannot write our numbers: each batch is touched here and stands for its
    place in the stream."""
    for index, images in enumerate(batches):
        images.item(0), images.item(-1)
        yield (np.array([index]),)


@peer("dali", module="nvidia.dali", packages=("nvidia-dali-cuda130", "nvidia-dali-cuda120"))
def dali(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """fn.external_source(parallel=True, batch=True, prefetch_queue_depth=2 * workers, since at its
    default of 1 one worker has all the work) in a pipeline of device_id=None,
    py_num_workers=workers, forked; seen as numpy arrays.
    """
    from nvidia.dali import fn, pipeline_def

    leaves = len(work.like())
    make = _DaliSource(work)
    ahead = {"parallel": True, "batch": True, "prefetch_queue_depth": 2 * workers}

    @pipeline_def(
        batch_size=work.shape[0], num_threads=workers, device_id=None, py_num_workers=workers
    )
    def pipeline() -> Any:
        return tuple(fn.external_source(make, num_outputs=leaves, **ahead))

    feed = pipeline()
    feed.start_py_workers()
    feed.build()
    yield (tuple(leaf.as_array() for leaf in feed.run()) for _ in itertools.count())


class _DaliSource:
    def __init__(self, work: Work) -> None:
        self.work = work

    def __call__(self, index: int) -> list[np.ndarray]:
        return list(self.work.batch(index))


@peer("ray", module="ray", packages=("ray",))
def ray_actors(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """Ray: one streaming generator task per worker, read in turn.

    num_returns="streaming", at most 3 batches ahead; arrays are read-only views of the object
    store.
    """
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    import ray

    ray.init(num_cpus=workers, include_dashboard=False, logging_level="error", log_to_driver=False)
    task = ray.remote(num_returns="streaming", _generator_backpressure_num_objects=3)(
        work.stream.__func__
    )
    held = ray.put(work)
    streams = [task.remote(held, index, workers) for index in range(workers)]
    yield (
        ray.get(reference)
        for reference in itertools.chain.from_iterable(zip(*streams, strict=True))
    )
    ray.shutdown()

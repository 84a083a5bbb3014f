"""Photographs by operations that are a library's own: fastfeed's augmentations by each executor,
and DALI alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.libraries import numbered
from bench.peers import peer
from bench.workloads import Batch, Photos, Work

DALI = ("nvidia-dali-cuda130", "nvidia-dali-cuda120")
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


class Files:
    """Encoded photographs by index, each as often as a batch has records, so that all batches are
    whole."""

    def __init__(self, work: Photos) -> None:
        self._files, self._times = work._files, work.shape[0]

    def __len__(self) -> int:
        return len(self._files) * self._times

    def __getitem__(self, index: int) -> tuple[bytes, np.int64]:
        with open(self._files[index % len(self._files)], "rb", buffering=0) as file:
            return file.read(), np.int64(index)


def _fed(work: Work, on: str = "producers", **options: Any) -> Iterator[Iterator[Batch]]:
    from fastfeed import FeedRunner
    from fastfeed import augment as a

    if not isinstance(work, Photos):
        raise ValueError("augmentation needs photographs")
    operations = [a.Decode(), a.RandomResizedCrop(work.shape[1], AREA, RATIO), a.Flip()]
    spec = a.Augment(operations, on=on)
    rest = {"shuffle": True, "epochs": 1 << 30, "last_batch": "drop", "batch_size": work.shape[0]}
    with FeedRunner(Files(work), augment=spec, **rest, **options) as runner:
        yield numbered(images for images, _ in runner)


@peer("fastfeed, augment in threads", module="fastfeed", packages=("fastfeed",))
def in_threads(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """FeedRunner(files, batch_size=64, shuffle=True, threads=workers, augment=[Decode,
    RandomResizedCrop, Flip])."""
    yield from _fed(work, threads=workers)


@peer("fastfeed, augment in processes", module="fastfeed", packages=("fastfeed",))
def in_processes(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """The same with processes=workers."""
    yield from _fed(work, processes=workers)


@peer("fastfeed, dali-cpu", module="fastfeed", packages=DALI)
def dali_cpu(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """The same with on="dali-cpu" and threads=workers that read files; DALI's own threads
    at their default."""
    yield from _fed(work, threads=workers, on="dali-cpu")


@peer("fastfeed, dali-gpu", module="fastfeed", packages=DALI)
def dali_gpu(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """The same with on="dali-gpu", hybrid decoding; batches are copied to the host to be
    looked at."""
    yield from _fed(work, threads=workers, on="dali-gpu")


def _alone(work: Work, workers: int, *, device: str) -> Iterator[Iterator[Batch]]:
    from nvidia.dali import fn, pipeline_def, types

    if not isinstance(work, Photos):
        raise ValueError("decoding needs photographs")
    on_gpu = device == "gpu"

    @pipeline_def(
        batch_size=work.shape[0],
        num_threads=workers,
        device_id=0 if on_gpu else None,
        prefetch_queue_depth=2,
    )
    def pipeline() -> Any:
        encoded, _ = fn.readers.file(files=work._files, random_shuffle=True, name="files")
        decoder = "mixed" if on_gpu else "cpu"
        image = fn.decoders.image_random_crop(
            encoded,
            device=decoder,
            random_area=AREA,
            random_aspect_ratio=RATIO,
            output_type=types.RGB,
        )
        image = fn.resize(image, size=work.shape[1:3], antialias=False)
        return fn.flip(image, horizontal=fn.random.coin_flip())

    feed = pipeline()
    feed.build()

    def batches() -> Iterator[np.ndarray]:
        for _ in itertools.count():
            (images,) = feed.run()
            yield (images.as_cpu() if on_gpu else images).as_array()

    yield numbered(batches())


@peer("dali, alone", module="nvidia.dali", packages=DALI)
def dali_alone(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """A pipeline of DALI's own on the CPU: readers.file, decoders.image_random_crop (which decodes
    only the part), resize, flip; num_threads=workers, prefetch_queue_depth=2; seen as numpy arrays.
    """
    yield from _alone(work, workers, device="cpu")


@peer("dali, alone on the GPU", module="nvidia.dali", packages=DALI)
def dali_alone_gpu(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """The same with device_id=0 and hybrid decoding; batches are copied to the host to be looked
    at."""
    yield from _alone(work, workers, device="gpu")

"""Runners whose images DALI augments: the same batches as with OpenCV, in every way in which
batches can be taken."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cv2")
pytest.importorskip("nvidia.dali", reason="needs fastfeed[dali]")
from nvidia.dali import backend

from fastfeed import FeedRunner, FeedStopped, OptionError, Pad, Shuffle, Skip, SpecError
from fastfeed import augment as A
from fastfeed.augment.images import header_of
from fastfeed.engine.dali_stage import DaliQueue
from fastfeed.errors import BadImage, ProducerFailed
from fastfeed.options import FeedOptions
from tests.augment.dalis import packed_batch
from tests.augment.pictures import jpeg, noise, png, rotten, smooth
from tests.helpers.streams import LIMIT_S

COUNT = 11
FILES = [png(noise(9 + n % 3, 8 + n % 4, seed=n)) for n in range(COUNT)]
EXACT = A.Augment(
    [A.Decode(), A.Crop(6, A.Uniform(0, 1), A.Uniform(0, 1)), A.Flip(), A.Normalize(9.0, 2.0)]
)
ROTTEN = rotten(FILES[0])
SHUFFLES = [None, True, Shuffle(8, 3)]


def gpu_count() -> int:
    """Return the number of GPUs that DALI can use; 0 without a driver."""
    try:
        return int(backend.GetCUDADeviceCount())
    except RuntimeError:
        return 0


class Pictures:
    """(file, its index); `bad` ones are rotten."""

    def __init__(self, *bad: int) -> None:
        self._bad = bad

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return (ROTTEN if index in self._bad else FILES[index]), np.int64(index)


def runner_of(source: Any = None, **options: Any) -> FeedRunner:
    given: dict[str, Any] = {
        "batch_size": 4,
        "seed": 5,
        "augment": EXACT,
        "stall_timeout_s": LIMIT_S,
    } | options
    given["augment"] = replace(given["augment"], on=given.pop("on", "dali-cpu"))
    return FeedRunner(Pictures() if source is None else source, **given)


def taken(runner: FeedRunner, most: int = 99) -> list[Any]:
    found = []
    for batch in runner:
        found.append(tuple(np.array(leaf) for leaf in batch))
        if len(found) == most:
            break
    return found


def same(one: list[Any], other: list[Any]) -> bool:
    assert [len(labels) for _, labels in one] == [len(labels) for _, labels in other]
    return all(
        np.array_equal(a, b)
        for mine, its in zip(one, other, strict=True)
        for a, b in zip(mine, its, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{}, {"threads": 3}, {"processes": 1}, {"shuffle": True, "last_batch": "drop"}]
)
def test_the_same_batches_as_with_opencv(how: dict[str, Any]) -> None:
    with (
        runner_of(epochs=2, **how) as dali,
        runner_of(on="producers", epochs=2, **how) as opencv,
    ):
        mine, its = taken(dali), taken(opencv)
        assert dali.snapshot().consumed.busy_s > 0
    for (images, labels), (others, theirs) in zip(mine, its, strict=True):
        assert images.dtype == np.float32
        assert np.allclose(images, others, atol=1e-4)
        assert np.array_equal(labels, theirs)


@pytest.mark.parametrize("shuffle", SHUFFLES, ids=str)
def test_a_state_is_behind_what_was_handed_out_and_not_what_is_in_flight(shuffle: Any) -> None:
    with runner_of(epochs=2, shuffle=shuffle) as runner:
        whole = taken(runner)
    for count in range(len(whole)):
        with runner_of(epochs=2, shuffle=shuffle) as runner:
            had = taken(runner, count) if count else []
            state = json.loads(json.dumps(runner.state()))
        assert state["batches"] == len(had) == count
        with runner_of(epochs=2, shuffle=shuffle).restore(state) as runner:
            assert same(taken(runner), whole[count:])


def test_runs_and_epochs_end_where_they_should() -> None:
    with runner_of() as runner:
        assert [len(taken(runner)) for _ in range(3)] == [3, 3, 3]
    with runner_of(epochs=2) as runner:
        assert [[len(y) for _, y in epoch] for epoch in runner.epochs()] == [[4, 4, 3], [4, 4, 3]]
    with runner_of(epochs=2) as runner:
        assert [next(len(y) for _, y in epoch) for epoch in runner.epochs()] == [4, 4], "left early"


def test_arrays_stay_and_are_aligned() -> None:
    with runner_of() as runner:
        batches = iter(runner)
        images, labels = next(batches)
        before, pointer = images.copy(), images.ctypes.data
        next(batches)
        assert np.array_equal(images, before)
        assert pointer % 64 == 0, "frameworks take it without a copy"
        assert labels.tolist() == [0, 1, 2, 3]


def test_batches_outlive_the_runner() -> None:
    with runner_of() as runner:
        kept = list(runner)
    with runner_of() as runner:
        assert same(taken(runner), kept)


def test_a_stop_is_heard_at_once() -> None:
    runner = runner_of()
    next(iter(runner))
    runner.stop()
    with pytest.raises(FeedStopped):
        next(iter(runner))


def test_producers_that_fail_do_so_behind_what_they_made() -> None:
    class Broken(Pictures):
        def __getitem__(self, index: int) -> Any:
            if index == 9:
                raise ValueError("gone")
            return super().__getitem__(index)

    with runner_of(Broken()) as runner, pytest.raises(ProducerFailed, match="gone"):
        found = []
        for _, labels in runner:
            found.append(len(labels))
    assert found == [4, 4]


@pytest.mark.parametrize("bad", [0, 5, 10])
def test_an_image_that_only_dali_finds_bad_is_named(bad: int) -> None:
    header = header_of(ROTTEN, A.Decode(), name="record")
    assert header.format == "PNG", "what producers look at is in order"
    with (
        runner_of(Pictures(bad)) as runner,
        pytest.raises(ProducerFailed, match=f"record {bad} of") as caught,
    ):
        taken(runner)
    assert isinstance(caught.value.__cause__, BadImage)


def test_it_is_left_out_and_counted() -> None:
    with runner_of(Pictures(1, 6), on_error="skip") as runner:
        found = [labels.tolist() for _, labels in taken(runner)]
        assert runner.snapshot().consumed.errors == 2
        state = runner.state()
    assert found == [[0, 2, 3], [4, 5, 7], [8, 9, 10]]
    assert state["records"] == COUNT, "those left out were had"


def test_more_than_are_allowed_end_the_feed() -> None:
    with (
        runner_of(Pictures(1, 6), on_error=Skip(limit=1)) as runner,
        pytest.raises(ProducerFailed, match="record 6"),
    ):
        taken(runner)


def test_images_of_many_sizes_need_a_size_or_a_pad() -> None:
    plain = A.Augment([A.Decode()])
    with (
        runner_of(augment=plain) as runner,
        pytest.raises(SpecError, match=r"Resize, Crop or RandomResizedCrop, or set pad="),
    ):
        taken(runner)
    with (
        runner_of(augment=plain, pad=7) as runner,
        runner_of(augment=plain, pad=7, on="producers") as opencv,
    ):
        assert same(taken(runner), taken(opencv))


def test_sources_of_batches_and_iterators() -> None:
    def batches() -> Any:
        for first in range(0, COUNT, 4):
            yield (
                np.array(FILES[first : first + 4], object),
                np.arange(first, min(first + 4, COUNT)),
            )

    with (
        runner_of(batches, batch_size=None) as runner,
        runner_of(batches, batch_size=None, on="producers") as opencv,
    ):
        assert same(taken(runner), taken(opencv))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pad": Pad(lengths=True)}, r"Pad\(lengths=True\)"),
        ({"dtypes": "float32"}, "dtypes="),
    ],
    ids=["lengths", "dtypes"],
)
def test_what_cannot_be_done_is_refused_at_the_start(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        runner_of(**options)


def test_no_gpu_is_one_sentence() -> None:
    if gpu_count():
        pytest.skip("there is one")
    with runner_of(on="dali-gpu") as runner, pytest.raises(OptionError, match="no GPU"):
        taken(runner)


def test_nothing_is_copied_on_the_host() -> None:
    """DALI reads a batch's memory in place: it sees a value that is written after `start`."""
    spec = A.Augment([A.Flip(0.0)], on="dali-cpu")
    _, packed, _ = packed_batch(spec, [np.zeros((300, 300, 3), np.uint8)] * 8, range(8))
    pipe = DaliQueue(spec, FeedOptions(augment=spec))._pipe_for(packed)
    feed_input = pipe._pipeline.feed_input  # type: ignore[attr-defined]
    fed: list[Any] = []

    def feed(name: str, data: Any, **how: Any) -> None:
        feed_input(name, data, **how)
        fed.append(data)
        for sample in packed.samples[0]:
            sample[...] = 9

    pipe._pipeline.feed_input = feed  # type: ignore[attr-defined]
    pipe.start(packed)
    (made,) = pipe.finish()
    assert fed
    assert (made == 9).all()


def test_without_dali_one_sentence_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['nvidia.dali'] = None\nfrom fastfeed import FeedRunner, "
        "MissingExtra, augment as A\ntry: FeedRunner([b''], batch_size=1, "
        "augment=A.Augment([A.Flip()], on='dali-cpu'))\nexcept MissingExtra as error: "
        "print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("pip install 'fastfeed[dali]'")


@pytest.mark.gpu
def test_on_a_gpu_the_same_images() -> None:
    torch = pytest.importorskip("torch")
    if not gpu_count():
        pytest.skip("needs an NVIDIA GPU")
    spec = A.Augment(
        [A.Decode(), A.RandomResizedCrop(32), A.Flip(), A.Normalize(9.0, 2.0), A.Layout("CHW")]
    )

    class Photos(Pictures):
        def __getitem__(self, index: int) -> Any:
            return jpeg(smooth(60 + index, 80, seed=index)), index

    with (
        runner_of(Photos(), augment=spec, on="dali-gpu") as runner,
        runner_of(Photos(), augment=spec) as cpu,
    ):
        for (images, _), (others, _) in zip(runner, cpu, strict=True):
            assert torch.from_dlpack(images).is_cuda
            assert np.abs(np.asarray(images) - others).mean() < 2

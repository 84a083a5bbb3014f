"""Feeds that augment in their producers: the same images for any number of producers, and the
handling of damaged ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("cv2")
import cv2

from fastfeed import FeedRunner, OptionError, Pad, Skip, SpecError, Worker
from fastfeed import augment as A
from fastfeed.errors import ProducerFailed
from tests.augment.pictures import jpeg, noise, png, smooth
from tests.helpers.feeds import Readable
from tests.helpers.streams import LIMIT_S

COUNT, SIZE = 22, 4
FILES = [png(noise(9 + n % 3, 8 + n % 4, seed=n)) for n in range(COUNT)]
TRUNCATED = jpeg(smooth(30, 30))[:-20]
SPEC = A.Augment(
    [
        *(A.Decode(), A.RandomResizedCrop(6), A.Flip(0.5, 0.5), A.Hue(A.Uniform(-90, 90))),
        *(A.Erase(), A.Normalize(127.5, 127.5)),
    ]
)
PLAIN = A.Augment([A.Decode(), A.RandomResizedCrop(6), A.Flip()])
MIXES = [(0, 3), (2, 1), (1, 2)]
IN_PROCESSES = pytest.param((2, 1), marks=pytest.mark.slow)


class Indexed:
    """An indexable of (file, its index)."""

    def __init__(self, files: list[bytes]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        return self._files[index], index


def batches() -> Iterator[Any]:
    for first in range(0, COUNT, SIZE):
        rows = range(first, min(first + SIZE, COUNT))
        yield [FILES[n] for n in rows], np.array(rows)


def in_turn(worker: Worker) -> Iterator[Any]:
    yield from list(batches())[worker.index :: worker.count]


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "indexable": (Indexed(FILES), {"batch_size": SIZE}),
    "batches by index": (list(batches()), {"records": False}),
    "iterable of records": (
        Readable(lambda: zip(FILES, range(COUNT), strict=True)),
        {"records": True, "batch_size": SIZE},
    ),
    "iterable": (Readable(batches), {}),
}


def run(source: Any, mix: tuple[int, int], *, epochs: int = 1, **options: Any) -> list[Any]:
    """Return copies of all batches of so many epochs."""
    given = {"augment": SPEC, "seed": 5, "stall_timeout_s": LIMIT_S, **options}
    with FeedRunner(source, processes=mix[0], threads=mix[1], **given) as runner:
        return [(x.copy(), y.copy()) for _ in range(epochs) for x, y in runner]


def by_label(batches: list[Any]) -> dict[int, bytes]:
    """Return the image of each record by its label, which is a number."""
    return {
        int(label): image.tobytes()
        for images, labels in batches
        for image, label in zip(images, labels, strict=True)
    }


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        (a == c).all() and (b == d).all() for (a, b), (c, d) in zip(one, other, strict=True)
    )


@pytest.mark.slow
@settings(max_examples=12, phases=(Phase.explicit, Phase.generate))
@given(st.sampled_from(sorted(KINDS)), st.sampled_from(MIXES), st.integers(0, 3), st.booleans())
def test_a_seed_gives_the_same_images_whoever_makes_them(
    kind: str, mix: Any, seed: int, shuffled: bool
) -> None:
    source, options = KINDS[kind]
    options = {**options, "seed": seed}
    if kind == "indexable":
        options["shuffle"] = shuffled
    alone = run(source, (0, 1), epochs=2, **options)
    assert same(alone, run(source, mix, epochs=2, **options))
    first, second = alone[: len(alone) // 2], alone[len(alone) // 2 :]
    assert not same(first, second), "every epoch draws its own"
    assert not same(alone, run(source, (0, 1), epochs=2, **{**options, "seed": seed + 9}))


@pytest.mark.slow
@settings(max_examples=6, phases=(Phase.explicit, Phase.generate))
@given(st.sampled_from(sorted(KINDS)), st.sampled_from(MIXES), st.integers(0, 3))
def test_so_it_does_in_any_order(kind: str, mix: Any, seed: int) -> None:
    source, options = KINDS[kind]
    options = {**options, "augment": PLAIN, "seed": seed}
    assert by_label(run(source, mix, order="any", **options)) == by_label(
        run(source, (0, 1), **options)
    )


@pytest.mark.slow
@pytest.mark.parametrize("mix", [(2, 1), (1, 2)], ids=str)
def test_streams_of_a_callable_draw_by_their_number(mix: tuple[int, int]) -> None:
    options = {"augment": PLAIN, "batch_size": SIZE}
    assert by_label(run(in_turn, mix, **options)) == by_label(run(in_turn, (0, 2), **options))


def test_each_row_draws_its_own_and_so_does_each_batch() -> None:
    def stream() -> Iterator[Any]:
        yield FILES[:1] * 9, np.arange(9)
        yield FILES[:1] * 9, np.arange(9, 18)

    drawn = by_label(run(stream, (0, 1), augment=PLAIN))
    assert drawn == by_label(run(stream, (0, 1), augment=PLAIN))
    assert len(set(drawn.values())) > 14


# of iterables, which is no news here
@pytest.mark.filterwarnings("ignore:the state is .* items into the epoch")
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize(
    ("before", "after"),
    [pytest.param((0, 1), (1, 1), marks=pytest.mark.slow), ((0, 3), (0, 1))],
    ids=str,
)
def test_a_restored_run_goes_on_with_the_same_images(kind: str, before: Any, after: Any) -> None:
    source, options = KINDS[kind]
    options = {**options, "augment": SPEC, "seed": 5, "stall_timeout_s": LIMIT_S}
    whole = run(source, (0, 1), **options)
    with FeedRunner(source, processes=before[0], threads=before[1], **options) as runner:
        iterator = iter(runner)
        resumed = [tuple(leaf.copy() for leaf in next(iterator)) for _ in range(2)]
        state = json.loads(json.dumps(runner.state()))
    with FeedRunner(source, processes=after[0], threads=after[1], **options) as runner:
        resumed += [(x.copy(), y.copy()) for x, y in runner.restore(state)]
    assert same(whole, resumed)


def test_a_state_of_other_operations_is_refused_with_what_differs() -> None:
    source, options = KINDS["indexable"]
    with FeedRunner(source, augment=PLAIN, seed=1, **options) as runner:
        next(iter(runner))
        state = runner.state()
    other = A.Augment([A.Decode(), A.RandomResizedCrop(7), A.Flip()])
    with FeedRunner(source, augment=other, seed=1, **options) as runner:
        with pytest.raises(
            OptionError,
            match=r"augment\[1\] was .RandomResizedCrop\(size=\(6, 6\).* and is .Rand.*7, 7",
        ) as caught:
            runner.restore(state)
        assert "augment[0]" not in str(caught.value)
    with (
        FeedRunner(source, seed=1, **options) as runner,
        pytest.raises(OptionError, match=r"augment\[0\] was .Decode.* and is None"),
    ):
        runner.restore(state)
    with FeedRunner(source, augment=PLAIN, seed=1, threads=2, **options) as runner:
        assert len(list(runner.restore(state))) == COUNT // SIZE


def test_a_transform_comes_first() -> None:
    def read(index: int) -> Any:
        return FILES[index], index

    with FeedRunner(range(COUNT), transform=read, augment=PLAIN, seed=5, batch_size=SIZE) as runner:
        batches = [(x.copy(), y.copy()) for x, y in runner]
    assert same(batches, run(Indexed(FILES), (0, 1), augment=PLAIN, batch_size=SIZE))


def test_pads_and_lengths_are_of_augmented_records() -> None:
    spec = A.Augment([A.Decode(), A.Resize(shorter=4)])
    options: Any = {"batch_size": COUNT, "pad": Pad(lengths=True)}
    with FeedRunner(Indexed(FILES), augment=spec, **options) as runner:
        ((images, _), (shapes, _)) = next(iter(runner))
    assert (shapes[:, :2].min(1) == 4).all() and images.shape[1:] == (*shapes[:, :2].max(0), 3)
    with pytest.raises(SpecError, match="records of varying shape"):
        run(Indexed(FILES), (0, 1), augment=spec, batch_size=COUNT)


@pytest.mark.parametrize(("mix", "expected"), [((0, 1), 3), ((0, 2), 1), ((1, 1), 1)], ids=str)
def test_opencv_starts_no_threads_where_there_are_other_producers(
    mix: tuple[int, int], expected: int
) -> None:
    def counted(file: bytes) -> Any:
        import cv2

        return file, cv2.getNumThreads()

    before = cv2.getNumThreads()
    cv2.setNumThreads(3)
    try:
        batches = run(FILES, mix, augment=PLAIN, transform=counted, records=True, batch_size=SIZE)
        assert {int(count) for _, counts in batches for count in counts} == {expected}
        assert cv2.getNumThreads() == (3 if mix != (0, 2) else 1)
    finally:
        cv2.setNumThreads(before)


def damaged(*places: int) -> list[bytes]:
    return [TRUNCATED if n in places else data for n, data in enumerate(FILES)]


@pytest.mark.parametrize("mix", [(0, 1), IN_PROCESSES], ids=str)
def test_a_bad_image_is_named(mix: tuple[int, int]) -> None:
    with pytest.raises(
        ProducerFailed, match=r"record 6 of batch 1 raised BadImage: record\[0\]: truncated JPEG"
    ):
        run(Indexed(damaged(6)), mix, augment=PLAIN, batch_size=SIZE)


@pytest.mark.parametrize("mix", [(0, 1), (0, 3), IN_PROCESSES], ids=str)
def test_a_bad_image_is_left_out_counted_and_told(
    mix: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    options = {
        "augment": PLAIN,
        "batch_size": SIZE,
        "seed": 5,
        "on_error": "skip",
        "stall_timeout_s": LIMIT_S,
    }
    with FeedRunner(Indexed(damaged(6, 13)), processes=mix[0], threads=mix[1], **options) as runner:
        batches = [(x.copy(), y.copy()) for x, y in runner]
    expected = by_label(run(Indexed(FILES), (0, 1), augment=PLAIN, batch_size=SIZE))
    assert by_label(batches) == {
        label: image for label, image in expected.items() if label not in (6, 13)
    }
    # After the end: a worker's own figures may come behind its last batch.
    assert sum(row.errors for row in runner.snapshot().producers) == 2
    assert "skipped: record 6 of batch 1 raised BadImage" in caplog.text


def test_a_bad_image_in_a_whole_batch() -> None:
    def stream(*places: int) -> Any:
        files = damaged(*places)
        rows = [range(first, min(first + SIZE, COUNT)) for first in range(0, COUNT, SIZE)]
        return Readable(lambda: (([files[n] for n in part], np.array(part)) for part in rows))

    with pytest.raises(
        ProducerFailed, match=r"record 2 of batch 1 raised BadImage: record\[0\]: truncated JPEG"
    ):
        run(stream(6), (0, 1), augment=PLAIN)
    whole = by_label(run(stream(), (0, 1), augment=PLAIN))
    cut = run(stream(6), (0, 1), augment=PLAIN, on_error="skip", batch_size=3)
    assert by_label(cut) == {label: image for label, image in whole.items() if label != 6}
    kept = run(stream(6), (0, 1), augment=PLAIN, on_error="skip")
    assert sorted(by_label(kept)) == [n for n in range(COUNT) if n // SIZE != 1], (
        "such batches must be of one size"
    )
    rest = run(stream(*range(4, COUNT)), (0, 1), augment=PLAIN, on_error="skip", batch_size=3)
    assert sorted(by_label(rest)) == [0, 1, 2, 3], "batches without any record are passed over"


def test_more_bad_images_than_allowed_end_the_feed() -> None:
    with pytest.raises(ProducerFailed, match="record 2 of batch 0"):
        run(
            Indexed(damaged(1, 2)),
            (0, 1),
            augment=PLAIN,
            batch_size=SIZE,
            on_error=Skip(limit=1),
        )


def test_what_the_operations_do_not_fit_is_no_bad_image() -> None:
    with pytest.raises(
        SpecError, match="record 0 of batch 0: Decode: record is a int; must be a file's bytes"
    ):
        run(range(COUNT), (0, 1), augment=PLAIN, batch_size=SIZE, on_error="skip")
    with pytest.raises(
        SpecError,
        match="batch 0 is array with .*leading dimension, the number of records. Set records=True",
    ):
        run(iter([3]), (0, 1), augment=PLAIN)
    ragged = iter([(FILES[:3], np.arange(2))])
    with pytest.raises(SpecError, match=r"batch 0 is \(array, array\) with \['2', '3'\] records"):
        run(ragged, (0, 1), augment=PLAIN)


def test_batches_of_images_are_rows_of_records() -> None:
    images = noise(7, 5, 30)[..., None].repeat(3, 3)
    spec = A.Augment([A.Resize(4), A.Flip()])
    (batch,) = list(FeedRunner(iter([images]), augment=spec, seed=1))
    assert batch.shape == (7, 4, 4, 3)
    grey = np.stack([noise(5, 6, 0, seed=n) for n in range(3)])
    (batch,) = list(FeedRunner(iter([grey]), augment=spec, seed=1))
    assert batch.shape == (3, 4, 4, 1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"augment": [A.Flip()]},
            r"augment\.Augment .*, got .*put Augment\(\.\.\.\) around",
        ),
        ({"augment": A.Flip()}, r"fastfeed\.augment\.Augment .*, got Flip.*as in Augment\("),
        ({"augmentation": PLAIN}, "no option 'augmentation': did you mean augment=?"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        FeedRunner(Indexed(FILES), batch_size=2, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 8},
        {"batch_size": 4, "threads": 2},
        {"batch_size": 4, "processes": 2},
    ],
    ids=str,
)
def test_dicts_whose_first_image_is_another_one_are_refused(options: dict[str, Any]) -> None:
    """Which of them is augmented would depend on the record that a producer gets first."""
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    records = [{"left": image, "right": image}] * 4 + [{"right": image, "left": image}] * 4
    spec = A.Augment([A.Flip(1.0)])
    with (
        FeedRunner(records, augment=spec, epochs=20, **options) as runner,
        pytest.raises(SpecError, match=r"begin with '\w+' (and with|instead of) '\w+'.*images="),
    ):
        list(runner)
    spec = A.Augment([A.Flip(1.0)], images="left")
    with FeedRunner(records, batch_size=8, augment=spec) as runner:
        batch = next(iter(runner))
    assert (batch["left"] == image[:, ::-1]).all() and (batch["right"] == image).all()

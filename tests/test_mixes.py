"""Every mix of processes and threads delivers what the source has, unchanged."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from fastfeed import FeedStopped, Worker
from tests.helpers.batches import (
    Leaf,
    Pair,
    make,
    same,
    templates,
)
from tests.helpers.feeds import Readable, chunks, ids_of
from tests.helpers.mixes import (
    MIXES,
    Named,
    name,
    pair,
    producers,
    runner_of,
    told,
)

ROOT = Path(__file__).parents[1]
in_every_mix = pytest.mark.parametrize("mix", MIXES, ids=name)


def batches_of(source: Any, mix: tuple[int, int], **options: Any) -> list[Any]:
    with runner_of(source, mix, **options) as runner:
        return list(runner)


@in_every_mix
def test_batches_are_cut_and_the_remainder_is_dropped_when_asked(mix: tuple[int, int]) -> None:
    for source, options in (
        (Readable(lambda: chunks(50, 4)), {}),
        (Readable(lambda: map(pair, range(50))), {"records": True}),
    ):
        batches = batches_of(source, mix, batch_size=7, last_batch="drop", epochs=2, **options)
        assert [len(ids) for ids, _ in batches] == [7] * 14
        assert ids_of(batches) == [*range(49), *range(49)]


@in_every_mix
def test_an_iterator_has_no_second_pass(mix: tuple[int, int]) -> None:
    with runner_of(chunks(8, 4), mix) as runner:
        assert ids_of(runner) == list(range(8))
        with pytest.raises(FeedStopped, match="is an iterator and has ended"):
            list(runner)


@in_every_mix
def test_a_transform_is_told_who_it_works_for(mix: tuple[int, int]) -> None:
    with runner_of(Readable(lambda: range(40)), mix, transform=told, epochs=2, seed=3) as runner:
        passes = [np.concatenate(list(runner)) for _ in range(2)]
    records = np.concatenate(passes)
    item, index, count, seed, epoch, drawn = records.T
    assert item.tolist() == [*range(40)] * 4
    assert epoch.tolist() == [e for e in range(4) for _ in range(40)]
    assert set(seed) == {3}
    assert set(count) == {producers(mix)}
    assert set(index) <= set(range(producers(mix)))
    assert len(set(drawn)) == len(drawn), "two producers, or two epochs, draw the same"


EVERYTHING = {
    "numbers": [
        Leaf(dtype, (2,))
        for dtype in ("i1", "u1", "i4", "i8", "f2", "f4", "f8", "c8", "?", ">i4", ">f8")
    ],
    ("a", 1): (Leaf("S4"), Leaf("O"), Leaf("O", (2, 1))),
    3: Pair(Leaf("f4", (3, 0)), {"scalar": Leaf("f8"), "one": (Leaf("u1", (1, 1)),)}),
}
ONLY_NUMBERS = {"numbers": EVERYTHING["numbers"], 3: EVERYTHING[3]}


@pytest.mark.slow
@in_every_mix
@pytest.mark.parametrize("template", [EVERYTHING, ONLY_NUMBERS], ids=["described", "laid out"])
def test_batches_arrive_in_their_structure(template: Any, mix: tuple[int, int]) -> None:
    """Sizes grow and shrink, and include batches of no record and of one."""
    rows = [1, 3, 0, 90, 2, 400, 1, 0, 5000, 7]
    wanted = [make(template, [i] * n) for i, n in enumerate(rows)]
    delivered = batches_of(wanted, mix, records=False, order="any")
    assert len(delivered) == len(rows) - 2
    by_size = {len(batch[3].image): batch for batch in delivered}
    assert len(by_size) == len(set(rows)) - 1
    assert all(any(same(batch, want) for want in wanted) for batch in delivered)


@pytest.mark.parametrize("mix", [(0, 1), (0, 3), (1, 1)], ids=name)
@settings(max_examples=10)
@given(template=templates)
def test_any_structure_arrives_as_it_was(mix: tuple[int, int], template: Any) -> None:
    wanted = [make(template, range(i, i + 3)) for i in range(4)]
    assert all(map(same, batches_of(iter(wanted), mix), wanted))


class Here(Named):
    """A named tuple that this very module defines."""


@pytest.mark.parametrize("kind", [Named, Here])
def test_named_tuples_come_back_as_the_same_class(kind: Any) -> None:
    batches = [kind(np.arange(3), {"x": np.zeros(3)})] * 2
    for source in (lambda: iter(batches), iter(batches)):
        assert all(type(batch) is kind for batch in batches_of(source, (1, 1)))


MAIN = """
import sys
from collections import namedtuple
from typing import NamedTuple
import numpy as np
from fastfeed import FeedRunner

assert __name__ == "__main__"
if "stands for a side effect" in sys.argv:
    print("the main module runs", flush=True)
class Point(NamedTuple):
    x: object
    y: object
class Item:
    def __init__(self, i): self.i = i
    def batch(self, k): return Point(np.array([self.i + k]), np.array([self.i]))
class Source:
    step = 10
    def batches(self): return (Item(i).batch(self.step) for i in range(3))
bias = 5
def transform(item): return item.batch(bias)
numbers = []
for source, options in (
    (Source().batches, {}),
    (lambda: Source().batches(), {}),
    (iter([Item(i) for i in range(3)]), {"transform": transform}),
    ([Item(i) for i in range(3)], {"transform": lambda i: transform(i), "records": False}),
    (iter([Point(np.array([i]), np.array([i])) for i in range(3)]), {}),
):
    for batch in FeedRunner(source, processes=1, stall_timeout_s=60, **options):
        assert type(batch) is Point, type(batch)
        numbers.append(int(batch.x[0]))
print(numbers)
"""


def test_what_lives_in_the_main_module_works_and_it_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(MAIN)
    call = [sys.executable, str(script), "stands for a side effect"]
    done = subprocess.run(
        call, capture_output=True, text=True, timeout=200, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    )
    assert done.stdout.splitlines() == [
        "the main module runs",
        str([10, 11, 12] * 2 + [5, 6, 7] * 2 + [0, 1, 2]),
    ]
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.slow
@in_every_mix
def test_leaves_are_cast_in_the_producers(mix: tuple[int, int]) -> None:
    """A leaf of a batch may be cast into other memory while another stays in place."""

    def filled(worker: Worker) -> Iterator[Any]:
        for i in range(worker.index, 9, worker.count):
            x, y = worker.empty((np.zeros((2, 3)), np.zeros(2, int)))
            x[:], y[:] = i / 2, i
            yield x, y

    rows = [(np.full(3, i / 2), i) for i in range(18)]
    for source, options in ((rows, {"batch_size": 2}), (filled, {})):
        for dtypes in ("float32", (ml_dtypes.bfloat16, "int16")):
            delivered = batches_of(source, mix, dtypes=dtypes, **options)
            kinds = (
                (np.float32, np.int64) if dtypes == "float32" else (ml_dtypes.bfloat16, np.int16)
            )
            assert {(x.dtype, y.dtype) for x, y in delivered} == {tuple(map(np.dtype, kinds))}
            halves = [
                (float(x) * 2, int(y))
                for xs, ys in delivered
                for x, y in zip(xs[:, 0], ys, strict=True)
            ]
            assert all(half == number for half, number in halves)
            assert len(halves) == 18


@in_every_mix
def test_records_of_any_length_are_padded(mix: tuple[int, int]) -> None:
    words = [{"ids": np.arange(n), "text": b"w" * n + b"\0"} for n in (2, 2, 3, 1, 0, 5, 4)]
    delivered = batches_of(words, mix, batch_size=2, pad=-1)
    assert [batch["ids"].tolist() for batch in delivered] == [
        [[0, 1], [0, 1]],
        [[0, 1, 2], [0, -1, -1]],
        [[-1] * 5, [0, 1, 2, 3, 4]],
        [[0, 1, 2, 3]],
    ]
    assert [text for batch in delivered for text in batch["text"]] == [
        word["text"] for word in words
    ]

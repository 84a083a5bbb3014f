"""Loops over torch's DataLoader, as they are and seen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fastfeed.diagnose.hooks import torch as hook
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.steps.timeline import Timeline

torch = pytest.importorskip("torch")
data: Any = pytest.importorskip("torch.utils.data")
LIMIT_S = 200


class Numbers(data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)), index


@pytest.fixture
def log() -> Iterator[HookLog]:
    """Under observation."""
    found = HookLog(Timeline())
    before = data.dataloader._BaseDataLoaderIter.__next__
    undo = hook.install(data.dataloader, found)
    yield found
    undo()
    assert data.dataloader._BaseDataLoaderIter.__next__ is before


def taken(loader: Any) -> list[int]:
    return [n for _, numbers in loader for n in numbers.tolist()]


def test_the_same_as_without(log: HookLog) -> None:
    loader = data.DataLoader(
        Numbers(), batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    again = data.DataLoader(
        Numbers(), batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    iterator = iter(loader)
    assert type(iterator) is data.dataloader._SingleProcessDataLoaderIter
    assert len(iterator) == 3
    seen = taken(iterator)
    assert iterator._num_yielded == 3
    log.active = False
    assert seen == taken(again)
    (loop,) = log.timeline.loops.values()
    assert (loop.kind, loop.name, loop.buffer, len(loop.steps)) == (
        "torch",
        "DataLoader(num_workers=0)",
        0,
        3,
    )
    assert [tuple(leaf) for leaf in loop.leaves] == [
        ("batch[0]", "float32", (5, 3), "torch.Tensor"),
        ("batch[1]", "int64", (5,), "torch.Tensor"),
    ]
    assert loop.where.startswith("test_hooks_torch.py:")


WORKERS = """
import sys
from torch.utils import data
from fastfeed.diagnose.hooks import patches
from fastfeed.diagnose.hooks import torch as hook
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.steps.timeline import Timeline

persistent, log = sys.argv[1] == "persistent", HookLog(Timeline())
patches.MIN_MARK_S = 0.0
hook.install(data.dataloader, log)
options = {"persistent_workers": persistent, "prefetch_factor": 2}
loader = data.DataLoader(range(12), batch_size=2, num_workers=2, **options)
for _ in range(2):
    assert [n for numbers in loader for n in numbers.tolist()] == list(range(12))
(loop,), marks = log.timeline.loops.values(), log.timeline.marks
assert (loop.buffer, len(loop.steps)) == (4, 12)
# new workers end in the request that finds no more batches, and take longer than a millisecond
ends = [mark for mark in marks if mark.kind == "end"]
marks = [mark for mark in marks if mark.kind != "end"]
assert persistent or [mark.start_s for mark in ends] == [loop.steps[n].end_s for n in (5, 11)]
assert [mark.kind for mark in marks] == ["start", "start", "epoch"]
assert marks[0].end_s <= loop.steps[0].begin_s
assert loop.steps[5].end_s <= marks[1].start_s < marks[1].end_s <= loop.steps[6].begin_s
if persistent:
    steps = loader._iterator.__dict__[patches.RECORDER]
    assert not steps.source.reuses_memory and steps.source.idle() is True
"""


@pytest.mark.parametrize("kind", ["persistent", "new"])
def test_workers(kind: str) -> None:
    """They start for each epoch, or are told that it begins: the loop waits for either.

    They are forked: a process of its own has no threads of other tests, whose locks they inherit.
    """
    done = subprocess.run(
        [sys.executable, "-c", WORKERS, kind],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_version_that_nobody_knows(log: HookLog) -> None:
    class Strange(data.dataloader._BaseDataLoaderIter):  # type: ignore[misc]
        def __init__(self) -> None:
            self._sampler_iter = iter(())
            self._num_yielded = 0
            self._dataset_kind = None

        def _next_data(self) -> int:
            return 7

    strange = Strange()
    strange._profile_name = "x"
    assert next(strange) == 7
    assert "DataLoader makes ahead" in log.missing[0]
    log.active = False
    assert next(strange) == 7

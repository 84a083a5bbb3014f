"""Training loops of libraries around a DataLoader: Accelerate, Lightning and Transformers, each by
a stand-in that requests its batches as the library does."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from fastfeed.diagnose.hooks import torch as loaders
from fastfeed.diagnose.hooks import torch_modes
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.steps.timeline import Loop, Timeline

torch = pytest.importorskip("torch")
data: Any = pytest.importorskip("torch.utils.data")

EPOCHS, BATCHES, HELD_OUT = 3, 6, 2
LIBRARY = '''
from torch.utils.data import DataLoader


class DataLoaderShard(DataLoader):
    """Accelerate: one batch ahead, to know which one is the last."""

    def __iter__(self):
        iterator = super().__iter__()
        current = next(iterator)
        while True:
            try:
                following = next(iterator)
            except StopIteration:
                yield current
                return
            yield current
            current = following


class Fetcher:
    """Lightning: one batch ahead in an object of its own."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        self.iterator = iter(self.loader)
        self.batches = [next(self.iterator)]
        return self

    def __next__(self):
        if not self.batches:
            raise StopIteration
        batch = self.batches.pop(0)
        try:
            self.batches.append(next(self.iterator))
        except StopIteration:
            pass
        return batch


class Trainer:
    def __init__(self, model, train, held_out, within):
        self.model, self.train_loader, self.eval_loader = model, train, held_out
        self.optimizer = torch_sgd(model.parameters(), lr=0.1)
        self.within = within  # evaluate within an epoch, too

    def training_step(self, batch):
        self.model.train()
        self.model(batch).sum().backward()
        self.optimizer.step()

    def train(self, epochs):
        for _ in range(epochs):
            for step, batch in enumerate(self.train_loader):
                self.training_step(batch)
                if step == 2 and self.within:
                    self.evaluate()
            self.evaluate()

    def evaluate(self):
        self.model.eval()
        for batch in self.eval_loader:
            self.model(batch)
'''


class Numbers(data.Dataset):  # type: ignore[misc]
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[HookLog]:
    monkeypatch.setattr(torch_modes, "MIN_MARK_S", 0.0)
    found = HookLog(Timeline())
    undos = [
        loaders.install(data.dataloader, found),
        torch_modes.install(importlib.import_module("torch.optim.optimizer"), found),
    ]
    yield found
    for undo in undos:
        undo()
    assert found.missing == []


def library() -> dict[str, Any]:
    """The stand-ins, as modules of an installed package."""
    names: dict[str, Any] = {"torch_sgd": torch.optim.SGD, "__name__": "library"}
    exec(compile(LIBRARY, "/nowhere/site-packages/library/loops.py", "exec"), names)
    return names


def trained(kind: str, *, within: bool) -> None:
    names = library()
    make = names["DataLoaderShard"] if kind == "Accelerate" else data.DataLoader
    wrap = names["Fetcher"] if kind == "Lightning" else lambda loader: loader
    train, held_out = (make(Numbers(2 * n), batch_size=2) for n in (BATCHES, HELD_OUT))
    model = torch.nn.Linear(3, 1)
    names["Trainer"](model, wrap(train), wrap(held_out), within).train(EPOCHS)


def is_within(loop: Loop, log: HookLog, *, until_s: float) -> bool:
    """Whether each step of a loop until then lies in a mark of an evaluation."""
    marks = [mark for mark in log.timeline.marks if mark.kind == "evaluation"]
    return all(
        any(mark.start_s <= step.begin_s and step.end_s <= mark.end_s for mark in marks)
        for step in loop.steps
        if step.end_s < until_s
    )


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("kind", ["Accelerate", "Lightning", "Transformers"])
def test_training_and_evaluation_are_two_loops(kind: str, within: bool, log: HookLog) -> None:
    trained(kind, within=within)
    train, held_out = log.timeline.loops.values()
    assert len(train.steps) == EPOCHS * BATCHES
    assert len(held_out.steps) == EPOCHS * HELD_OUT * (1 + within)
    assert (train.kind, train.name, train.buffer) == ("torch", "DataLoader(num_workers=0)", 0)
    assert train.where.startswith("test_hooks_trainers.py:")
    assert is_within(held_out, log, until_s=train.steps[-1].end_s)
    epochs = [mark for mark in log.timeline.marks if mark.kind == "epoch"]
    assert len(epochs) >= EPOCHS - 1

"""Models that are set to evaluate and to train again."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator

import pytest

from fastfeed.diagnose.hooks import torch_modes
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.steps.timeline import Mark, Timeline
from tests.diagnose.hooked import Clock

torch = pytest.importorskip("torch")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(torch_modes, "time", clock)
    return clock


@pytest.fixture
def log() -> Iterator[HookLog]:
    found, train = HookLog(Timeline()), torch.nn.Module.train
    optimizer = importlib.import_module("torch.optim.optimizer")
    undo = torch_modes.install(optimizer, found)
    yield found
    undo()
    assert torch.nn.Module.train is train
    assert not optimizer._global_optimizer_post_hooks


def model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    made = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    return made, torch.optim.SGD(made.parameters(), lr=0.1)


def evaluate(net: torch.nn.Module, clock: Clock) -> None:
    net.eval()
    clock.advance(3.0)


def test_what_lies_between_two_modes_is_an_evaluation(clock: Clock, log: HookLog) -> None:
    net, optimizer = model()
    for _ in range(2):
        assert net.train() is net and net[1].training
        optimizer.step()
        clock.advance(1.0)
        evaluate(net, clock)
        assert not net[1].training
        evaluate(net, clock)
    net.train()
    begins = [1001.0, 1008.0]
    assert log.timeline.marks == [
        Mark("evaluation", begin_s, begin_s + 6.0, "evaluation in `evaluate`") for begin_s in begins
    ]


def test_a_model_that_is_trained_in_that_mode_is_not_evaluated(clock: Clock, log: HookLog) -> None:
    """Parts of it may be frozen so; and before the first training there is nothing to evaluate."""
    net, optimizer = model()
    net.train()
    net[1].eval()
    clock.advance(1.0)
    optimizer.step()
    net.train()
    log.active = False
    evaluate(net, clock)
    log.active = True
    net.train()
    assert log.timeline.marks == []


def test_a_model_that_is_gone_is_forgotten(clock: Clock, log: HookLog) -> None:
    evaluate(model()[0], clock)
    again, _ = model()
    again.train()
    assert log.timeline.marks == []


class Equal(torch.nn.Module):
    """A model that is compared by value, and has no hash."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    __hash__ = None  # type: ignore[assignment]


def test_a_model_without_a_hash_is_left_alone(log: HookLog) -> None:
    net = Equal()
    assert net.eval() is net and not net.training
    assert "the mode of a model" in " ".join(log.missing)


def test_updates_of_the_busiest_optimizer_are_the_beats_of_a_thread(log: HookLog) -> None:
    (_, often), (_, rarely) = model(), model()
    for number in range(5):
        often.step()
        if number == 3:
            rarely.step()
    times, lines, *_ = log.beats_of(threading.get_ident())
    first = test_updates_of_the_busiest_optimizer_are_the_beats_of_a_thread.__code__.co_firstlineno
    assert len(times) == 5
    assert times == sorted(times)
    assert lines[0] == (__file__, first + 3)
    assert log.beats_of(0)[:2] == ([], ())


def test_lines_that_call_what_is_trained_belong_to_the_step(log: HookLog) -> None:
    """And those that transform data, in modules without parameters, do not."""
    (net, optimizer), data = model(), torch.nn.Flatten()
    for _ in range(2):
        x = data(torch.ones(4, 2))
        out = net(x)
        with torch.no_grad():
            net(x)
        out.sum().backward()
        optimizer.step()
    first = test_lines_that_call_what_is_trained_belong_to_the_step.__code__.co_firstlineno
    assert (__file__, first + 5) in log.step_lines
    assert not {(__file__, first + line) for line in (4, 7)} & log.step_lines


def test_calls_of_models_are_looked_at_for_a_short_time(log: HookLog) -> None:
    net, optimizer = model()
    hooks = importlib.import_module("torch.nn.modules.module")._global_forward_hooks
    optimizer.step()
    assert hooks
    for _ in range(torch_modes.SEEN_CALLS):
        net(torch.ones(4, 2))
    assert not hooks


def test_a_model_whose_output_cannot_be_asked_still_runs(log: HookLog) -> None:
    class Odd:
        @property
        def requires_grad(self) -> bool:
            raise RuntimeError("not to be asked")

    class Net(torch.nn.Module):
        def forward(self) -> Odd:
            return Odd()

    model()[1].step()
    assert isinstance(Net()(), Odd)
    assert "the lines of a step" in " ".join(log.missing)
    assert not log.step_lines

"""Time that the user's callbacks take in a loop that a framework runs."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.sample.callback_parts import callback_parts
from fastfeed.probes.procfs import RUNNING
from tests.diagnose.looking import Recorder, attribution

record = wait = Recorder()
FRAMEWORK = """
def on_train_batch_end(callback):
    callback()
def fit(step, *callbacks):
    step()
    for callback in callbacks:
        on_train_batch_end(callback)
"""


def accelerator() -> None:
    record(40)


def letting_go() -> None:
    wait(40, RUNNING, holder=True)


def monitor() -> None:
    record(10, RUNNING, holder=True)
    scores()


def scores() -> None:
    record(10, RUNNING, holder=True)


def step() -> None:
    record(40)


@pytest.fixture
def fit() -> Iterator[Callable[..., Any]]:
    """A loop of a framework."""
    record.samples.clear()
    names: dict[str, Any] = {}
    exec(compile(FRAMEWORK, f"{sysconfig.get_path('purelib')}/keras/fits.py", "exec"), names)
    yield names["fit"]
    record.samples.clear()


def test_what_callbacks_take_line_by_line(fit: Callable[..., Any]) -> None:
    """The calls of a callback belong to it; other calls of the framework (a step) do not."""
    fit(step, accelerator, monitor)
    parts = callback_parts(record.samples, attribution())
    assert {part.kind for part in parts} == {"host"}
    assert [part.place.function for part in parts] == ["accelerator", "monitor", "monitor"]
    assert [part.share for part in parts] == pytest.approx([0.4, 0.1, 0.1])
    assert [part.busy for part in parts] == [{ev.SLEEP: 1.0}, {ev.PYTHON: 1.0}, {ev.PYTHON: 1.0}]


def test_who_lets_the_lock_go_has_not_held_it(fit: Callable[..., Any]) -> None:
    """The sampler waits for the lock while one callback computes, and gets it when the next one
    begins to wait."""
    fit(step, letting_go, monitor)
    parts = callback_parts(record.samples, attribution())
    assert {part.place.function for part in parts} == {"monitor"}
    assert [part.share for part in parts] == pytest.approx([0.3, 0.3])


def test_no_callbacks_and_too_few_looks(fit: Callable[..., Any]) -> None:
    fit(step)
    assert callback_parts(record.samples, attribution()) == ()
    fit(lambda: None, monitor)
    assert callback_parts(record.samples[-19:], attribution()) == ()

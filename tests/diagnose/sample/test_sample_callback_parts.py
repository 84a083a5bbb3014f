"""Of a loop that a framework goes through, what callbacks of the user's take."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.sample.callback_parts import callback_parts
from fastfeed.probes.procfs import RUNNING
from tests.diagnose.looking import Recorder, cast

LOOK = wait = Recorder()
FRAMEWORK = """
def on_train_batch_end(callback):
    callback()
def fit(step, *callbacks):
    step()
    for callback in callbacks:
        on_train_batch_end(callback)
"""


def accelerator() -> None:
    LOOK(40)


def letting_go() -> None:
    wait(40, RUNNING, holder=True)


def monitor() -> None:
    LOOK(10, RUNNING, holder=True)
    scores()


def scores() -> None:
    LOOK(10, RUNNING, holder=True)


def step() -> None:
    LOOK(40)


@pytest.fixture
def fit() -> Iterator[Callable[..., Any]]:
    """A framework's."""
    LOOK.looks.clear()
    names: dict[str, Any] = {}
    exec(compile(FRAMEWORK, f"{sysconfig.get_path('purelib')}/keras/fits.py", "exec"), names)
    yield names["fit"]
    LOOK.looks.clear()


def test_what_callbacks_take_line_by_line(fit: Callable[..., Any]) -> None:
    """What they call is theirs; what else the framework calls, as the step, is none of it."""
    fit(step, accelerator, monitor)
    parts = callback_parts(LOOK.looks, cast())
    assert {part.kind for part in parts} == {"host"}
    assert [part.place.function for part in parts] == ["accelerator", "monitor", "monitor"]
    assert [part.share for part in parts] == pytest.approx([0.4, 0.1, 0.1])
    assert [part.busy for part in parts] == [{ev.SLEEP: 1.0}, {ev.PYTHON: 1.0}, {ev.PYTHON: 1.0}]


def test_who_lets_the_lock_go_has_not_held_it(fit: Callable[..., Any]) -> None:
    """The sampler waits for it while a callback computes, and has it when the next one begins to
    wait."""
    fit(step, letting_go, monitor)
    parts = callback_parts(LOOK.looks, cast())
    assert {part.place.function for part in parts} == {"monitor"}
    assert [part.share for part in parts] == pytest.approx([0.3, 0.3])


def test_no_callbacks_and_too_few_looks(fit: Callable[..., Any]) -> None:
    fit(step)
    assert callback_parts(LOOK.looks, cast()) == ()
    fit(lambda: None, monitor)
    assert callback_parts(LOOK.looks[-19:], cast()) == ()

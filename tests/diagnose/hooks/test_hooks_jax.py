"""Threads that appear while a backend of JAX is made."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import ModuleType

import pytest

from fastfeed.diagnose.hooks import jax as hook
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.steps.timeline import Timeline


@pytest.fixture
def over() -> Iterator[threading.Event]:
    over, before = threading.Event(), set(threading.enumerate())
    yield over
    over.set()
    for thread in set(threading.enumerate()) - before:
        thread.join()


@pytest.mark.parametrize("fails", [False, True])
def test_only_threads_of_a_backend_run_compiled_programs(
    over: threading.Event, fails: bool
) -> None:
    made: list[threading.Thread] = []

    def start() -> None:
        made.append(threading.Thread(target=over.wait))
        made[-1].start()

    def init_backend(platform: str) -> str:
        start()
        if fails:
            raise RuntimeError("no such platform")
        return platform

    module = ModuleType("xla_bridge")
    module.__dict__["_init_backend"] = init_backend
    log = HookLog(Timeline())
    start()
    undo = hook.install(module, log)
    if fails:
        with pytest.raises(RuntimeError, match="no such platform"):
            module._init_backend("cpu")
    else:
        assert module._init_backend("cpu") == "cpu"
    start()
    undo()
    assert module._init_backend is init_backend
    assert log.computing == {made[1].native_id}

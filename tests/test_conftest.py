"""The check that nothing is left behind detects every kind of thing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from hypothesis import settings

from tests.conftest import KINDS, left_behind


@contextmanager
def a_thread() -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


@contextmanager
def a_child() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE):
        yield


@contextmanager
def a_pipe() -> Iterator[None]:
    ends = os.pipe()
    yield
    for end in ends:
        os.close(end)


@contextmanager
def a_memfd() -> Iterator[None]:
    number = os.memfd_create("fastfeed-test")
    yield
    os.close(number)


@contextmanager
def shared_memory() -> Iterator[None]:
    file = "/dev/shm/fastfeed-test"
    os.close(os.open(file, os.O_CREAT))
    yield
    os.unlink(file)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (a_thread, "thread Thread-"),
        (a_child, "process "),
        (a_pipe, "file descriptor pipe:"),
        (a_memfd, "file descriptor /memfd:fastfeed-test"),
        (shared_memory, "/dev/shm/fastfeed-test"),
    ],
)
def test_it_is_seen_while_it_is_there(
    make: Callable[[], AbstractContextManager[None]], text: str
) -> None:
    before = [kind() for kind in KINDS]
    with make():
        assert any(text in thing for thing in left_behind(before, limit_s=0))
    assert not left_behind(before)


def test_examples_are_the_same_in_each_run_unless_they_explore() -> None:
    assert settings.default is not None
    assert settings.default.derandomize is not bool(os.environ.get("EXPLORE"))
    assert settings.default.print_blob


def test_semaphores_of_others_are_not_ours() -> None:
    before = [kind() for kind in KINDS]
    hold = "import multiprocessing as m; lock = m.get_context('spawn').Lock(); print(1, flush=True)"
    command = [sys.executable, "-c", f"import sys; {hold}; sys.stdin.read()"]
    with subprocess.Popen(
        ["setsid", "--fork", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        found = [thing for thing in KINDS[-1]() - before[-1] if "/sem." in thing]
        assert found and not any(thing in left_behind(before, limit_s=0) for thing in found)

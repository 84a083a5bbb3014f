"""Places of spots in a thread's code: the call, the kind of work, and the owner of the file."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastfeed.diagnose.sample import callee
from fastfeed.probes.places import Places, Spot, without_start


class Probe:
    """Return the spot of its caller."""

    def __init__(self) -> None:
        self.spot: Spot | None = None

    def look(self, *_: object, **__: object) -> Spot:
        frame = sys._getframe(1)
        return frame.f_code, frame.f_lasti

    def __enter__(self) -> Spot:
        return self._above()

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[Spot]:
        return self

    def __next__(self) -> Spot:
        return self._above()

    def _above(self) -> Spot:
        frame = sys._getframe(2)
        return frame.f_code, frame.f_lasti


# Before 3.11 Python does not say which of several calls on a line it is at, so that none is named.
COLUMNS = sys.version_info >= (3, 11)
PROBE = SimpleNamespace(one=Probe())


def in_with() -> Spot:
    with PROBE.one as spot:
        return spot


def in_for() -> Spot:
    for spot in PROBE.one:
        return spot
    raise AssertionError


@pytest.mark.parametrize(
    ("spot", "name"),
    [
        (lambda: PROBE.one.look(1, x=2), "PROBE.one.look"),
        (
            lambda: PROBE.one.look([len(str(i)) for i in range(3)], 1 if PROBE else 2),
            "PROBE.one.look" * COLUMNS,
        ),
        (lambda: PROBE.one.look(*[1], **{}), "PROBE.one.look"),
        (in_with, "__enter__"),
        (in_for, "__next__"),
    ],
)
def test_what_a_spot_calls(spot: Callable[[], Spot], name: str) -> None:
    assert callee.callee(spot()) == name


def test_the_get_of_a_dict_is_not_that_of_a_queue(tmp_path: Path) -> None:
    """The one waits for nothing but the interpreter lock."""
    path = tmp_path / "gets.py"
    calls = (
        "counts.get(word, 0)",
        "batches.get()",
        "batches.get(True, 5)",
        "batches.get(timeout=5)",
    )
    path.write_text("\n".join(calls) + "\n")
    found = [callee.calls_at(str(path), line) for line in range(1, 5)]
    assert found == [(callee.DICT_GET,), *[("batches.get",)] * 3]
    probe = SimpleNamespace(get=PROBE.one.look)
    assert callee.callee(probe.get("word")) == callee.DICT_GET * COLUMNS
    assert callee.callee(probe.get(timeout=5)) == "probe.get" * COLUMNS


def test_a_spot_without_source_calls_nothing_that_is_known() -> None:
    space: dict[str, Any] = {"look": PROBE.one.look}
    exec("def f():\n    return look(1)", space)
    assert callee.callee(space["f"]()) == ""
    assert callee.callee((space["f"].__code__, -1)) == ""


@pytest.mark.parametrize(
    ("function", "file", "calls", "work"),
    [
        ("batches", "data.py", ("np.stack",), "copying"),
        ("batches", "data.py", ("x.astype",), "copying"),
        ("batches", "data.py", ("decode",), ""),
        ("default_collate", "torch/utils/data/_utils/collate.py", (), "copying"),
        ("ones", "numpy/_core/numeric.py", ("multiarray.copyto",), ""),
        ("batches", "data.py", ("pickle.dumps",), "pickling"),
        ("batches", "data.py", ("json.loads",), ""),
        ("dumps", "multiprocessing/reduction.py", ("cls",), "pickling"),
        ("_feed", "multiprocessing/queues.py", ("nwait",), "pickling"),
        ("_feed", "multiprocessing/queues.py", ("wait",), ""),
    ],
)
def test_copying_and_pickling(function: str, file: str, calls: tuple[str, ...], work: str) -> None:
    assert callee.work_of(function, file, calls=calls) == work


def test_calls_on_a_line() -> None:
    line = sys._getframe().f_lineno + 1
    np.stack([np.zeros(2)]).astype("f4")
    assert {"astype", "np.stack", "np.zeros"} <= set(callee.calls_at(__file__, line))
    assert callee.calls_at("/nowhere.py", 3) == ()


def test_whose_file_it_is() -> None:
    places = Places()
    assert places.named("fetch", "<string>", line=1).users
    assert not places.named("<lambda>", "<string>", line=1).users, "as namedtuple makes it"
    for name in (pickle.__file__, np.__file__, callee.__file__, "<frozen runpy>"):
        assert not places.named("run", name, line=1).users
    assert places.file(pickle.__file__) == "pickle.py"
    assert places.file(np.__file__) == "numpy/__init__.py"
    assert places.file(callee.__file__) == "fastfeed/diagnose/sample/callee.py"


def test_stacks_begin_where_the_users_code_does() -> None:
    places = Places()
    run = places.named("run", "/usr/lib/x.py", line=1)._replace(users=False)
    boot = run._replace(function="BaseProcess._bootstrap", file="multiprocessing/process.py")
    mine = run._replace(function="work", users=True)
    assert without_start([run, mine, run]) == (mine, run)
    assert without_start([mine, run, boot, run]) == (run,), (
        "a forked child is not where its parent was"
    )
    assert without_start([run]) == (run,)

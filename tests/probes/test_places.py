"""Places of spots in a thread's code: the call, the kind of work, and the owner of the file."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastfeed.diagnose.sample import copying
from fastfeed.probes.places import Places, Spot, without_start


class Probe:
    """Return the spot of its caller."""

    def look(self, *_: object, **__: object) -> Spot:
        frame = sys._getframe(1)
        return frame.f_code, frame.f_lasti


# Before 3.11 Python does not say which of several calls on a line it is at, so that none is named.
COLUMNS = sys.version_info >= (3, 11)
PROBE = SimpleNamespace(one=Probe())


@pytest.mark.parametrize(
    ("spot", "name"),
    [
        (lambda: PROBE.one.look(1, x=2), "look"),
        (lambda: PROBE.one.look([len(str(i)) for i in range(3)], 1 if PROBE else 2), "look"),
        (lambda: PROBE.one.look(*[1], **{}), "look"),
    ],
)
def test_what_a_spot_calls(spot: Callable[[], Spot], name: str) -> None:
    assert copying.called_at(spot()) == name * COLUMNS


def test_a_spot_without_source_calls_nothing_that_is_known() -> None:
    space: dict[str, Any] = {"look": PROBE.one.look}
    exec("def f():\n    return look(1)", space)
    assert copying.called_at(space["f"]()) == ""
    assert copying.called_at((space["f"].__code__, -1)) == ""


class Copied:
    """Return the spot of whoever copies it."""

    def astype(self) -> Spot:
        frame = sys._getframe(1)
        return frame.f_code, frame.f_lasti

    decode = astype


def default_collate() -> Spot:
    return Copied().decode()


def ones() -> Spot:
    return Copied().astype()


@pytest.mark.parametrize(
    ("spot", "known"),
    [
        (lambda: Copied().astype(), COLUMNS),
        (lambda: Copied().decode(), False),
        (ones, False),  # numpy's own functions call copyto to fill an array
    ],
)
def test_what_copies(spot: Callable[[], Spot], known: bool) -> None:
    assert copying.copies(spot()) == known


def test_a_file_of_functions_that_copy() -> None:
    code, offset = default_collate()
    assert not copying.copies((code, offset))
    assert copying.copies((code.replace(co_filename="torch/utils/data/_utils/collate.py"), offset))


def test_whose_file_it_is() -> None:
    places = Places()
    assert places.named("fetch", "<string>", line=1).users
    assert not places.named("<lambda>", "<string>", line=1).users, "as namedtuple makes it"
    for name in (pickle.__file__, np.__file__, copying.__file__, "<frozen runpy>"):
        assert not places.named("run", name, line=1).users
    assert places.file(pickle.__file__) == "pickle.py"
    assert places.file(np.__file__) == "numpy/__init__.py"
    assert places.file(copying.__file__) == "fastfeed/diagnose/sample/copying.py"


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

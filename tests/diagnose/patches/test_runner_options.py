"""Other options of a FeedRunner that a script has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fastfeed.diagnose.patches.producers import RunnerOptions
from tests.diagnose.patches.patching import Script, applied


@pytest.mark.parametrize(
    ("source", "checked"),
    [
        ("make", True),
        ("lambda: make()", True),
        ("data.make, transform=f", True),
        ("functools.partial(make)", True),
        ("source=make", True),
        ("lambda: (one for one in rows)", True),
        ("unknown.make, processes=1", True),
        ("make, threads=2", False),
        ("lambda worker: make()", False),
        ("lambda *, worker: make()", False),
        ("share", False),
        ("make(), transform=f", False),
    ],
)
def test_more_producers_of_a_stream_must_keep_nothing_between_batches(
    tmp_path: Path, source: str, checked: bool
) -> None:
    """Each producer may read all records: an epoch would miss some and repeat others."""
    text = "def make():\n    while True:\n        yield rows\n\n"
    text += "def share(worker):\n    yield from rows[worker.index :: worker.count]\n\n"
    text += f"run = FeedRunner({source})\n"
    script = Script(tmp_path, text, kind="runner", loop="run =")
    script.calls_of("FeedRunner", "FeedRunner(").advised("processes", "8")
    found = {one.title: one for one in script.proposals(RunnerOptions())}["processes=8"]
    assert (found.single is not None) == checked
    single = applied(text, replace(found, edits=found.single or ()))
    assert single == text.replace("processes=1", "processes=0")


@pytest.mark.parametrize(
    ("options", "advised", "titles"),
    [
        ("", "", ["threads=2", "processes=2"]),
        ("threads=2", "", ["processes=2"]),
        ("threads=2", "threads=8", ["threads=8", "processes=8"]),
        ("threads=2", "processes=8", ["processes=8", "processes=2", "threads=8"]),
        ("processes=2, threads=4", "", []),
        ('threads="auto"', "", []),
        ('threads="auto"', "processes=2", ["processes=2"]),
        ("**found", "", ["processes=2"]),
    ],
)
def test_a_runner_gets_other_numbers_of_producers(
    tmp_path: Path, options: str, advised: str, titles: list[str]
) -> None:
    text = f"run = FeedRunner(make, {options})\nfor x in run:\n    step(x)\n"
    script = Script(tmp_path, text, kind="runner", loop="for x in run:")
    script.calls_of("FeedRunner", "FeedRunner(")
    if advised:
        script.advised(*advised.split("="))
    found = script.proposals(RunnerOptions())
    assert [one.title for one in found] == titles
    assert [one.advice is not None for one in found] == [one == advised for one in titles]
    assert all(applied(text, one) != text for one in found)


def test_two_changes_of_one_call_fit_together(tmp_path: Path) -> None:
    text = "run = FeedRunner(make, threads=1)\nfor x in run:\n    step(x)\n"
    script = Script(tmp_path, text, kind="runner", loop="for x in run:")
    script.calls_of("FeedRunner", "FeedRunner(").advised("threads", "8").advised("order", "any")
    advised = [one for one in script.proposals(RunnerOptions()) if one.title != "processes=8"]
    found = applied(text, *(one for one in advised if one.title != "threads=2"))
    assert 'run = FeedRunner(make, threads=8, order="any")\n' in found


def test_more_batches_wait_for_a_slow_one(tmp_path: Path) -> None:
    text = "run = FeedRunner(make, prefetch=2, threads=4)\nfor x in run:\n    step(x)\n"
    script = Script(tmp_path, text, kind="runner", loop="for x in run:").advised("order", "any")
    script.calls_of("FeedRunner", "FeedRunner(")
    assert "prefetch=None" in script.patched(RunnerOptions(), titled="prefetch")

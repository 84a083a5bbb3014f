"""Other options of a FeedRunner that a script has."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastfeed.diagnose.patches.producers import RunnerOptions
from tests.diagnose.patches.patching import Script, applied


@pytest.mark.parametrize(
    ("source", "advised", "proposed"),
    [
        ("make", "threads", False),
        ("lambda: make()", "threads", False),
        ("make", "processes", False),
        ("make, threads=2", "threads", True),
        ("other, threads=1", "threads", True),
        ("draw", "processes", True),
        ("lambda: draw()", "threads", True),
        ("lambda worker: make()", "processes", True),
        ("lambda *, worker: make()", "processes", True),
        ("share", "processes", True),
        ("make(), transform=f", "processes", True),
        ("data.make, transform=f", "processes", False),
        ("functools.partial(make)", "processes", False),
        ("source=make", "processes", False),
        ("outer", "processes", False),
        ("passes", "processes", False),
        ("lambda: (one for one in rows)", "processes", False),
    ],
)
def test_a_runner_of_one_generator_that_reads_records_in_turn_gets_no_more(
    tmp_path: Path, source: str, advised: str, proposed: bool
) -> None:
    """Each producer would read them all: an epoch would miss records and repeat others."""
    text = "def make():\n    while True:\n        rows.sort()\n        yield rows\n\n"
    text += "def draw():\n    while True:\n        yield rng.random(4)\n\n"
    text += "def share(worker):\n    yield from rows[worker.index :: worker.count]\n\n"
    text += "def outer():\n    return make()\n\n"
    text += "def passes():\n    while True:\n        yield from rows\n\n"
    script = Script(tmp_path, f"{text}run = FeedRunner({source})\n", kind="runner", loop="run =")
    script.calls_of("FeedRunner", "FeedRunner(").advised(advised, "8")
    titles = [one.title for one in script.proposals(RunnerOptions())]
    assert (f"{advised}=8" in titles) == proposed


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

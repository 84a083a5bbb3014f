"""Changes of which only one can be kept: the fastest that is proven, in the time that there is."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fastfeed.diagnose.patches.proposal import Proposal
from fastfeed.diagnose.patches.source_file import Edit
from fastfeed.diagnose.prove.search import Search, more_producers
from fastfeed.diagnose.prove.trial import Result
from fastfeed.errors import StateError
from tests.diagnose.prove.test_search import FakeTrials, proposal, searched


@pytest.mark.parametrize(
    ("gain", "left_s", "kept"), [(1.35, 99, "a"), (1.35, 60, "b"), (1.1, 99, "b")]
)
def test_what_seems_faster_than_what_is_proven_gets_its_proof_if_there_is_time(
    gain: float, left_s: float, kept: str
) -> None:
    """The other one may be as good by the first runs, and its proof is shorter."""

    class Rivals(FakeTrials):
        def rate(self, edits: Sequence[Edit], *, seconds: float, warmup: float) -> Result:
            self.end_s -= seconds
            return super().rate(edits, seconds=seconds, warmup=warmup)

    alone = (Edit("train.py", 0, 1, "alone"),)
    trials = Rivals({"a": gain, "b": 1.2})
    makers = proposal("a", alone=alone, makes=True), proposal("b", makes=True)
    found = searched(trials, *makers, left_s=left_s)
    assert trials.ran[3:5] == [[], ["b"]]
    assert [edit.text for edit in found.edits] == [kept]


@pytest.mark.parametrize("error", [StateError("a file has changed"), KeyboardInterrupt()])
def test_what_is_proven_stays_when_the_proof_of_another_one_breaks_off(
    error: BaseException,
) -> None:
    class Breaking(FakeTrials):
        def rate(self, edits: Sequence[Edit], *, seconds: float, warmup: float) -> Result:
            if [edit.text for edit in edits] == ["a"] and ["a"] in self.ran:
                raise error
            return super().rate(edits, seconds=seconds, warmup=warmup)

    alone = (Edit("train.py", 0, 1, "alone"),)
    trials = Breaking({"a": 1.35, "b": 1.2})
    search = Search(
        trials,  # type: ignore[arg-type]
        [proposal("a", alone=alone, makes=True), proposal("b", makes=True)],
        marks=(),
        seconds=5.0,
        period_s=0.01,
        tell=lambda what: None,
    )
    with contextlib.suppress(KeyboardInterrupt):
        search.run()
    assert [edit.text for edit in search.edits] == ["b"] and not search.failed


@pytest.mark.parametrize(
    ("title", "texts", "found"),
    [
        ("F(f, threads=8)", ["F(f(threads=8), threads=8)"], ["F(f(threads=8), threads=16)"]),
        ("threads=8", ["8"], ["16"]),
        (
            "F(f(threads=4), processes=8)",
            ["f(threads=4), processes=8"],
            ["f(threads=4), processes=16"],
        ),
        ("F(f, threads=8)", ["F(f, 8 + 1)"], []),
        ("F(f, threads=2)", ["F(f, threads=2)"], []),
        ("order=any", ["any"], []),
    ],
)
def test_twice_the_producers(title: str, texts: list[str], found: list[str]) -> None:
    one = Proposal(title, tuple(Edit("train.py", n, n, text) for n, text in enumerate(texts)))
    more = more_producers(one, above=2)
    assert [edit.text for edit in (more.edits if more else ())] == found


@pytest.mark.parametrize(
    ("waiting", "title", "left_s", "kept"),
    [
        (0.5, "threads=64", 999, "threads=256"),
        (0.5, "threads=64", 48, "threads=128"),
        (0.5, "threads=64", 42, "threads=64"),
        (0.05, "threads=64", 999, "threads=64"),
        (None, "threads=64", 999, "threads=64"),
        (0.5, "threads=1", 999, "threads=2"),  # what waits for a core gains nothing by more
    ],
)
def test_what_still_waits_for_input_is_tried_with_more_producers(
    waiting: float | None, title: str, left_s: float, kept: str
) -> None:
    class Waiting(FakeTrials):
        def rate(self, edits: Sequence[Edit], *, seconds: float, warmup: float) -> Result:
            self.end_s -= seconds
            found = super().rate(edits, seconds=seconds, warmup=warmup)
            return replace(found, waiting=waiting)

    names = {"threads=64": 2.0, "threads=128": 3.0, "threads=256": 4.0, "threads=512": 4.0}
    trials = Waiting({**names, "threads=1": 1.5, "threads=2": 1.6})
    fewer = proposal("threads=2", makes=True)
    found = searched(trials, proposal(title, makes=True), fewer, left_s=left_s)
    assert [edit.text for edit in found.edits] == [kept]
    assert ["threads=512"] in trials.ran or kept != "threads=256"
    skipped = waiting == 0.5 and title == "threads=64"
    assert (["threads=2"] not in trials.ran) == skipped

"""The search keeps what gains, refuses other batches, and says why it left out the rest."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fastfeed.diagnose.patches.proposal import ALIKE, Proposal
from fastfeed.diagnose.patches.source_file import Edit, edited
from fastfeed.diagnose.proof import OTHER_DRAWS, OTHER_ORDER, SAME, Proof, Tried
from fastfeed.diagnose.prove.digests import Digests
from fastfeed.diagnose.prove.gains import Pace
from fastfeed.diagnose.prove.search import Search
from fastfeed.diagnose.prove.trial import Result
from fastfeed.diagnose.prove.trial_run import BATCHES, LONE
from fastfeed.errors import OptionError, StateError


class FakeTrials:
    """Runs whose rate is the product of the gains of their edits, in steps of `noise`."""

    start_s = 0.0
    end_s = math.inf
    seconds = 20.0  # most of a run
    random = True  # seeds decide its batches
    short = False  # its epochs can be shortened
    items = 4  # of a callable's stream that are seen
    keeps = False  # a batch is another one without those before it
    unknown = ""  # why these have no checksums
    draws = 0  # before how many of its batches the shared generators drew

    def __init__(self, gains: dict[str, Any], *, noise: float = 0.0, batches: Any = None) -> None:
        self.gains = gains
        self.noise = noise
        self.made = batches or (lambda edits: 0)
        self.ran: list[list[str]] = []
        self.epochs: list[int] = []

    def rate(self, edits: Sequence[Edit], *, seconds: float, warmup: float) -> Result:
        texts = [edit.text for edit in edits]
        try:
            edited(" " * 100, edits)
        except OptionError as error:
            return Result(failed=f"it cannot be combined: {error}")
        self.ran.append(texts)
        rate = 10.0
        for text in texts:
            gain = self.gains[text]
            if isinstance(gain, BaseException):
                raise gain
            if isinstance(gain, str):
                return Result(failed=gain)
            rate *= gain
        sign = 1 if len(self.ran) % 2 else -1
        rate *= 1 + sign * self.noise
        return Result(at(rate))

    def batches(self, edits: Sequence[Edit], *, seconds: float, purpose: str, epoch: int) -> Result:
        found = Digests()
        self.epochs.append(epoch)
        reseeded = purpose not in (BATCHES, LONE)
        value = self.made([edit.text for edit in edits]) + 100 * (reseeded and self.random)
        value += self.keeps and purpose == LONE
        found.add((np.full((2, 2), value), np.arange(2)))
        found.shortened = bool(epoch and self.short)
        found.draws = self.draws
        items = Digests()
        items.unknown = self.unknown
        for number in range(self.items):
            items.add(np.full((2, 2), value + number))
        return Result(digests=found, items=items)


def at(rate: float) -> Pace:
    return Pace((1 / rate,) * 10)


def rate_of(found: Result) -> float:
    return found.pace.rate(math.inf)


def proposal(text: str, begin: int = 0, **about: Any) -> Proposal:
    return Proposal(text, (Edit("train.py", begin, begin + 1, text),), **about)


def searched(trials: FakeTrials, *proposals: Proposal, left_s: float = math.inf) -> Search:
    trials.end_s = time.monotonic() + left_s
    search = Search(
        trials,  # type: ignore[arg-type]
        proposals,
        marks=(),
        seconds=5.0,
        period_s=0.01,
        tell=lambda what: None,
    )
    search.run()
    return search


def whys(search: Search) -> dict[str, str]:
    return {one.proposal.title: one.why for one in search.candidates}


def test_changes_that_gain_are_kept_together() -> None:
    trials = FakeTrials({"a": 2.0, "b": 1.5, "c": 1.0})
    found = searched(trials, proposal("b", 5), proposal("a"), proposal("c", 9))
    assert [edit.text for edit in found.edits] == ["a", "b"]
    speedup, (low, high), words = found.total()
    assert speedup == pytest.approx(3.0)
    assert low < 3.0 < high
    assert words == SAME
    assert "no gain" in whys(found)["c"]


def test_a_base_that_fails_later_leaves_what_is_proven() -> None:
    trials = FakeTrials({"a": 2.0, "b": 1.5})

    def fails(edits: Any, *, seconds: float, warmup: float) -> Result:
        texts = [edit.text for edit in edits]
        if texts == ["a"] and ["a", "b"] in trials.ran:
            return Result(failed="the port is in use")
        return FakeTrials.rate(trials, edits, seconds=seconds, warmup=warmup)

    trials.rate = fails  # type: ignore[method-assign]
    found = searched(trials, proposal("a"), proposal("b", 5))
    assert [edit.text for edit in found.edits] == ["a"]
    assert whys(found)["b"] == "what it is compared with failed when it ran again"


def test_an_order_that_nobody_sees_is_said() -> None:
    trials = FakeTrials({"a": 2.0})
    trials.batches = lambda *_, **__: Result(digests=Digests())  # type: ignore[method-assign]
    found = searched(trials, proposal("a", reorders=True))
    assert found.total()[2] == OTHER_ORDER


@pytest.mark.parametrize(("gain", "kept"), [(1.98, "b"), (1.4, "a")])
def test_of_two_that_may_be_as_good_the_one_that_is_compared_sooner_is_kept(
    gain: float, kept: str
) -> None:
    alone = (Edit("train.py", 0, 1, "alone"),)
    trials = FakeTrials({"a": 2.0, "b": gain}, noise=0.01)
    found = searched(trials, proposal("a", alone=alone, makes=True), proposal("b", makes=True))
    assert [edit.text for edit in found.edits] == [kept]


def test_a_run_of_which_too_few_steps_were_seen_is_repeated_for_longer() -> None:
    class Slow(FakeTrials):
        def rate(self, edits: Sequence[Edit], *, seconds: float, warmup: float) -> Result:
            found = super().rate(edits, seconds=seconds, warmup=warmup)
            early = bool(edits) and seconds < 20.0
            return Result(failed="too few", early=True) if early else found

    found = searched(Slow({"a": 2.0}), proposal("a"))
    assert [edit.text for edit in found.edits] == ["a"]
    left = searched(Slow({"a": 2.0}), proposal("a"), left_s=19.0)
    assert whys(left) == {"a": "too few"}


def test_one_change_of_who_makes_the_batches_is_enough() -> None:
    trials = FakeTrials({"a": 2.0, "b": 1.5, "c": 1.2})
    makers = proposal("a", makes=True), proposal("b", 5, makes=True)
    found = searched(trials, *makers, proposal("c", 9))
    assert [edit.text for edit in found.edits] == ["a", "c"]
    assert whys(found)["b"] == "only one change of who makes the batches fits: a is kept"
    assert ["a", "b"] not in trials.ran


def test_what_is_proven_stays_when_a_run_changes_files_of_the_user() -> None:
    class Writing(FakeTrials):
        def rate(self, edits: Sequence[Edit], **limits: Any) -> Result:
            if len(edits) == 2:
                raise StateError("data.bin was written to")
            return super().rate(edits, **limits)

    found = searched(Writing({"a": 2.0, "b": 1.5}), proposal("a"), proposal("b", 5))
    assert [edit.text for edit in found.edits] == ["a"]
    assert not found.failed
    found = searched(Writing({"ab": StateError("data.bin was written to")}), proposal("ab"))
    assert whys(found) == {"ab": "data.bin was written to"}
    assert not found.edits


def test_the_gain_of_what_is_not_kept_is_that_of_the_original() -> None:
    class Saturated(FakeTrials):
        def rate(self, edits: Sequence[Edit], **limits: Any) -> Result:
            return Result(at(min(20.0, rate_of(super().rate(edits, **limits)))))

    found = searched(Saturated({"a": 2.0, "b": 1.5}), proposal("a"), proposal("b", 5))
    gains = {one.title: one.speedup for one in (c.tried() for c in found.candidates)}
    assert gains == {"a": pytest.approx(2.0), "b": pytest.approx(1.5)}
    assert whys(found)["b"] == "no gain beyond the spread of the runs on top of what is kept"


def test_a_slower_change_runs_once() -> None:
    trials = FakeTrials({"a": 0.5})
    found = searched(trials, proposal("a"))
    assert whys(found) == {"a": "slower"}
    assert trials.ran == [[], ["a"]]
    assert found.edits == ()


@pytest.mark.parametrize(
    ("gains", "kept"),
    [
        ({"a": 0.95, "b": 0.7, "c": 1.3}, ["a", "c"]),  # with room for its producers
        ({"a": 0.95, "b": 0.7, "c": 0.9}, []),
        ({"a": 1.15, "b": 0.7, "c": 1.3}, ["a"]),  # it gains as it is
        ({"a": "it failed", "b": 0.7, "c": 2.0}, ["b", "c"]),
    ],
)
def test_producers_that_gain_nothing_are_tried_with_room_beside_the_step(
    gains: dict[str, Any], kept: list[str]
) -> None:
    room = proposal("c", 50)
    changes = [proposal(text, makes=True, room=room) for text in "ab"]
    found = searched(FakeTrials(gains), *changes)
    assert [edit.text for edit in found.edits] == kept
    assert ("a, and c" in whys(found)) == (gains["a"] == 0.95)


def test_room_comes_after_a_gain_that_was_noise() -> None:
    class Once(FakeTrials):
        def rate(self, edits: Sequence[Edit], *, seconds: float, warmup: float) -> Result:
            found = super().rate(edits, seconds=seconds, warmup=warmup)
            return Result(at(rate_of(found) * (1.4 if self.ran == [[], ["a"]] else 1.0)))

    room = proposal("c", 50)
    found = searched(Once({"a": 1.0, "c": 1.3}), proposal("a", makes=True, room=room))
    assert whys(found) == {"a": "no gain beyond the spread of the runs", "a, and c": ""}
    assert [edit.text for edit in found.edits] == ["a", "c"]


def test_what_runs_is_named() -> None:
    told: list[str] = []
    room = proposal("c", 50)
    search = Search(
        FakeTrials({"a": 0.95, "c": 1.3}),  # type: ignore[arg-type]
        [proposal("a", makes=True, room=room)],
        marks=(),
        seconds=5.0,
        period_s=0.01,
        tell=told.append,
    )
    search.run()
    first = ["the script as it is", "a", "a, and c"]
    batches = ["first batches of the script as it is", "first batches of a, and c"]
    assert told[:5] == [*first, *batches]
    assert set(told[5:]) <= {*first, "first batches of what is kept", "what is kept", "a"}


def test_one_run_beside_other_programs_does_not_decide() -> None:
    class Disturbed(FakeTrials):
        def rate(self, edits: Sequence[Edit], *, seconds: float, warmup: float) -> Result:
            found = super().rate(edits, seconds=seconds, warmup=warmup)
            factor = 0.7 if len(self.ran) == 2 else 1.0
            return Result(at(rate_of(found) * factor))

    found = searched(Disturbed({"a": 1.32}), proposal("a"))
    assert [edit.text for edit in found.edits] == ["a"]


def test_noise_is_no_gain() -> None:
    found = searched(FakeTrials({"a": 1.01}, noise=0.08), proposal("a"))
    assert found.edits == ()


def test_runs_are_made_in_turn() -> None:
    trials = FakeTrials({"a": 1.3}, noise=0.04)
    searched(trials, proposal("a"))
    assert trials.ran[:4] == [[], ["a"], [], ["a"]]


def test_another_form_is_tried_if_one_fails() -> None:
    forms = (proposal("b"),)
    found = searched(
        FakeTrials({"a": "TypeError: no tensor", "b": 2.0}), proposal("a", instead=forms)
    )
    assert [edit.text for edit in found.edits] == ["b"]


def test_another_form_is_tried_if_one_makes_other_batches() -> None:
    def batches(texts: Sequence[str]) -> float:
        return 1.5 if "a" in texts else 0  # another dtype

    forms = (proposal("b"), proposal("c"))
    trials = FakeTrials({"a": 2.0, "b": "TypeError: no array", "c": 1.9}, batches=batches)
    found = searched(trials, proposal("a", instead=forms))
    assert [edit.text for edit in found.edits] == ["c"]
    assert found.total()[2] == SAME


def test_why_a_change_cannot_run_is_said() -> None:
    found = searched(FakeTrials({"a": "PicklingError: a lock"}), proposal("a"))
    assert whys(found) == {"a": "PicklingError: a lock"}


def test_changes_of_one_place_are_not_combined() -> None:
    found = searched(FakeTrials({"a": 2.0, "b": 1.9}), proposal("a"), proposal("b"))
    assert [edit.text for edit in found.edits] == ["a"]
    assert "cannot be combined" in whys(found)["b"]


@pytest.mark.parametrize(("about", "kept"), [({}, []), ({"casts": True}, ["a"])])
def test_other_batches_are_refused_unless_they_are_meant(about: Any, kept: list[str]) -> None:
    def batches(texts: Sequence[str]) -> float:
        return 1.5 if texts else 0  # another dtype

    trials = FakeTrials({"a": 2.0}, batches=batches)
    found = searched(trials, proposal("a", **about))
    assert [edit.text for edit in found.edits] == kept
    if not kept:
        assert whys(found)["a"].startswith("other batches: batch 0 is float64")


def test_other_draws_are_labelled() -> None:
    trials = FakeTrials({"a": 2.0}, batches=lambda texts: len(texts))
    found = searched(trials, proposal("a"))
    assert found.total()[2] == OTHER_DRAWS
    trials.random = False
    assert searched(trials, proposal("a")).edits == ()


def test_where_one_short_epoch_is_all_that_is_seen_they_stay_as_they_are() -> None:
    trials = FakeTrials({"a": 2.0})
    assert searched(trials, proposal("a")).edits
    assert set(trials.epochs) == {60}
    trials.short, trials.epochs = True, []
    assert searched(trials, proposal("a")).edits
    assert trials.epochs == [60, 0, 0]


def test_the_same_code_must_make_the_same_batches() -> None:
    trials = FakeTrials({"a": 2.0}, batches=lambda texts: len(texts))
    found = searched(trials, proposal("a", allows=ALIKE))
    assert found.edits == ()
    assert whys(found)["a"].startswith("other batches: 1 of the first 1 batches differ")


def test_what_random_numbers_decide_is_not_cached() -> None:
    trials = FakeTrials({"a": 2.0})
    assert "in each epoch" in whys(searched(trials, proposal("a", freezes=True)))["a"]
    trials.random = False
    assert searched(trials, proposal("a", freezes=True)).total()[2] == SAME


def test_a_change_whose_batches_cannot_be_seen_is_refused() -> None:
    class Failing(FakeTrials):
        def batches(self, edits: Sequence[Edit], **options: Any) -> Result:
            return Result(failed="it raised") if edits else super().batches(edits, **options)

    found = searched(Failing({"a": 2.0}), proposal("a"))
    assert found.edits == ()
    assert "checksums of its batches failed" in whys(found)["a"]


def test_nothing_is_known_of_a_form_that_did_not_run() -> None:
    """The budget ends behind the form whose batches differ."""
    trials = FakeTrials({"a": 2.0, "b": 2.0}, batches=lambda texts: 1.5 * ("a" in texts))
    trials.random = False
    search = Search(
        trials,  # type: ignore[arg-type]
        [proposal("a", instead=(proposal("b"),))],
        marks=(),
        seconds=5.0,
        period_s=0.01,
        tell=lambda what: setattr(trials, "end_s", 0.0) if what == "b" else None,
    )
    search.run()
    assert (search.edits, search.total()[0]) == ((), 1.0)
    assert whys(search) == {"b": "no time was left for it"}


def test_the_budget_ends_the_search() -> None:
    found = searched(FakeTrials({"a": 2.0}), proposal("a"), left_s=1.0)
    assert whys(found) == {"a": "no time was left for it"}


@pytest.mark.parametrize(
    ("left_s", "tried", "kept"),
    [
        (110.0, ["a", "b", "c"], ["c"]),  # the best of all
        (63.0, ["a"], ["a"]),  # the first that gains is proven, and nothing more
        (70.0, ["a", "b"], ["b"]),
    ],
)
def test_what_gains_is_proven_before_others_are_tried_in_its_time(
    left_s: float, tried: list[str], kept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0

    class Clocked(FakeTrials):
        start_s = 2.0

        def rate(self, *args: Any, **options: Any) -> Result:
            nonlocal now_s
            now_s += 7.0
            return super().rate(*args, **options)

        def batches(self, *args: Any, **options: Any) -> Result:
            nonlocal now_s
            now_s += 5.0
            return super().batches(*args, **options)

    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    changes = [proposal(text, at, makes=True) for at, text in enumerate("abc")]
    found = searched(Clocked({"a": 1.5, "b": 1.7, "c": 2.0}), *changes, left_s=left_s)
    assert [edit.text for edit in found.edits] == kept
    assert [one.proposal.title for one in found.candidates if one.runs] == tried


@pytest.mark.parametrize(("runs", "kept"), [(2, []), (3, []), (4, ["a"])])
def test_what_the_budget_leaves_without_a_run_of_its_own_is_not_proven(
    runs: int, kept: list[str]
) -> None:
    """The run that made a change the best one is the second; its own ones follow in turn."""
    trials = FakeTrials({"a": 2.0}, noise=0.001)

    class Ending(FakeTrials):
        def rate(self, edits: Sequence[Edit], **limits: Any) -> Result:
            if len(trials.ran) == runs - 1:
                trials.end_s = 0.0
            return FakeTrials.rate(trials, edits, **limits)

    trials.__class__ = Ending
    found = searched(trials, proposal("a"))
    assert [edit.text for edit in found.edits] == kept
    assert kept or "--budget" in found.candidates[0].why


@pytest.mark.parametrize(("gain", "kept"), [(1.118, []), (1.2, ["a"])])
def test_what_gains_only_beside_some_runs_of_the_original_is_not_proven(
    gain: float, kept: list[str]
) -> None:
    """The first run of the original was faster than those in turn with the change."""
    rates = iter([10.725, 10 * gain, 10.0, 10 * gain, 10.0, 10 * gain])
    trials = FakeTrials({})

    class Scripted(FakeTrials):
        def rate(self, edits: Sequence[Edit], **limits: Any) -> Result:
            found = next(rates)
            if rates.__length_hint__() == 0:
                trials.end_s = 0.0
            return Result(at(found))

    trials.__class__ = Scripted
    found = searched(trials, proposal("a"))
    assert [edit.text for edit in found.edits] == kept
    assert kept or "--budget" in found.candidates[0].why


@pytest.mark.parametrize("proven", [True, False])
def test_an_interrupt_leaves_what_was_proven(proven: bool) -> None:
    trials = FakeTrials({"a": 2.0, "b": 1.5})
    search = None

    def interrupted(what: str) -> None:
        if search is not None and (
            search.kept or not (proven or search.candidates[0].gain is None)
        ):
            raise KeyboardInterrupt

    search = Search(
        trials,  # type: ignore[arg-type]
        [proposal("a"), proposal("b", 5)],
        marks=(),
        seconds=5.0,
        period_s=0.01,
        tell=interrupted,
    )
    with pytest.raises(KeyboardInterrupt):
        search.run()
    assert [edit.text for edit in search.edits] == ["a"] * proven
    assert all(one.kept or one.why == "the proof was interrupted" for one in search.candidates)


def test_an_original_without_figures_ends_the_search() -> None:
    class Failing(FakeTrials):
        rate: Callable[..., Result] = lambda *_, **__: Result(failed="it raised")

    found = searched(Failing({}), proposal("a"))
    assert found.failed == "it raised"


@pytest.mark.parametrize(
    ("interval", "begin"),
    [
        ((1.6, 2.3), "Nothing is proven: 4.43 steps/s as it is; num_workers=2, 1.91x: no time"),
        ((0.9, 1.1), "Nothing that was tried gains beyond the spread of its runs: 4.43 steps/s"),
    ],
)
def test_what_gains_and_is_not_kept_is_told(interval: tuple[float, float], begin: str) -> None:
    tried = (Tried("num_workers=2", 1.91, interval, 1, False, "no time was left"),)
    proof = Proof(4.43, 4.43, 1.0, (1.0, 1.0), "", "", tried, (), 141.0)
    assert proof.sentence.startswith(begin)


@pytest.mark.parametrize(("of_one", "kept"), [(7, True), (8, False)])
def test_several_producers_make_the_batches_of_one(of_one: int, kept: bool) -> None:
    """Else what makes them keeps a state, which seeds alone would not tell."""
    made = {"": 0, "several": 7, "one": of_one}
    trials = FakeTrials({"several": 2.0}, batches=lambda edits: made["".join(edits)])
    alone = (Edit("train.py", 0, 1, "one"),)
    found = searched(trials, proposal("several", alone=alone, allows=(SAME, OTHER_DRAWS)))
    assert bool(found.edits) == kept
    assert ("on the number of producers" in whys(found)["several"]) == (not kept)


@pytest.mark.parametrize(("keeps", "items"), [(False, 4), (True, 4), (True, 0), (False, 3)])
@pytest.mark.parametrize("made", [0, 7])
def test_a_stream_that_keeps_something_is_for_one_producer(
    keeps: bool, items: int, made: int
) -> None:
    """Several that have one each may share out its records, but only equal ones show it. The first
    items of any stream are the same, and without an item there is no stream."""
    trials = FakeTrials({"several": 2.0}, batches=lambda edits: made if "several" in edits else 0)
    trials.keeps, trials.items = keeps, items
    refused = bool(made and (items == 3 or (keeps and items)))
    found = searched(trials, proposal("several", single=(), allows=(SAME, OTHER_DRAWS)))
    assert bool(found.edits) == (not refused)
    assert ("keeps something" in whys(found)["several"]) == refused


def test_a_stream_whose_items_have_no_checksum_is_for_one_producer() -> None:
    trials = FakeTrials({"several": 2.0}, batches=lambda edits: 7 if "several" in edits else 0)
    trials.unknown = "TypeError: a batch holds Picture, which has no checksum"
    found = searched(trials, proposal("several", single=(), allows=(SAME, OTHER_DRAWS)))
    assert not found.edits and "no checksum" in whys(found)["several"]


@pytest.mark.parametrize(
    ("draws", "gain", "first", "kept"),
    [
        (1, 1.3, "processes", "processes"),  # threads would share the generators
        (0, 1.3, "threads", "threads"),
        (1, 1.0, "processes", "threads"),  # the step draws, not the batches
    ],
)
def test_threads_that_would_share_generators_wait_for_processes(
    draws: int, gain: float, first: str, kept: str
) -> None:
    trials = FakeTrials({"threads": 2.0, "processes": gain})
    trials.draws = draws
    alone = (Edit("train.py", 0, 1, "one"),)
    threads = proposal("threads", alone=alone, makes=True, shares=True)
    found = searched(trials, threads, proposal("processes", alone=alone, makes=True))
    assert next(texts for texts in trials.ran if texts) == [first]
    assert [edit.text for edit in found.edits] == [kept]
    assert ("share the random generators" in whys(found)["threads"]) == (
        first == kept == "processes"
    )


def test_threads_are_held_for_all_numbers_of_processes() -> None:
    trials = FakeTrials({"threads": 2.0, "four": 1.5, "two": 1.1})
    trials.draws = 1
    alone = (Edit("train.py", 0, 1, "one"),)
    several = (proposal(name, alone=alone, makes=True) for name in ("four", "two"))
    found = searched(trials, proposal("threads", alone=alone, makes=True, shares=True), *several)
    assert [edit.text for edit in found.edits] == ["four"]
    assert "share the random generators" in whys(found)["threads"]


def test_another_change_does_not_keep_what_promises_from_its_proof() -> None:
    """It may gain as much, by its interval, and does not promise to; threads wait meanwhile."""
    trials = FakeTrials({"threads": 2.0, "processes": 1.25, "other": 1.1})
    trials.draws = 1
    alone = (Edit("train.py", 0, 1, "one"),)
    threads = proposal("threads", alone=alone, makes=True, shares=True)
    processes = proposal("processes", alone=alone, makes=True)
    found = searched(trials, threads, processes, proposal("other", 9))
    assert "processes" in [edit.text for edit in found.edits]


def test_batches_that_draw_from_the_shared_generators_are_known() -> None:
    for draw, known in [
        (np.random.random, True),
        (random.random, True),
        (np.random.default_rng(1).random, False),
        (random.Random(1).random, False),
    ]:
        found = Digests()
        for _ in range(8):
            found.add([np.float32(draw())])
        assert found.are_drawn == known

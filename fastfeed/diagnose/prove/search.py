"""Search of the changes that gain: each runs against the script in turn, the best is kept, and the
others are tried on top of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from fastfeed.core.machine import cores
from fastfeed.diagnose.patches.proposal import PRODUCERS, Proposal
from fastfeed.diagnose.patches.source_file import Edit
from fastfeed.diagnose.proof import (
    DIFFERENT,
    OTHER_DRAWS,
    OTHER_ORDER,
    SAME,
    SAME_RECORDS,
    UNKNOWN,
    WORDS,
    Tried,
)
from fastfeed.diagnose.prove.digests import (
    Digests,
    Sameness,
    compared,
    may_keep_order,
    same_losses,
)
from fastfeed.diagnose.prove.gains import Gain, Pace, comparable, gain_of, spread_of
from fastfeed.diagnose.prove.trial import Result, Trials
from fastfeed.diagnose.prove.trial_run import BATCHES, LONE, REORDERED, RESEEDED
from fastfeed.errors import StateError

LEAST_GAIN = 1.02  # a smaller one is not worth a change of the script
NARROW = 0.05  # half width of an interval that needs no more runs
MAX_RUNS = 4  # of a candidate
MOST_WAITING = 0.1  # share of the time; with more of it, more producers may gain
DIGEST_STEPS = 260  # most steps in which the first batches are seen
PROOF_RUNS = 4  # of base and candidate in turn, from which on an interval may be narrow
MOST_EPOCH, LEAST_EPOCH = 60, 8  # batches of an epoch where batches are compared
SEEN_EPOCHS = 3  # in these steps
DIGEST_RUNS = 3  # that compare two streams of batches: before, after, and before with other seeds

LEAST_ITEMS = 4  # of a stream: the first one is in each copy, and the second one the same in all

SINGLY = ", but with one producer"
PURPOSES = {BATCHES: "", RESEEDED: ", other seeds", REORDERED: ", other order", LONE: ", alone"}
DIFFERING = (DIFFERENT, OTHER_DRAWS, OTHER_ORDER)
UNCOMPARED = Sameness("")
NO_DIGESTS = "the run for the checksums of its batches failed"
SHARED = "its batches depend on the number of producers: they come from a state or from no seed"
DEPENDENT = (
    "its stream keeps something from one batch to the next, and each producer would have its own"
)
SHARING = "its threads would share the random generators that its batches draw from"
IS_SLOWER, NO_GAIN = "slower", "no gain beyond the spread of the runs"
BROKEN_OFF = "the proof was interrupted"
NOT_CONFIRMED = "no time was left to compare its batches, or to run it again: give more --budget"


@dataclass
class Candidate:
    """A proposal under trial, and its other `forms` that are left; `paces` are those of its runs on
    the present base, of which those from `since` on were in turn with them."""

    proposal: Proposal
    forms: list[Proposal]
    paces: list[Pace] = field(default_factory=list)
    since: int = 0
    runs: int = 0
    waiting: float | None = None  # of its last run
    gain: Gain | None = None
    overall: float = 0.0  # what it is at least beside all runs of the base
    alone: Gain | None = None  # of the script as it was first
    why: str = ""
    same: Sameness = UNCOMPARED
    loss: str = ""
    kept: bool = False

    def take(self, form: Proposal) -> None:
        """Go on with another form of the change, of which nothing is known."""
        self.proposal, self.paces, self.gain = form, [], None
        self.why, self.same, self.loss = "", UNCOMPARED, ""

    @property
    def promises(self) -> bool:
        """True if a run of it was a gain beyond the spread, and nothing speaks against it."""
        if self.gain is None or self.why or self.kept:
            return False
        return self.gain.interval[0] > 1.0 and self.gain.speedup >= LEAST_GAIN

    @property
    def still_waits(self) -> bool:
        """True if the script waited for input in its last run, as far as that was seen."""
        return self.waiting is not None and self.waiting > MOST_WAITING

    @property
    def gains(self) -> bool:
        """True if the runs that count for it are such a gain, beside all that were looked at."""
        gain = self.gain
        if not self.paces or not self.promises or gain is None:
            return False
        return gain.least > 1.0 and self.overall > 1.0

    def tried(self) -> Tried:
        """Return what became of it."""
        advice = self.proposal.advice
        gain = self.gain if self.kept else self.alone
        return Tried(
            self.proposal.title,
            None if gain is None else gain.speedup,
            None if gain is None else gain.interval,
            self.runs,
            self.kept,
            self.why,
            self.same.word,
            self.same.text,
            self.loss,
            advice.knob if advice is not None else "",
            advice.predicted_speedup if advice is not None else None,
            advice.interval if advice is not None else None,
        )


class OutOfTime(Exception):
    """There is no time for another run."""


class Search:
    """Trial of proposals until the time of the trials is over. `tell` gets what runs now."""

    def __init__(
        self,
        trials: Trials,
        proposals: Iterable[Proposal],
        *,
        marks: Sequence[Edit],
        seconds: float,
        period_s: float,
        tell: Callable[[str], None],
    ) -> None:
        self._trials = trials
        self._marks = tuple(marks)  # edits that make the steps of the original visible
        self._seconds = seconds
        self._warmup_s = min(2.0, seconds / 4)
        self._digest_s = min(seconds, max(3.0, DIGEST_STEPS * period_s))
        self._tell = tell
        steps = int(self._digest_s / period_s / SEEN_EPOCHS) if period_s > 0 else MOST_EPOCH
        self._epoch = max(LEAST_EPOCH, min(MOST_EPOCH, steps))  # 0: as long as they are
        self._known: dict[tuple[tuple[Edit, ...], bool, str], Result] = {}
        self.candidates = [Candidate(one, list(one.instead)) for one in proposals]
        self.original: list[Pace] = []
        self.base: list[Pace] = self.original
        self._sharing: list[Candidate] = []  # threads whose batches draw from shared generators
        self._looks = 0  # changes that were run again, to prove them
        self.edits: tuple[Edit, ...] = ()
        self.kept: list[Candidate] = []
        self.failed = ""  # why the original gives no rate

    def run(self) -> None:
        """Try all candidates. Raise KeyboardInterrupt as it comes; what is known by then stays."""
        try:
            self._measure_base()
            while not self.failed and self._round():
                pass
        except OutOfTime:
            self._keep_best()
            self._leave("no time was left for it", promising=NOT_CONFIRMED)
        except StateError as error:  # a run has changed files of the user's: what is proven stays
            self.failed = "" if self.original else str(error)
            self._keep_best()
            self._leave(str(error))
        except KeyboardInterrupt:
            self._keep_best()
            self._leave(BROKEN_OFF)
            raise

    def _keep_best(self) -> None:
        """Keep the best of those that gain on the present base, if there are any; one that ran only
        once beside it comes last."""
        gained = [one for one in self.candidates if one.gains and one.same is not UNCOMPARED]
        for one in sorted(gained, key=lambda one: (len(one.paces) < 2, -_best(one)))[:1]:
            self._keep(one)

    def _leave(self, why: str, *, promising: str = "") -> None:
        """Note why those of which nothing is known are not tried, and why those that are
        `promising` are not proven."""
        for one in self.candidates:
            if one.promises:
                one.why = promising or why
            one.why = one.why or ("" if one.kept or one.gain else why)

    def total(self) -> tuple[float, tuple[float, float], str]:
        """Return the gain of all that is kept over the original, its interval, and what its batches
        are."""
        if not self.kept:
            return 1.0, (1.0, 1.0), ""
        before, after = comparable(self.original, self.base)
        gain = gain_of(before, after, spread=spread_of([before, after]))
        words = [one.same.word for one in self.kept]
        return gain.speedup, gain.interval, max(words, key=WORDS.index)

    @property
    def rates(self) -> tuple[float, float]:
        """Steps/s of the original, and of what is kept; 0 where no run gave any."""
        found = comparable(self.original, self.base)
        before, after = (sum(one) / len(one) if one else 0.0 for one in found)
        return before, after

    def _round(self) -> bool:
        """Try the candidates on the present base, and keep the best one that gains; return False
        if none does and none is left.

        One that promises to gain is not left without the time that its proof takes: the others
        wait.
        """
        maker = next((one.proposal for one in self.kept if one.proposal.makes), None)
        left = [one for one in self.candidates if not one.kept and not one.why]
        held = [] if maker else self._held(left)
        for one in left:
            if maker is not None and one.proposal.makes:
                one.why = f"only one change of who makes the batches fits: {maker.title} is kept"
                one.why = SHARING if one in self._sharing and not maker.shares else one.why
            elif one.paces or one in held or any(_waits_with_more(two, one) for two in left):
                continue
            elif not self._must_confirm(left):
                self._try(one)
        waits = any(not one.paces and not one.why for one in left)
        left += [] if maker else self._try_more(left)
        left += [] if maker or waits else self._try_room()
        tried = [one for one in left if one.paces and not one.why]
        for one in _best_first(tried):
            if waits and not one.promises:
                continue
            if self._confirm(one):
                self._keep(self._fastest_of(one, tried))
                return True
        for one in [] if maker or waits else self._try_room():
            if not one.why and self._confirm(one):
                self._keep(one)
                return True
        return waits

    def _fastest_of(self, one: Candidate, tried: Sequence[Candidate]) -> Candidate:
        """Return a proven candidate, or one of those that cannot be kept beside it, if it seemed
        faster beyond the interval of the other in its first run, and is proven to be."""
        makers = [other for other in tried if other.proposal.makes and not other.why]
        rivals = [other for other in makers if other is not one] * one.proposal.makes
        for other in rivals:
            seems = not other.why and _is_faster(other, one) and self._has_time(self._proof_s)
            one = other if seems and self._confirm(other) and _is_faster(other, one) else one
        return one

    def _try_more(self, tried: Sequence[Candidate]) -> list[Candidate]:
        """Try the best change of who makes the batches with twice the producers, and again twice:
        as long as this is faster, and the script still waits for input with more of them than there
        are cores, so that they wait, too. Return what was tried."""
        makers = [one for one in tried if one.proposal.makes and one.promises]
        best, found = max(makers, key=_best, default=None), list[Candidate]()
        while best is not None and best.still_waits:
            proposal = more_producers(best.proposal, above=cores())
            known = {one.proposal.title for one in self.candidates}
            if proposal is None or proposal.title in known:
                break
            if not self._has_time(self._seconds + self._proof_s):
                break
            more = Candidate(proposal, [])
            self.candidates.append(more)
            found.append(more)
            self._try(more)
            if not more.why and not _is_faster(more, best):
                more.why = f"no faster than {best.proposal.title}"
            best = None if more.why else more
        return found

    def _try_room(self) -> list[Candidate]:
        """Try the best change of who makes the batches once more, with room for its producers, if
        none of these changes gains: they may wait for cores that the step takes and does not use.
        Return what was tried."""
        makers = [one for one in self.candidates if one.proposal.makes and one.gain is not None]
        slow = [
            one.proposal
            for one in _best_first(makers)
            if not one.why or one.why.startswith((IS_SLOWER, NO_GAIN))
        ]
        room = slow[0].room if slow else None
        if room is None or any(not one.why and _gains(one) for one in makers):
            return []
        title, edits = f"{slow[0].title}, and {room.title}", (*slow[0].edits, *room.edits)
        known = title in {one.proposal.title for one in self.candidates}
        if known or not self._has_time(self._seconds + self._proof_s):
            return []
        proposal = replace(slow[0], title=title, edits=edits, room=None, instead=(), advice=None)
        more = Candidate(proposal, [])
        self.candidates.append(more)
        self._try(more)
        return [more]

    def _held(self, left: Sequence[Candidate]) -> list[Candidate]:
        """Return those that wait for others: where the batches draw from the generators of the
        process, threads that share them make other ones, and processes have their own."""
        threads = [one for one in left if one.proposal.shares]
        several = [one for one in left if one.proposal.alone and one not in threads]
        if threads and any(not one.paces or one.promises for one in several):
            seen = self._digests_of_base(self._of_base(threads[0].proposal))
            self._sharing = threads if seen is not None and seen.are_drawn else []
            return self._sharing
        return []

    def _must_confirm(self, left: Sequence[Candidate]) -> bool:
        """Return True if one of them promises to gain, and only its proof still has time."""
        promised = any(one.promises and one.paces for one in left)
        return promised and not self._has_time(self._seconds + self._proof_s)  # after a try

    @property
    def _proof_s(self) -> float:
        """Seconds that a proof takes."""
        starts_s = (PROOF_RUNS + DIGEST_RUNS) * self._trials.start_s
        return PROOF_RUNS * self._seconds + DIGEST_RUNS * self._digest_s + starts_s

    def _keep(self, one: Candidate) -> None:
        one.kept = True
        self.kept.append(one)
        self.edits, self.base = (*self.edits, *one.proposal.edits), list(one.paces)
        for other in self.candidates:
            if not other.kept:
                other.paces, other.since = [], 0

    def _try(self, one: Candidate) -> None:
        """Run a candidate once; if it fails, another form of it."""
        result = self._rate((*self.edits, *one.proposal.edits), one.proposal.title)
        one.runs += 1
        one.waiting = result.waiting
        if not result.failed:
            one.paces.append(result.pace)
            self._judge(one)
            if one.gain is not None and one.gain.interval[1] < 1.0:
                one.why = IS_SLOWER
        elif one.forms:
            one.take(one.forms.pop(0))
            self._try(one)
        else:
            one.why = result.failed

    def _confirm(self, one: Candidate) -> bool:
        """Run a candidate against its base in turn; return True if it gains."""
        while not self._compare(one):
            if not one.forms:
                return False
            one.take(one.forms.pop(0))
            self._try(one)
            if one.why:
                return False
        self._looks += 1
        one.paces, one.since = [], len(self.base)  # what made it the best one proves nothing
        while len(one.paces) < MAX_RUNS:
            self._measure_base()
            if len(self.base) == one.since:
                one.why = "what it is compared with failed when it ran again"
                return False
            result = self._rate((*self.edits, *one.proposal.edits), one.proposal.title)
            one.runs += 1
            if result.failed:
                one.why = result.failed
                return False
            one.waiting = result.waiting
            one.paces.append(result.pace)
            speedup, (low, high), least = self._judge(one)
            narrow = high - low <= 2 * NARROW * speedup and len(one.paces) > 1
            if high < LEAST_GAIN or (narrow and least > 1.0):
                break
        on_top = " on top of what is kept" if self.kept else ""
        slower = one.gain is not None and one.gain.interval[1] < 1.0
        why = IS_SLOWER if slower else NO_GAIN
        one.why = "" if one.gains else f"{why}{on_top}"
        return one.gains

    def _judge(self, one: Candidate) -> Gain:
        base, after = comparable(self.base, one.paces)
        others = [other.paces for other in self.candidates if other is not one]
        others += [self.original] * bool(self.kept)
        groups = [base, after, *(comparable(paces)[0] for paces in others)]
        spread = spread_of([rates for rates in groups if rates])
        looks = max(1, self._looks)
        one.gain = gain_of(base[one.since :], after, spread=spread, looks=looks)
        one.overall = gain_of(base, after, spread=spread_of([base, after])).interval[0]
        if not self.kept:
            one.alone = one.gain
        return one.gain

    def _compare(self, one: Candidate) -> bool:
        """Compare the batches of a candidate with those of its base; return False if it is refused
        for them."""
        edits, shows, what = (*self.edits, *one.proposal.edits), one.proposal.shows, one.proposal
        of_base = self._of_base(what)
        before, after = self._digests_of_both(of_base, (*edits, *shows))
        if (before is not None and after is None) or (before is None and what.shows_before):
            one.why = NO_DIGESTS
            return False
        if before is None or after is None:
            before, after = Digests(), Digests()
        same = compared(before, after)
        if same.word == DIFFERENT or what.freezes:
            kept = may_keep_order(before, after)
            reseeded = self._digests(of_base, purpose=RESEEDED if kept else REORDERED)
            same = compared(before, after, reseeded=reseeded)
            if kept and same.word == DIFFERENT:
                reordered = self._digests(of_base, purpose=REORDERED)
                same = compared(before, after, reseeded=reseeded, reordered=reordered)
            drawn = reseeded is None or compared(before, reseeded).word != SAME
            if what.freezes and drawn:
                one.why = "random numbers decide its batches: they would be the same in each epoch"
        elif before.losses:
            again = self._digests(of_base, again=True)
            one.loss = same_losses(before, after, again=again)
        if same.word in (UNKNOWN, SAME) and what.reorders:
            seen = "no batch was compared" if same.word == UNKNOWN else same.text
            same = Sameness(OTHER_ORDER, f"several threads take turns; {seen}")
        if same.word not in what.allows and not (what.casts or what.rarer):
            one.why = f"{DIFFERENT if same.word in DIFFERING else same.word}: {same.text}"
        if what.alone and same.word in DIFFERING and not one.why:
            alone = self._digests((*self.edits, *what.alone, *shows))
            found = compared(alone, after) if alone is not None else UNCOMPARED
            one.why = "" if found.word == SAME else f"{SHARED}: {found.text}"
            one.why = one.why if alone is not None else NO_DIGESTS
        if what.single is not None and same.word not in SAME_RECORDS and not one.why:
            one.why = self._kept_by_stream((*self.edits, *what.single, *shows))
        one.same = same
        return not one.why

    def _kept_by_stream(self, edits: tuple[Edit, ...]) -> str:
        """Return why several producers may not have a stream each, "" if they may: a batch of it is
        another one without those before it."""
        usual, lone = (self._batches(edits, purpose=one) for one in (BATCHES, LONE))
        if usual.failed or lone.failed:
            return NO_DIGESTS
        if not usual.items.leaves and not usual.items.unknown:
            return ""  # no stream is made for each producer
        found = compared(usual.items, lone.items)
        seen = len(lone.items.leaves) >= LEAST_ITEMS
        return "" if found.word == SAME and seen else f"{DEPENDENT}: {found.text}"

    def _of_base(self, what: Proposal) -> tuple[Edit, ...]:
        """Return the edits of a base that shows its batches as a change of it does."""
        return (*self.edits, *what.shows, *what.shows_before)

    def _digests_of_both(
        self, base: tuple[Edit, ...], edits: tuple[Edit, ...]
    ) -> tuple[Digests | None, Digests | None]:
        """Return the checksums of base and candidate. Where one of them fails in short epochs, or
        the base shows only one, they stay as long as they are."""
        before = self._digests_of_base(base)
        after = self._digests(edits)
        if self._epoch and not after:
            return self._in_long_epochs(base), self._digests(edits)
        return before, after

    def _digests_of_base(self, base: tuple[Edit, ...]) -> Digests | None:
        found = self._digests(base)
        shows = not self._epoch or (found is not None and self._shows_epochs(found))
        return found if shows else self._in_long_epochs(base)

    def _shows_epochs(self, found: Digests) -> bool:
        return not found.shortened or len(found.leaves) > self._epoch

    def _in_long_epochs(self, edits: tuple[Edit, ...]) -> Digests | None:
        self._epoch, self._known = 0, {}
        return self._digests(edits)

    def _digests(
        self, edits: tuple[Edit, ...], *, again: bool = False, purpose: str = BATCHES
    ) -> Digests | None:
        found = self._batches(edits, again=again, purpose=purpose)
        return None if found.failed else found.digests

    def _batches(
        self, edits: tuple[Edit, ...], *, again: bool = False, purpose: str = BATCHES
    ) -> Result:
        key = (edits, again, purpose)
        if key not in self._known:
            self._tell(f"first batches of {self._name(edits)}{PURPOSES[purpose]}")
            seconds, edits = self._digest_s, (*self._marks, *edits)
            self._check_time(seconds)
            self._known[key] = self._trials.batches(
                edits, seconds=seconds, purpose=purpose, epoch=self._epoch
            )
        return self._known[key]

    def _name(self, edits: tuple[Edit, ...]) -> str:
        """Return the title of the candidate that edits are of, or what names their base."""
        found = [(0, True, "what is kept" if self.edits else "the script as it is")]
        for one in (each.proposal for each in self.candidates):
            for own, words in ((one.edits, ""), (one.alone, SINGLY), (one.single or (), SINGLY)):
                if set(own) <= set(edits) and not set(own) <= set(self.edits):
                    found.append((len(own), not words, f"{one.title}{words}"))
        return max(found)[-1]

    def _measure_base(self) -> None:
        result = self._rate(self.edits, self._name(self.edits))
        if not result.failed:
            self.base.append(result.pace)
        elif not self.base:
            self.failed = result.failed

    def _rate(self, edits: tuple[Edit, ...], title: str) -> Result:
        """Measure a rate; once more, and longer, where workers had just started when the time was
        over."""
        self._tell(title)
        self._check_time(self._seconds)
        edits, most_s = (*self._marks, *edits), self._trials.seconds
        found = self._trials.rate(edits, seconds=self._seconds, warmup=self._warmup_s)
        if not found.early or most_s <= self._seconds or not self._has_time(most_s):
            return found
        self._tell(f"{title}, for longer")
        return self._trials.rate(edits, seconds=most_s, warmup=self._warmup_s)

    def _has_time(self, seconds: float) -> bool:
        return time.monotonic() + seconds + self._trials.start_s <= self._trials.end_s

    def _check_time(self, seconds: float) -> None:
        if not self._has_time(seconds):
            raise OutOfTime


def more_producers(one: Proposal, *, above: int) -> Proposal | None:
    """Return a change with twice the producers that its title names at last, if they are more than
    `above`; None if its edits do not name them so."""
    *_, found = [None, *PRODUCERS.finditer(one.title)]
    if found is None or int(found[2]) <= above:
        return None
    count = str(2 * int(found[2]))
    words, more = re.compile(rf"\b{found[0]}\b"), f"{found[1]}={count}"

    def changed(text: str) -> str:
        *_, last = [None, *words.finditer(text)]
        if last is None:  # the value of an option that is there
            return count if text == found[2] else text
        return f"{text[: last.start()]}{more}{text[last.end() :]}"

    edits = tuple(edit._replace(text=changed(edit.text)) for edit in one.edits)
    if edits == one.edits:
        return None
    return replace(one, title=changed(one.title), edits=edits, advice=None, instead=())


def _waits_with_more(one: Candidate, other: Candidate) -> bool:
    """Return True if a candidate that gains is another one with more producers, and the script
    still waits for input with these."""
    counts = [PRODUCERS.findall(each.proposal.title)[-1:] for each in (one, other)]
    texts = {PRODUCERS.sub("", each.proposal.title) for each in (one, other)}
    if not one.promises or not one.still_waits or len(texts) > 1 or not all(counts):
        return False
    (kind, count), (other_kind, fewer) = counts[0][0], counts[1][0]
    return kind == other_kind and int(count) > int(fewer) and int(count) > cores()


def _is_faster(one: Candidate, other: Candidate) -> bool:
    """Return True if a candidate is faster beyond the interval of another one."""
    return other.gain is not None and _best(one) > other.gain.interval[1]


def _best_first(tried: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates, the best first. Of those that may be as good, the first is one whose
    batches take fewer runs to compare."""
    most = max(map(_best, tried), default=0.0)

    def place(one: Candidate) -> tuple[bool, bool, float]:
        near = one.gain is not None and one.gain.interval[1] >= most
        return not near, near and bool(one.proposal.alone), -_best(one)

    return sorted(tried, key=place)


def _gains(one: Candidate) -> bool:
    """Return True if the runs of a candidate are a gain, however sure."""
    return one.gain is not None and one.gain.speedup >= LEAST_GAIN


def _best(one: Candidate) -> float:
    return one.gain.speedup if one.gain is not None else 0.0

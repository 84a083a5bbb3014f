"""The causes as a table: for each code the signals that it needs, the feed without it, its
sentences and its changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fastfeed.diagnose.diagnosis import Cause, Recommendation
from fastfeed.diagnose.evidence import DISK
from fastfeed.diagnose.judge import changes, knobs, sentences
from fastfeed.diagnose.judge.case import Case
from fastfeed.diagnose.judge.feed_costs import Change, lost
from fastfeed.model.workload import INPUT_BOUND

STEP_BOUND, STEP_HOST = "step.bound", "step.host"
SERIAL, WAITS, TAIL = "input.serial", "input.latency", "input.straggler"
NOISE, PAUSE = "external.noise", "pause.periodic"
TRACE = 1e-9  # of a share, beside which every other share counts
ON_CORES = ("input.cpu", "input.gil", "input.copy", "input.ipc", "input.oversubscribed")


class CauseRow(NamedTuple):
    """A cause.

    `seen`: the signals that it needs are there. `without`: the counterfactual, the feed without the
    cause, whose gain is its share. `say`: its evidence in sentences. `advise`: the changes that
    remove it; the flag is True for the first cause.
    """

    code: str
    seen: Callable[[Case], bool]
    without: Callable[[Case], Change]
    say: Callable[[Case, float], tuple[str, ...]]
    advise: Callable[[Case, bool], list[Recommendation]]


def _always(change: Change) -> Callable[[Case], Change]:
    return lambda case: change


def _by_trainer(case: Case) -> bool:
    return case.made_by.kind == "trainer" and case.producers is not None


def _bytecode(case: Case) -> Change:
    return knobs.no_bytecode if case.held else lambda feed: feed


def _waits(case: Case) -> Change:
    return knobs.no_waits if not case.made_by.away else knobs.no_work_away(case.made_by.waiting)


def _cores(case: Case) -> Change:
    if case.made_by.away:
        return knobs.no_work_away(1 - case.made_by.waiting)
    if case.held:
        return knobs.no_native_work
    return lambda feed: knobs.no_bytecode(knobs.no_native_work(feed))


# The order decides between equal shares: what contains another cause comes first.
ROWS = (
    CauseRow(
        SERIAL,
        _by_trainer,
        _always(knobs.free_input),
        sentences.serial,
        changes.more_producers,
    ),
    CauseRow(
        NOISE,
        lambda case: max(case.feed.foreign) > 0 or case.feed.others > 0,
        _always(knobs.no_others),
        sentences.noise,
        changes.noise,
    ),
    CauseRow(
        TAIL,
        lambda case: case.feed.late > 0,
        _always(knobs.even_batches),
        sentences.straggling,
        changes.straggler,
    ),
    CauseRow(
        "input.epoch_gap",
        lambda case: case.feed.start > 0,
        _always(knobs.warm_epochs),
        sentences.gaps,
        changes.epoch_gap,
    ),
    CauseRow(
        "input.ipc",
        lambda case: case.made_by.kind == "processes" and not case.made_by.remote,
        _always(knobs.no_handover),
        sentences.ipc,
        changes.ipc,
    ),
    CauseRow(
        "input.disk",
        lambda case: case.made_by.share(DISK) > 0,
        _always(knobs.no_disk),
        sentences.disks,
        changes.disk,
    ),
    CauseRow(
        "input.copy",
        lambda case: case.made_by.copying > 0 or case.feed.converted > 0,
        _always(knobs.no_copies),
        sentences.copies,
        changes.copies,
    ),
    CauseRow(
        "input.gil",
        lambda case: case.made_by.python > 0,
        _bytecode,
        sentences.lock,
        changes.processes,
    ),
    CauseRow(
        WAITS,
        lambda case: case.made_by.waiting > 0,
        _waits,
        sentences.latency,
        changes.more_producers,
    ),
    CauseRow(
        "input.oversubscribed",
        lambda case: case.feed.crowded > 0,
        _always(knobs.single_threaded_pools),
        sentences.crowd,
        changes.oversubscribed,
    ),
    CauseRow(
        "input.cpu",
        lambda case: case.made_by.known,
        _cores,
        sentences.cores,
        changes.cores,
    ),
    CauseRow(
        PAUSE,
        lambda case: float(case.ledger.pause.sum()) > 0,
        _always(knobs.pauses(0.0)),
        sentences.pauses,
        changes.pause,
    ),
    CauseRow(
        STEP_HOST,
        lambda case: case.host > 0,
        lambda case: case.without(case.host),
        sentences.host,
        changes.host,
    ),
)
BY_CODE = {row.code: row for row in ROWS}


def losses_of(case: Case) -> dict[str, float]:
    """Return the share of the time that each cause takes: what the loop gains without it.

    None of the input takes more than all input does. Without work on the cores there is none that
    other processes slow: what counts is the gain beyond theirs.
    """
    most = lost(case.feed, knobs.free_input)
    found = {row.code: lost(case.feed, row.without(case)) for row in ROWS if row.seen(case)}
    for code in found:
        if code.startswith("input."):
            found[code] = min(found[code], most)
        if code in ON_CORES:
            left = found[code] - found.get(NOISE, 0.0)
            found[code] = max(TRACE * found[code], left)  # so that the greatest is still known
    return found


def ranked(losses: dict[str, float], case: Case) -> list[tuple[str, float]]:
    """Return the causes that count with their shares, the verdict first.

    The step has what no cause takes. A loss of 5 % outranks it, if it is input all of it together.
    The loop's own Python does if it takes more than the rest of the step. The input has the rank of
    all of it together, beside pauses and other processes.
    """
    found = [(code, share) for code, share in losses.items() if share >= INPUT_BOUND]
    inputs = [pair for pair in losses.items() if pair[0].startswith("input.")]
    greatest = max(inputs, key=lambda pair: pair[1], default=("", 0.0))
    whole = lost(case.feed, knobs.free_input) if greatest[1] > 0 else 0.0
    left = whole - losses.get(NOISE, 0.0)
    if greatest[1] < INPUT_BOUND <= max(greatest[1], left):
        found.append(greatest)  # several make one loss
    # The greatest of the input stands for all of it, but for what others take; its equals do, too,
    # also where none of them alone would gain anything.
    alike = round(greatest[1] / INPUT_BOUND)
    all_input = round(max(greatest[1], left) / INPUT_BOUND)
    ranks = {code: round(share / INPUT_BOUND) for code, share in found}
    ranks |= {code: all_input for code, _ in inputs if ranks.get(code) == alike}
    found.sort(key=lambda pair: -ranks[pair[0]])
    found[1:] = sorted(found[1:], key=lambda pair: -pair[1])
    others = [pair for pair in found if pair[0] != STEP_HOST]
    host = losses.get(STEP_HOST, 0.0)
    of_step = max(0.0, 1.0 - host - max((share for _, share in others), default=0.0))
    return found if others or host > of_step else [(STEP_BOUND, of_step), *found]


def causes_of(case: Case, shares: list[tuple[str, float]]) -> tuple[Cause, ...]:
    """Return the causes with their sentences."""
    return tuple(
        Cause(
            code,
            share,
            BY_CODE[code].say(case, share) if code in BY_CODE else sentences.step(case, share),
        )
        for code, share in shares
    )


def advice_of(case: Case, shares: list[tuple[str, float]]) -> tuple[Recommendation, ...]:
    """Return the changes that remove the causes and gain something: those that experiments support
    first, and then the greatest gain.

    The number of producers is one decision.
    """
    found: dict[tuple[str, str], Recommendation] = {}
    for code, _ in shares:
        for one in BY_CODE[code].advise(case, code == shares[0][0]) if code in BY_CODE else ():
            counts = one.knob in changes.COUNT_KNOBS
            if one.predicted_speedup >= changes.MIN_GAIN:
                found.setdefault(("", "") if counts else (one.knob, one.value), one)
    ranks = {one: (bool(one.untested), -one.predicted_speedup) for one in found.values()}
    return tuple(sorted(ranks, key=lambda one: ranks[one]))

"""The scenes of the battery: each opens a sink on a runner of its own, and judges what comes
out."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from fastfeed.errors import FeedStopped, ProducerError
from fastfeed.runner.runner import FeedRunner
from fastfeed.testing import verdict
from fastfeed.testing.records import (
    BATCH,
    PADDING,
    Broken,
    Gated,
    NumberedRecords,
    ProductionGate,
    Ragged,
    SourceError,
    Unsized,
    unreadable,
)
from fastfeed.testing.trial import Trial
from fastfeed.testing.verdict import ReceivedElement

RECORDS = 400  # with RING, every slot is reused many times
RING = "200KB"
KEPT = (3, 40)  # elements of the first iteration that are kept through all others
LEFT_AFTER = 3  # elements
FEW = 64  # records of the scenes that need no more
GOOD = 5  # batches before the one that cannot be made
FAST, SLOW, HELD = 6, 8, 40  # batches of the scene with a gate


def passes(trial: Trial) -> None:
    """Iterate repeatedly over one runner: completely, partly, and once more, with elements kept
    throughout."""
    records = NumberedRecords(
        RECORDS + (0 if not trial.traits.partial_batch else BATCH // 2), tuple(trial.traits.dtypes)
    )
    with trial.runner(records, batch_size=BATCH, memory=RING) as runner:
        sink = trial.open(runner)
        kept: list[tuple[Any, ReceivedElement]] = []
        trial.doing = "once"
        _judge_whole(trial, _whole(trial, sink, kept=kept), records=records)
        if trial.traits.again:
            trial.doing = "early break"
            _judge_left_early(trial, sink, records=records)
            trial.doing = "second epoch"
            again = _ids(_whole(trial, sink))
            trial.judge("second epoch", verdict.wrong_count(again, range(len(records))))
        trial.doing = "kept"
        trial.judge("kept", _changed(trial, kept))
        kept.clear()
        trial.doing = "leases"
        if trial.traits.again:
            _left_early(trial, sink)
        del sink
        trial.judge("leases", trial.all_given_back(runner))


def shuffled(trial: Trial) -> None:
    """Iterate twice over a source that is shuffled."""
    trial.doing = "second epoch"
    with trial.runner(
        NumberedRecords(FEW, ("int64",)), batch_size=BATCH, shuffle=True, seed=0
    ) as runner:
        sink = trial.open(runner)
        first, second = _ids(_whole(trial, sink)), _ids(_whole(trial, sink))
    missing = verdict.wrong_count(second, range(FEW))
    trial.judge(
        "second epoch", missing or ("it had the order of the first one" if first == second else "")
    )


def epochs(trial: Trial) -> None:
    """Iterate over two epochs."""
    trial.doing = "epochs"
    source = NumberedRecords(FEW, ("int64",))
    with trial.runner(source, batch_size=BATCH, epochs=2) as runner:
        ids = _ids(_whole(trial, trial.open(runner)))
    halves = ids[:FEW], ids[FEW:]
    counts = [verdict.wrong_count(half, range(FEW)) for half in halves]
    trial.judge("epochs", next(filter(None, (*counts, *map(verdict.wrong_order, halves))), ""))


def unsized(trial: Trial) -> None:
    """Iterate over a source of unknown length, to its end, and once more if there can be a second
    iteration."""
    trial.doing = "unknown length"
    with trial.runner(
        Unsized(NumberedRecords(FEW, ("int64",))), records=True, batch_size=BATCH
    ) as runner:
        sink = trial.open(runner)
        for _ in range(1 + trial.traits.again):
            ids = _ids(_whole(trial, sink))
            trial.judge(
                "unknown length", verdict.wrong_count(ids, range(FEW)) or verdict.wrong_order(ids)
            )


def padded(trial: Trial) -> None:
    """Iterate over records of several lengths."""
    trial.doing = "padded"
    with trial.runner(Ragged(FEW), batch_size=BATCH, pad=PADDING) as runner:
        elements = _whole(trial, trial.open(runner))
    ids = _ids(elements)
    wrong = verdict.wrong_count(ids, range(FEW)) or verdict.wrong_order(ids)
    trial.judge("padded", wrong or verdict.wrong_padding(elements))


def errors(trial: Trial) -> None:
    """Meet a batch that cannot be made."""
    trial.doing = "errors"
    forced: tuple[type[BaseException], ...] = (ProducerError, *trial.traits.errors)
    with trial.runner(Broken(GOOD), records=False) as runner:
        numbers: list[int] = []
        try:
            for element in trial.open(runner):
                numbers.append(_number(trial.copy(element)))
        except forced as error:
            trial.judge("errors", _wrong_error(error) or verdict.wrong_count(numbers, range(GOOD)))
        else:
            trial.judge(
                "errors",
                f"the pass ended after the elements {numbers} as if the source had no more",
            )


def paced(trial: Trial) -> None:
    """Iterate once: the consumer waits for every batch, then every batch waits for it, and then the
    runner is stopped."""
    trial.doing = "fast consumer"
    with tempfile.TemporaryDirectory() as folder:
        gate = ProductionGate(folder, trial.limit_s)
        trial.unblock = lambda: gate.let(HELD)
        try:
            # the scene's own limit comes first: a hang must not look like an error of the source
            with trial.runner(Gated(HELD, folder, 2 * trial.limit_s), records=False) as runner:
                gate.let(1 + trial.traits.ahead)
                try:
                    _pace(trial, iter(trial.open(runner)), gate=gate, runner=runner)
                finally:
                    # no thread can be interrupted: stop() would wait for those that wait here
                    gate.let(HELD)
        finally:
            trial.unblock = lambda: None
            gate.close()


def _pace(
    trial: Trial, iterator: Iterator[Any], *, gate: ProductionGate, runner: FeedRunner
) -> None:
    wrong = _wrong_next(trial, iterator, numbers=range(1))
    for number in range(1, FAST):
        gate.let(1)
        wrong = wrong or _wrong_next(trial, iterator, numbers=range(number, number + 1))
    trial.judge("fast consumer", wrong)
    if wrong:  # it is not where it should be, and a wait for what it has lost would never end
        return
    trial.doing = "slow consumer"
    gate.let(SLOW)
    element = next(iterator)
    before = trial.copy(element)
    gate.wait_passed(FAST + SLOW + trial.traits.ahead)
    changed = (
        "" if before.same(trial.copy(element)) else "the element that it had changed in its hands"
    )
    del element
    late = "" if _number(before) == FAST else f"element {_number(before)} came instead of {FAST}"
    wrong = changed or late or _wrong_next(trial, iterator, numbers=range(FAST + 1, FAST + SLOW))
    trial.judge("slow consumer", wrong)
    if wrong:
        return
    trial.doing = "stop"
    gate.wait_arrived(FAST + SLOW + trial.traits.ahead + 1)
    _stop(trial, iterator, gate=gate, runner=runner)


def _stop(
    trial: Trial, iterator: Iterator[Any], *, gate: ProductionGate, runner: FeedRunner
) -> None:
    forced: tuple[type[BaseException], ...] = (FeedStopped, *trial.traits.errors)
    stopper = threading.Thread(target=runner.stop, name="check_sink stops")
    stopper.start()
    try:
        for _ in range(HELD):  # what the sink has taken ahead may come first
            next(iterator)
        trial.judge("stop", f"{HELD} more elements came as if nothing had happened")
    except forced:
        trial.judge("stop", "")
    except StopIteration:
        trial.judge("stop", "the pass ended as if the source had no more")
    finally:
        # no thread can be interrupted: producers that wait there are released only now
        gate.let(HELD)
        stopper.join(trial.limit_s)


def _judge_whole(
    trial: Trial, elements: list[ReceivedElement], *, records: NumberedRecords
) -> None:
    wanted = verdict.expected(range(BATCH), records, traits=trial.traits)
    ids = _ids(elements)
    trial.judge("structure", verdict.wrong_structure(elements, wanted.structure))
    trial.judge("dtypes", verdict.wrong_dtypes(elements, wanted))
    trial.judge("values", verdict.wrong_values(elements, records, traits=trial.traits))
    trial.judge("once", verdict.wrong_count(ids, range(len(records))))
    trial.judge("order", verdict.wrong_order(ids))


def _judge_left_early(trial: Trial, sink: Iterable[Any], *, records: NumberedRecords) -> None:
    first = _left_early(trial, sink)
    ids = _ids(_whole(trial, sink))
    if trial.traits.goes_on:
        ids = _ids(first) + ids
    wrong = verdict.wrong_count(ids, range(len(records)))
    trial.judge("early break", wrong or verdict.wrong_order(ids))


def _left_early(trial: Trial, sink: Iterable[Any]) -> list[ReceivedElement]:
    """Return copies of an iteration's first elements, and leave it."""
    iterator = iter(sink)
    return [element for _ in range(LEFT_AFTER) if (element := trial.take(iterator)) is not None]


def _whole(
    trial: Trial, sink: Iterable[Any], *, kept: list[tuple[Any, ReceivedElement]] | None = None
) -> list[ReceivedElement]:
    """Return copies of an iteration's elements, some of which are kept; of an endless one, more
    than there should be."""
    elements: list[ReceivedElement] = []
    for element in sink:
        elements.append(trial.copy(element))
        if kept is not None and len(elements) in KEPT:
            kept.append((element, elements[-1]))
        if len(elements) > RECORDS:
            break
    return elements


def _changed(trial: Trial, kept: list[tuple[Any, ReceivedElement]]) -> str:
    for element, before in kept:
        after = trial.copy(element)
        if not before.same(after):
            was, now = (verdict.shortened(copy.ids) for copy in (before, after))
            return f"the element with the records {was} has now {now}, or other values: its memory was used again"
    return ""


def _wrong_error(error: BaseException) -> str:
    said = str(error)
    for needed in (f"batch {GOOD} cannot be read", unreadable.__name__):
        if needed not in said:
            return f"the text of {type(error).__name__} does not have {needed!r}, as the original traceback: {said}"
    if isinstance(error, ProducerError) and not isinstance(error.__cause__, SourceError):
        return f"__cause__ is {error.__cause__!r} instead of the source's own SourceError"
    return ""


def _wrong_next(trial: Trial, iterator: Iterator[Any], *, numbers: range) -> str:
    """Take elements up to the first wrong number; say what was wrong."""
    for wanted in numbers:
        element = trial.take(iterator)
        if element is None:
            return f"the pass ended before element {wanted}"
        if _number(element) != wanted:
            return f"element {_number(element)} came instead of {wanted}"
    return ""


def _number(element: ReceivedElement) -> int:
    """Return the number that fills a batch."""
    return element.ids[0] if len(set(element.ids)) == 1 else -1


def _ids(elements: Iterable[ReceivedElement]) -> list[int]:
    return [number for element in elements for number in element.ids]

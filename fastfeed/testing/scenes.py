"""The scenes of the battery: each opens a sink on a runner of its own and judges its output."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from fastfeed.errors import FeedStopped, ProducerError
from fastfeed.runner.runner import FeedRunner
from fastfeed.testing import verdict
from fastfeed.testing.records import (
    BATCH_RECORDS,
    PADDING,
    FailingBatches,
    GatedBatches,
    NumberedRecords,
    ProductionGate,
    RaggedRecords,
    SourceError,
    UnsizedRecords,
    unreadable,
)
from fastfeed.testing.trial import Trial
from fastfeed.testing.verdict import ReceivedElement

RECORDS = 400  # with RING_MEMORY, every slot is reused many times
RING_MEMORY = "200KB"
KEPT_POSITIONS = (3, 40)  # elements of the first iteration that are kept through all others
BREAK_AFTER = 3  # elements
FEW_RECORDS = 64  # records of the scenes that need no more
GOOD_BATCHES = 5  # batches before the one that cannot be made
FAST_BATCHES, SLOW_BATCHES, GATED_BATCHES = 6, 8, 40  # batches of the scene with a gate


def iterations(trial: Trial) -> None:
    """Iterate in full, with an early break, and once more, while some elements are kept."""
    records = NumberedRecords(
        RECORDS + (0 if not trial.traits.partial_batch else BATCH_RECORDS // 2),
        tuple(trial.traits.dtypes),
    )
    with trial.runner(records, batch_size=BATCH_RECORDS, memory=RING_MEMORY) as runner:
        sink = trial.open(runner)
        kept: list[tuple[Any, ReceivedElement]] = []
        trial.begin("once")
        _judge_whole(trial, _take_all(trial, sink, kept=kept), records=records)
        if trial.traits.again:
            trial.begin("early break")
            _judge_early_break(trial, sink, records=records)
            trial.begin("second epoch")
            again = _ids(_take_all(trial, sink))
            trial.judge("second epoch", verdict.wrong_count(again, range(len(records))))
        trial.begin("kept")
        trial.judge("kept", _changed(trial, kept))
        kept.clear()
        trial.begin("leases")
        if trial.traits.again:
            _take_first(trial, sink)
        del sink
        trial.judge("leases", trial.still_lent(runner))


def shuffled(trial: Trial) -> None:
    """Iterate twice over a shuffled source."""
    trial.begin("second epoch")
    with trial.runner(
        NumberedRecords(FEW_RECORDS, ("int64",)), batch_size=BATCH_RECORDS, shuffle=True, seed=0
    ) as runner:
        sink = trial.open(runner)
        first, second = _ids(_take_all(trial, sink)), _ids(_take_all(trial, sink))
    missing = verdict.wrong_count(second, range(FEW_RECORDS))
    trial.judge(
        "second epoch",
        missing or ("it has the same order as the first one" if first == second else ""),
    )


def epochs(trial: Trial) -> None:
    """Iterate over two epochs."""
    trial.begin("epochs")
    source = NumberedRecords(FEW_RECORDS, ("int64",))
    with trial.runner(source, batch_size=BATCH_RECORDS, epochs=2) as runner:
        ids = _ids(_take_all(trial, trial.open(runner)))
    halves = ids[:FEW_RECORDS], ids[FEW_RECORDS:]
    counts = [verdict.wrong_count(half, range(FEW_RECORDS)) for half in halves]
    trial.judge("epochs", next(filter(None, (*counts, *map(verdict.wrong_order, halves))), ""))


def unsized(trial: Trial) -> None:
    """Read a source of unknown length to its end, and once more if the sink supports it."""
    trial.begin("unknown length")
    with trial.runner(
        UnsizedRecords(NumberedRecords(FEW_RECORDS, ("int64",))),
        records=True,
        batch_size=BATCH_RECORDS,
    ) as runner:
        sink = trial.open(runner)
        for _ in range(1 + trial.traits.again):
            ids = _ids(_take_all(trial, sink))
            trial.judge(
                "unknown length",
                verdict.wrong_count(ids, range(FEW_RECORDS)) or verdict.wrong_order(ids),
            )


def padded(trial: Trial) -> None:
    """Feed records of several lengths."""
    trial.begin("padded")
    with trial.runner(RaggedRecords(FEW_RECORDS), batch_size=BATCH_RECORDS, pad=PADDING) as runner:
        elements = _take_all(trial, trial.open(runner))
    ids = _ids(elements)
    wrong = verdict.wrong_count(ids, range(FEW_RECORDS)) or verdict.wrong_order(ids)
    trial.judge("padded", wrong or verdict.wrong_padding(elements))


def errors(trial: Trial) -> None:
    """Feed a batch that cannot be made."""
    trial.begin("errors")
    expected: tuple[type[BaseException], ...] = (ProducerError, *trial.traits.errors)
    with trial.runner(FailingBatches(GOOD_BATCHES), records=False) as runner:
        numbers: list[int] = []
        try:
            for element in trial.open(runner):
                numbers.append(_number(trial.copy(element)))
        except expected as error:
            trial.judge(
                "errors", _wrong_error(error) or verdict.wrong_count(numbers, range(GOOD_BATCHES))
            )
        else:
            trial.judge(
                "errors",
                f"the iteration ended after the elements {numbers} without an error",
            )


def paced(trial: Trial) -> None:
    """Iterate while the consumer waits for batches, then batches for it, then stop the runner."""
    trial.begin("fast consumer")
    with tempfile.TemporaryDirectory() as folder:
        gate = ProductionGate(folder, trial.limit_s)
        trial.unblock_with(lambda: gate.permit(GATED_BATCHES))
        try:
            # The scene's own limit expires first: a hang must not look like an error of the source.
            with trial.runner(
                GatedBatches(GATED_BATCHES, folder, 2 * trial.limit_s), records=False
            ) as runner:
                gate.permit(1 + trial.traits.ahead)
                try:
                    _pace(trial, iter(trial.open(runner)), gate=gate, runner=runner)
                finally:
                    # no thread can be interrupted: stop() would wait for the producers that wait
                    # here
                    gate.permit(GATED_BATCHES)
        finally:
            trial.unblock_with(lambda: None)
            gate.close()


def _pace(
    trial: Trial, iterator: Iterator[Any], *, gate: ProductionGate, runner: FeedRunner
) -> None:
    wrong = _wrong_next(trial, iterator, numbers=range(1))
    for number in range(1, FAST_BATCHES):
        gate.permit(1)
        wrong = wrong or _wrong_next(trial, iterator, numbers=range(number, number + 1))
    trial.judge("fast consumer", wrong)
    if wrong:  # the sink is at the wrong element, and a wait for the lost ones would never end
        return
    trial.begin("slow consumer")
    gate.permit(SLOW_BATCHES)
    element = next(iterator)
    before = trial.copy(element)
    gate.wait_passed(FAST_BATCHES + SLOW_BATCHES + trial.traits.ahead)
    changed = "" if before.same(trial.copy(element)) else "the element changed while it was held"
    del element
    late = (
        ""
        if _number(before) == FAST_BATCHES
        else f"element {_number(before)} came instead of {FAST_BATCHES}"
    )
    wrong = (
        changed
        or late
        or _wrong_next(
            trial, iterator, numbers=range(FAST_BATCHES + 1, FAST_BATCHES + SLOW_BATCHES)
        )
    )
    trial.judge("slow consumer", wrong)
    if wrong:
        return
    trial.begin("stop")
    gate.wait_arrived(FAST_BATCHES + SLOW_BATCHES + trial.traits.ahead + 1)
    _stop(trial, iterator, gate=gate, runner=runner)


def _stop(
    trial: Trial, iterator: Iterator[Any], *, gate: ProductionGate, runner: FeedRunner
) -> None:
    expected: tuple[type[BaseException], ...] = (FeedStopped, *trial.traits.errors)
    stopper = threading.Thread(target=runner.stop, name="check_sink stops")
    stopper.start()
    try:
        for _ in range(GATED_BATCHES):  # elements that the sink took ahead may come first
            next(iterator)
        trial.judge("stop", f"{GATED_BATCHES} more elements came after the stop")
    except expected:
        trial.judge("stop", "")
    except StopIteration:
        trial.judge("stop", "the iteration ended without an error")
    finally:
        # no thread can be interrupted: release the producers that still wait
        gate.permit(GATED_BATCHES)
        stopper.join(trial.limit_s)


def _judge_whole(
    trial: Trial, elements: list[ReceivedElement], *, records: NumberedRecords
) -> None:
    wanted = verdict.expected(range(BATCH_RECORDS), records, traits=trial.traits)
    ids = _ids(elements)
    trial.judge("structure", verdict.wrong_structure(elements, wanted.structure))
    trial.judge("dtypes", verdict.wrong_dtypes(elements, wanted))
    trial.judge("values", verdict.wrong_values(elements, records, traits=trial.traits))
    trial.judge("once", verdict.wrong_count(ids, range(len(records))))
    trial.judge("order", verdict.wrong_order(ids))


def _judge_early_break(trial: Trial, sink: Iterable[Any], *, records: NumberedRecords) -> None:
    first = _take_first(trial, sink)
    ids = _ids(_take_all(trial, sink))
    if trial.traits.goes_on:
        ids = _ids(first) + ids
    wrong = verdict.wrong_count(ids, range(len(records)))
    trial.judge("early break", wrong or verdict.wrong_order(ids))


def _take_first(trial: Trial, sink: Iterable[Any]) -> list[ReceivedElement]:
    """Return copies of the first elements of an iteration that is then abandoned."""
    iterator = iter(sink)
    return [element for _ in range(BREAK_AFTER) if (element := trial.take(iterator)) is not None]


def _take_all(
    trial: Trial, sink: Iterable[Any], *, kept: list[tuple[Any, ReceivedElement]] | None = None
) -> list[ReceivedElement]:
    """Return copies of all elements of an iteration, and keep some of them.

    An iteration without end is cut off after more elements than there should be.
    """
    elements: list[ReceivedElement] = []
    for element in sink:
        elements.append(trial.copy(element))
        if kept is not None and len(elements) in KEPT_POSITIONS:
            kept.append((element, elements[-1]))
        if len(elements) > RECORDS:
            break
    return elements


def _changed(trial: Trial, kept: list[tuple[Any, ReceivedElement]]) -> str:
    for element, before in kept:
        after = trial.copy(element)
        if not before.same(after):
            was, now = (verdict.shortened(copy.ids) for copy in (before, after))
            return (
                f"the element with the records {was} now has {now}, or other values: its memory "
                "was reused"
            )
    return ""


def _wrong_error(error: BaseException) -> str:
    text = str(error)
    for needed in (f"batch {GOOD_BATCHES} cannot be read", unreadable.__name__):
        if needed not in text:
            return (
                f"the text of {type(error).__name__} lacks {needed!r} of the original traceback: "
                f"{text}"
            )
    if isinstance(error, ProducerError) and not isinstance(error.__cause__, SourceError):
        return f"__cause__ is {error.__cause__!r} instead of the source's own SourceError"
    return ""


def _wrong_next(trial: Trial, iterator: Iterator[Any], *, numbers: range) -> str:
    """Take these elements; describe the first one that differs."""
    for wanted in numbers:
        element = trial.take(iterator)
        if element is None:
            return f"the iteration ended before element {wanted}"
        if _number(element) != wanted:
            return f"element {_number(element)} came instead of {wanted}"
    return ""


def _number(element: ReceivedElement) -> int:
    """Return the number that fills a numbered batch, or -1."""
    return element.ids[0] if len(set(element.ids)) == 1 else -1


def _ids(elements: Iterable[ReceivedElement]) -> list[int]:
    return [number for element in elements for number in element.ids]

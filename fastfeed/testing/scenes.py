"""check_sink: scenes that each open a sink on a runner of its own and judge what it gives, with
producer threads and with worker processes."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import psutil

from fastfeed.errors import FeedStopped, OptionError, ProducerError
from fastfeed.runner.runner import FeedRunner
from fastfeed.testing.contract import Finding, SinkBroken, SinkTraits
from fastfeed.testing.records import (
    BATCH_RECORDS,
    PADDING,
    NumberedRecords,
    ReceivedElement,
    SourceError,
    UnsizedRecords,
    gate,
    received,
    shortened,
    unreadable,
    wrong_content,
    wrong_count,
    wrong_ids,
    wrong_order,
)

Open = Callable[[FeedRunner], Iterable[Any]]
PLAIN_TRAITS = SinkTraits()
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
RECORDS = 400  # with RING_MEMORY, every slot is reused many times
MOST_ELEMENTS = 210  # of an iteration without end: two of the longest ones that have one
RING_MEMORY = "200KB"
KEPT_POSITIONS = (3, 40)  # elements of the first iteration that are kept through all others
BREAK_AFTER = 3  # elements
FEW_RECORDS = 64  # records of the scenes that need no more
BAD_RECORD = 20  # the one that cannot be read
FAST_BATCHES, SLOW_BATCHES, GATED_BATCHES = 6, 8, 40  # batches of the scene with a gate
SCENE_THREAD = "check_sink"  # name of the thread of a scene
CLEANUP_LIMIT_S = 3.0  # time limit for everything that ends by itself
# Opened once and kept: by the C library and the frameworks (devices, CPU lists) and by Python
# (shared objects).
KEPT_OPEN = ("/dev/", "/sys/", "/proc/", "/usr/", "anon_inode:[eventpoll]")
AHEAD_HINT = (
    "\nIf the sink needs batches beyond the one that it hands out, declare SinkTraits(ahead=1)"
)


def check_sink(
    open: Open,
    *,
    to_numpy: Callable[[Any], Any] | None = None,
    traits: SinkTraits = PLAIN_TRAITS,
    options: Mapping[str, Any] = NO_OPTIONS,
    processes: Sequence[int] = (0, 1),
    limit_s: float = 30.0,
) -> tuple[str, ...]:
    """Check a sink against every one of `PROMISES`; return the names of those that were checked.

    `open(runner)` returns the iterable of the training loop: elements in the containers of the
    batch. `to_numpy` converts an element to one whose leaves numpy.asarray accepts (`lambda batch:
    batch.cpu()`); None means that they are already. `options` are keywords for the runners of the
    battery, if the sink needs any. `processes` lists the numbers of worker processes to try, 0 for
    producer threads. No promise takes longer than `limit_s` seconds: a hang is a broken promise,
    reported with the stack of every thread. The sink is opened and iterated in a thread of the
    battery.

    Raise SinkBroken, which names every broken promise and what happened instead. Raise OptionError
    if `open` is not callable.
    """
    if not callable(open):
        raise OptionError(
            f"open must be a function of a runner that returns the sink, got {open!r}"
        )
    trial = Trial(open, to_numpy, traits, limit_s, options)
    for count in processes:
        trial.use_processes(count)
        battery = [iterations, errors, paced] if count else [iterations, errors, paced, sources]
        if not all(trial.play(scene) for scene in battery):
            break
    if trial.findings:
        raise SinkBroken(trial.findings) from trial.error
    return tuple(trial.checked)


def stacks() -> str:
    """Return the stack of every other thread, that of the scene first."""
    frames = sys._current_frames()
    others = [t for t in threading.enumerate() if t is not threading.current_thread()]
    others.sort(key=lambda thread: thread.name != SCENE_THREAD)
    return "\n".join(
        f"thread {t.name}:\n{''.join(traceback.format_stack(frames.get(t.ident or 0))).rstrip()}"
        for t in others
    )


def until(done: Callable[[], bool], limit_s: float) -> bool:
    """Poll `done` and return True once it is; return False after `limit_s` seconds.

    Unreachable objects are collected before each poll.
    """
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            return False
        gc.collect()
        time.sleep(0.005)
    return True


def resources() -> set[str]:
    """Return the current threads, processes and file descriptors."""
    alive = [t for t in threading.enumerate() if not isinstance(t, threading._DummyThread)]
    found = {f"thread {t.name} ({t.ident})" for t in alive}
    found |= {f"process {p.pid}" for p in psutil.Process().children(recursive=True)}
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the descriptor that listed the folder
            continue
        kept = target.startswith(KEPT_OPEN) and not target.startswith("/dev/shm")
        if not kept and "site-packages" not in target:
            found.add(f"file descriptor {number}: {target}")
    return found


@dataclass
class Trial:
    """State of the battery for one sink; `open` makes the sink of a runner.

    `current` is the promise that an exception or a hang would break now.
    """

    open: Open
    to_numpy: Callable[[Any], Any] | None
    traits: SinkTraits
    limit_s: float
    options: Mapping[str, Any]  # of every runner
    processes: int = 0
    current: str = "structure"
    deadline: float = 0.0
    checked: dict[str, None] = field(default_factory=dict)  # used as an ordered set
    findings: list[Finding] = field(default_factory=list)
    runners: list[FeedRunner] = field(default_factory=list)  # of the running scene
    unblock: Callable[[], object] = lambda: None  # releases producers that the scene blocks
    error: BaseException | None = None  # an unexpected exception

    def use_processes(self, count: int) -> None:
        """Use so many worker processes, or producer threads for 0, in the next scenes."""
        self.processes = count

    def begin(self, promise: str) -> None:
        """Set the promise that the scene checks now, within the limit."""
        self.current, self.deadline = promise, time.monotonic() + self.limit_s

    def unblock_with(self, unblock: Callable[[], object]) -> None:
        """Set what releases the producers that the scene blocks."""
        self.unblock = unblock

    def play(self, scene: Callable[[Trial], None]) -> bool:
        """Run a scene in a thread of its own under the limit; return True if the next one may
        follow.

        No scene can run after a hang.
        """
        before, raised = resources(), []

        def run() -> None:
            try:
                scene(self)
            except BaseException as error:  # judged below
                raised.append(error)

        thread = threading.Thread(target=run, name=SCENE_THREAD, daemon=True)
        self.begin(self.current)
        thread.start()
        while thread.is_alive() and (left_s := self.deadline - time.monotonic()) > 0:
            thread.join(left_s)
        if thread.is_alive():
            hint = AHEAD_HINT if self.current == "fast consumer" else ""
            self.add_finding(
                "no hang",
                f"while checking {self.current!r}: the call did not return within "
                f"{self.limit_s:g} s; stacks of all threads:\n{stacks()}{hint}",
            )
            known = list(self.findings)
            self.unblock()
            self._stop_runners()
            thread.join(CLEANUP_LIMIT_S)
            self.findings = known  # the scene went on once it was unblocked
            return False
        self._stop_runners()
        if raised:  # by the sink, where no error was due
            self.error = raised[0]
            told = "".join(traceback.format_exception(self.error)).rstrip()
            self.add_finding(self.current, told)
            return False
        if "nothing left" not in [f.promise for f in self.findings]:  # once is enough
            until(lambda: resources() <= before, CLEANUP_LIMIT_S)
            self.judge("nothing left", ", ".join(sorted(resources() - before)))
        return True

    def runner(self, source: Any, **options: Any) -> FeedRunner:
        """Return a runner with this trial's producers, for `with`."""
        own = {"processes": self.processes, "batch_size": BATCH_RECORDS}
        runner = FeedRunner(source, **{**own, **self.options, **options})
        self.runners.append(runner)
        return runner

    def copy(self, element: Any) -> ReceivedElement:
        """Return a copy of an element's current content."""
        return received(element, self.to_numpy)

    def take(self, sink: Iterable[Any], most: int) -> list[ReceivedElement]:
        """Return copies of the first elements of an iteration, at most `most`."""
        elements: list[ReceivedElement] = []
        for element in sink:
            elements.append(self.copy(element))
            if len(elements) == most:
                break
        return elements

    def ids(self, sink: Iterable[Any]) -> list[int]:
        """Return the numbers of all records of an iteration; one without end is cut off."""
        return [number for element in self.take(sink, MOST_ELEMENTS) for number in element.ids]

    def judge(self, promise: str, *happened: str) -> None:
        """Note that a promise was checked, and the first thing that happened instead, if any."""
        self.checked[promise] = None
        if any(happened):
            self.add_finding(promise, next(filter(None, happened)))

    def add_finding(self, promise: str, happened: str) -> None:
        """Note a broken promise; only its first failure is kept, which is the most informative."""
        producers = "process producers" if self.processes else "thread producers"
        if all((f.promise, f.producers) != (promise, producers) for f in self.findings):
            self.findings.append(Finding(promise, producers, happened))

    def _stop_runners(self) -> None:
        for runner in self.runners:
            runner.stop()
        self.runners.clear()


def iterations(trial: Trial) -> None:
    """Iterate in full, with an early break, and once more, while some elements are kept."""
    last = BATCH_RECORDS // 2 if trial.traits.partial_batch else 0
    records = NumberedRecords(RECORDS + last, tuple(trial.traits.dtypes))
    every = range(len(records))
    with trial.runner(records, memory=RING_MEMORY) as runner:
        sink = trial.open(runner)
        trial.begin("once")
        kept = _first_iteration(trial, sink, records=records)
        if trial.traits.again:
            trial.begin("early break")
            first = [n for e in trial.take(iter(sink), BREAK_AFTER) for n in e.ids]
            ids = first * trial.traits.goes_on + trial.ids(sink)
            trial.judge("early break", wrong_ids(ids, every))
            trial.begin("second epoch")
            trial.judge("second epoch", wrong_count(trial.ids(sink), every))
        trial.begin("kept")
        trial.judge("kept", *(_changed(before, trial.copy(element)) for element, before in kept))
        kept.clear()
        trial.begin("leases")
        if trial.traits.again:
            trial.take(iter(sink), BREAK_AFTER)
        del sink
        # producer threads lend no memory
        free = until(lambda: not runner.snapshot().slots.lent, CLEANUP_LIMIT_S)
        slots = runner.snapshot().slots
        trial.judge("leases", "" if free else f"{slots.lent} batches are still lent ({slots})")


def _first_iteration(
    trial: Trial, sink: Iterable[Any], *, records: NumberedRecords
) -> list[tuple[Any, ReceivedElement]]:
    """Judge an iteration in full; return some of its elements, with copies of them."""
    elements: list[ReceivedElement] = []
    kept: list[tuple[Any, ReceivedElement]] = []
    for element in sink:
        elements.append(trial.copy(element))
        if len(elements) in KEPT_POSITIONS:
            kept.append((element, elements[-1]))
        if len(elements) == MOST_ELEMENTS:
            break
    wrong = [wrong_content(element, records, traits=trial.traits) for element in elements]
    for promise in ("structure", "dtypes", "values"):
        told = (f"element {n}: {w[promise]}" for n, w in enumerate(wrong) if w[promise])
        trial.judge(promise, next(told, ""))
    ids = [number for element in elements for number in element.ids]
    trial.judge("once", wrong_count(ids, range(len(records))))
    trial.judge("order", wrong_order(ids))
    return kept


def _changed(before: ReceivedElement, after: ReceivedElement) -> str:
    if before.same(after):
        return ""
    return (
        f"the element with the records {shortened(before.ids)} now has {shortened(after.ids)}, or "
        "other values: its memory was reused"
    )


def sources(trial: Trial) -> None:
    """Iterate over sources of other kinds, and in other orders."""
    few, every = NumberedRecords(FEW_RECORDS), range(FEW_RECORDS)
    if trial.traits.again:
        trial.begin("second epoch")
        with trial.runner(few, shuffle=True, seed=0) as runner:
            sink = trial.open(runner)
            first, second = trial.ids(sink), trial.ids(sink)
        same = "it has the same order as the first one" if first == second else ""
        trial.judge("second epoch", wrong_count(second, every), same)
    trial.begin("epochs")
    with trial.runner(few, epochs=2) as runner:
        ids = trial.ids(trial.open(runner))
    halves = ids[:FEW_RECORDS], ids[FEW_RECORDS:]
    trial.judge("epochs", *(wrong_ids(half, every) for half in halves))
    trial.begin("unknown length")
    with trial.runner(UnsizedRecords(few), records=True) as runner:
        sink = trial.open(runner)
        for _ in range(1 + trial.traits.again):
            trial.judge("unknown length", wrong_ids(trial.ids(sink), every))
    if trial.traits.padded:
        trial.begin("padded")
        ragged = NumberedRecords(FEW_RECORDS, ragged=True)
        with trial.runner(ragged, pad=PADDING) as runner:
            elements = trial.take(trial.open(runner), MOST_ELEMENTS)
        ids = [number for element in elements for number in element.ids]
        wrong = (wrong_content(e, ragged, traits=trial.traits)["values"] for e in elements)
        trial.judge("padded", wrong_ids(ids, every), *wrong)


def errors(trial: Trial) -> None:
    """Feed a record that cannot be read."""
    trial.begin("errors")
    expected: tuple[type[BaseException], ...] = (ProducerError, *trial.traits.errors)
    ids: list[int] = []
    with trial.runner(NumberedRecords(2 * BAD_RECORD, bad=BAD_RECORD)) as runner:
        try:
            for element in trial.open(runner):
                ids += trial.copy(element).ids
            wrong = f"the iteration ended after the record {ids[-1:]} without an error"
        except expected as error:
            wrong = _wrong_error(error)
    trial.judge("errors", wrong, wrong_count(ids, range(BAD_RECORD)))


def _wrong_error(error: BaseException) -> str:
    for needed in (f"record {BAD_RECORD} cannot be read", unreadable.__name__):
        if needed not in str(error):
            return (
                f"the text of {type(error).__name__} lacks {needed!r} of the original traceback: "
                f"{error}"
            )
    if isinstance(error, ProducerError) and not isinstance(error.__cause__, SourceError):
        return f"__cause__ is {error.__cause__!r} instead of the source's own SourceError"
    return ""


def paced(trial: Trial) -> None:
    """Iterate while the consumer waits for batches, then batches for it, then stop the runner."""
    trial.begin("fast consumer")
    with tempfile.TemporaryDirectory() as folder, gate(path := f"{folder}/permits") as permit:
        trial.unblock_with(lambda: permit(GATED_BATCHES))
        # The scene's own limit expires first: a hang must not look like an error of the source.
        records = NumberedRecords(
            GATED_BATCHES * BATCH_RECORDS, gate=path, limit_s=2 * trial.limit_s
        )
        with trial.runner(records) as runner:
            permit(1 + trial.traits.ahead)
            try:
                _pace(trial, iter(trial.open(runner)), permit=permit, runner=runner)
            finally:
                trial.unblock()  # stop() would wait for the producers that wait here
                trial.unblock_with(lambda: None)


def _pace(
    trial: Trial, iterator: Iterator[Any], *, permit: Callable[[int], object], runner: FeedRunner
) -> None:
    wrong = ""
    for number in range(FAST_BATCHES):
        permit(min(number, 1))
        wrong = wrong or _wrong_next(trial, iterator, wanted=number)
    trial.judge("fast consumer", wrong)
    if wrong:  # the sink is at the wrong element, and a wait for the lost ones would never end
        return
    trial.begin("slow consumer")
    permit(SLOW_BATCHES)
    element = next(iterator)
    before = trial.copy(element)
    made = FAST_BATCHES + SLOW_BATCHES + trial.traits.ahead
    until(lambda: runner.snapshot().produced.batches >= made, trial.limit_s)
    if not before.same(trial.copy(element)):
        wrong = "the element changed while it was held"
    wrong = wrong or _wrong_batch(before, FAST_BATCHES)
    del element
    for number in range(FAST_BATCHES + 1, FAST_BATCHES + SLOW_BATCHES):
        wrong = wrong or _wrong_next(trial, iterator, wanted=number)
    trial.judge("slow consumer", wrong)
    if not wrong:
        trial.begin("stop")
        trial.judge("stop", _wrong_stop(trial, iterator, runner=runner))


def _wrong_next(trial: Trial, iterator: Iterator[Any], *, wanted: int) -> str:
    """Take an element; describe it if it is another batch."""
    found = trial.take(iterator, 1)
    return _wrong_batch(found[0], wanted) if found else f"the iteration ended before batch {wanted}"


def _wrong_batch(element: ReceivedElement, wanted: int) -> str:
    ids = list(range(wanted * BATCH_RECORDS, (wanted + 1) * BATCH_RECORDS))
    if element.ids == ids:
        return ""
    return f"the records {shortened(element.ids)} came instead of {shortened(ids)}"


def _wrong_stop(trial: Trial, iterator: Iterator[Any], *, runner: FeedRunner) -> str:
    expected: tuple[type[BaseException], ...] = (FeedStopped, *trial.traits.errors)
    stopper = threading.Thread(target=runner.stop, name="check_sink stops")
    stopper.start()
    try:
        for _ in range(GATED_BATCHES):  # elements that the sink took ahead may come first
            next(iterator)
        return f"{GATED_BATCHES} more elements came after the stop"
    except expected:
        return ""
    except StopIteration:
        return "the iteration ended without an error"
    finally:
        trial.unblock()  # no thread can be interrupted
        stopper.join(trial.limit_s)

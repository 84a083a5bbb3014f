"""The accelerator's own clock, on a stream that is made here: no test needs a device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnose.evidence import DeviceGapFigures, Evidence
from fastfeed.diagnose.hooks import device_clock
from fastfeed.diagnose.hooks.device_clock import ArrayReadiness, CudaEvents, all_done
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.diagnose.report.json import json_of
from fastfeed.diagnose.report.sections import sections_of
from fastfeed.probes.machine_log import Machine
from fastfeed.steps.timeline import UNOBSERVED, DeviceGap, Loop, Mark, Step, Timeline
from fastfeed.steps.watch import watch
from tests.diagnose.hooked import Clock, loops, watched


class Stream:
    """A device that does what is queued, in order: torch.cuda as far as it is called."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.done_s = clock.now  # when all that is queued will be done
        self.capturing = False
        self.started = True
        self.broken = False

    def compute(self, seconds: float) -> None:
        """Queue some work; the host goes on at once."""
        self.done_s = max(self.clock.now, self.done_s) + seconds

    def synchronize(self) -> None:
        self.clock.now = max(self.clock.now, self.done_s)

    def is_initialized(self) -> bool:
        return self.started

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def Event(self, *, enable_timing: bool) -> Event:
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.at_s = float("nan")

    def record(self) -> None:
        if self.stream.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.at_s = max(self.stream.clock.now, self.stream.done_s)

    def query(self) -> bool:
        return self.stream.clock.now >= self.at_s

    def elapsed_time(self, last: Event) -> float:
        assert self.query() and last.query(), "torch raises an error"
        return (last.at_s - self.at_s) * 1e3


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """A device of torch."""
    found = Stream(Clock())
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=found))
    return found


Fetches = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans()), min_size=1, max_size=30
)


@given(Fetches)
def test_gaps_and_work_fill_the_time_of_the_device(fetches: list[tuple[int, int, bool]]) -> None:
    """However the host runs ahead, and wherever it waits for the device: (ms of a fetch, ms of the
    step, whether the step ends with a synchronisation)."""
    clock = Clock()
    stream = Stream(clock)
    begin_s, events, loop = clock.now, CudaEvents(stream), Loop("loop", "watch", 1)

    def fetch(ms: int) -> None:
        begun_s = clock.now
        entry = events.enter()
        clock.advance(ms / 1e3)
        events.leave(entry, loop=loop, fetched=DeviceGap(begun_s, ms / 1e3))

    for fetch_ms, step_ms, synchronous in fetches:
        fetch(fetch_ms)
        stream.compute(step_ms / 1e3)
        if synchronous:
            stream.synchronize()
    stream.synchronize()
    fetch(0)  # all that was queued before has been passed
    assert len(loop.device_gaps) == len(fetches) + 1
    gaps_s = sum(gap.seconds for gap in loop.device_gaps)
    worked_s = sum(step_ms for _, step_ms, _ in fetches) / 1e3
    assert gaps_s + worked_s == pytest.approx(clock.now - begin_s)


def test_a_loop_whose_steps_are_queued(stream: Stream) -> None:
    """The host only waits for batches, and the device for none of them but the first."""

    def batches() -> Iterator[int]:
        for n in range(5):
            stream.clock.advance(0.01)
            yield n

    with watched("fastfeed.steps.watch", "watched_loops") as log:
        for _ in watch(batches()):
            stream.compute(0.04)
        stream.synchronize()
        list(watch([1]))  # the device has passed the rest
    (loop,) = (one for one in loops(log, "watch") if len(one.steps) == 5)
    assert [gap.begin_s for gap in loop.device_gaps] == [step.begin_s for step in loop.steps]
    assert [gap.seconds for gap in loop.device_gaps] == pytest.approx([0.01, 0, 0, 0, 0])


def test_what_has_no_clock_is_left_alone(stream: Stream) -> None:
    """Before CUDA is in use, and while a graph is captured, no event is queued."""
    log, loop = HookLog(Timeline()), Loop("loop", "watch", 1)
    stream.started = False
    assert log.fetch(loop, lambda: 1, begin_s=0.0) == 1
    stream.started = stream.capturing = True
    assert log.fetch(loop, lambda: 2, begin_s=0.0) == 2
    stream.capturing = False
    with pytest.raises(StopIteration):
        log.fetch(loop, iter(()).__next__, begin_s=0.0)
    assert loop.device_gaps == [] and log.missing == []
    assert log.fetch(loop, lambda: 3, begin_s=0.0) == 3
    assert len(loop.device_gaps) == 1


def test_a_device_that_has_failed_does_not_end_the_script(stream: Stream) -> None:
    log, loop = HookLog(Timeline()), Loop("loop", "watch", 1)
    stream.broken = True
    numbers = iter(range(3))
    fetched = [log.fetch(loop, numbers.__next__, begin_s=0.0) for _ in range(3)]
    assert fetched == [0, 1, 2]
    (told,) = log.missing
    assert told.startswith("the accelerator's clock: RuntimeError: CUDA error")
    assert loop.device_gaps == []


class Array:
    """An array of JAX; it is ready from the `n`-th question on, or after a wait of 0.1 s, or was
    given away."""

    def __init__(self, n: int | None, clock: Clock) -> None:
        self.n = n
        self.clock = clock

    def is_ready(self) -> bool:
        if self.n is None:
            raise RuntimeError("Array has been deleted.")
        self.n -= 1
        return self.n < 0

    def block_until_ready(self) -> None:
        self.clock.advance(0.1)


@pytest.mark.parametrize(
    ("arrays", "gaps"),
    [
        ([0, 0, None], [0.4, 0.4]),
        ([0, 1], [0.3]),
        ([0, 1, 9], [0.0, 0.0]),
        ([], [0.4, 0.4]),
    ],
    ids=["idle", "ready meanwhile", "works on", "nothing there"],
)
def test_what_the_readiness_of_arrays_tells(
    arrays: list[int | None], gaps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array that became ready within a fetch is waited for at the next one."""
    turned = Clock()
    monkeypatch.setattr(device_clock, "perf_counter", turned)
    live: list[Array] = []
    clock, loop = ArrayReadiness(lambda: live), Loop("loop", "watch", 1)
    for _ in range(2):
        live[:] = [Array(n, turned) for n in arrays]
        entry = clock.enter()
        assert entry is not None
        clock.leave(entry, loop=loop, fetched=DeviceGap(7.0, 0.4))
    assert loop.device_gaps == [DeviceGap(7.0, pytest.approx(gap)) for gap in gaps]


def test_little_time_is_spent_on_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait of a tenth of a second is followed by ten seconds without."""
    turned, waits = Clock(), 0
    monkeypatch.setattr(device_clock, "perf_counter", turned)
    clock, loop = ArrayReadiness(lambda: [Array(1, turned)]), Loop("loop", "watch", 1)
    for _ in range(1900):
        entry = clock.enter()
        if entry is not None:
            waits += entry.waited_s is not None
            clock.leave(entry, loop=loop, fetched=DeviceGap(7.0, 0.4))
        turned.advance(0.01)
    assert waits == 2


def test_many_arrays_are_not_asked_at_each_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A millisecond of questions is followed by half a second without."""
    clock, asked = Clock(), 0

    def live() -> list[Any]:
        nonlocal asked
        asked += 1
        clock.advance(0.001)
        return []

    monkeypatch.setattr(device_clock, "perf_counter", clock)
    readiness = ArrayReadiness(live)
    for _ in range(900):
        readiness.enter()
        clock.advance(0.001)
    assert asked == 2


def test_jax_is_not_asked_before_it_has_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question would make one, on every device."""
    bridge = SimpleNamespace(_backends={})
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(live_arrays=list))
    log, loop = HookLog(Timeline()), Loop("loop", "watch", 1)
    log.fetch(loop, lambda: 1, begin_s=1.0)
    assert loop.device_gaps == []
    bridge._backends["cpu"] = object()
    log.fetch(loop, lambda: 1, begin_s=2.0)
    assert [gap.begin_s for gap in loop.device_gaps] == [2.0]


def test_the_share_of_the_time_in_which_the_device_had_no_work() -> None:
    """Steps of 10 ms, of which every second one was timed; what lies before the watch is none of
    it."""
    steps = [Step(n * 0.01, (n + 1) * 0.01, 0.005) for n in range(200)]
    gaps = [DeviceGap(step.begin_s, 0.009) for step in steps[:100]]
    gaps += [DeviceGap(step.begin_s, 0.002) for step in steps[100::2]]
    loop = Loop("loop", "torch", 1, steps=steps, device_gaps=gaps)
    seen = Evidence(loop, (), (), Machine(2), 1.0 - 1e-6, 2.0)
    assert seen.device_gap == DeviceGapFigures(50, 0.002, 0.002, pytest.approx(0.2))
    told = json_of(judge(seen))
    text = " ".join(text for section in sections_of(told) for text in section.texts)
    assert "2.0 ms (p99 2.0 ms), 20 % of the time, by its own clock" in text
    assert told["device_gap"]["share"] == pytest.approx(0.2)
    host = replace(seen, loop=replace(loop, device_gaps=[]))
    assert host.device_gap is None


def test_the_device_has_no_share_of_the_time_of_experiments() -> None:
    """They take half of the time, and fetch faster than the loop."""
    steps = [Step(n * 0.01, (n + 1) * 0.01, 0.009) for n in range(100)]
    steps += [Step(n * 0.01, (n + 1) * 0.01, 0.009) for n in range(200, 300)]
    gaps = [DeviceGap(step.begin_s, 0.009) for step in steps]
    gaps += [DeviceGap(1.0 + n * 0.001, 0.0005) for n in range(1000)]
    loop = Loop("loop", "watch", 1, steps=steps, device_gaps=gaps)
    marks = (Mark("experiment", 1.0, 1.7), Mark(UNOBSERVED, 1.5, 2.0), Mark("callback", 0.0, 3.0))
    found = Evidence(loop, marks, (), Machine(2), 0.0, 3.0).device_gap
    assert found is not None
    assert (found.fetches, found.share) == (200, pytest.approx(0.9))


def test_gaps_are_dropped_with_their_steps() -> None:
    loop = Loop("loop", "torch", 1)
    for n in range(40):
        loop.add(Step(n, n + 1, 0.0), max_steps=10)
        loop.device_gaps.append(DeviceGap(n, 0.1))
    assert len(loop.steps) <= 10
    assert [gap.begin_s for gap in loop.device_gaps] == [step.begin_s for step in loop.steps]


class ComputedArray:
    """An array of JAX that is computed once somebody waits for it, or was given to a step."""

    def __init__(self, *, donated: bool = False) -> None:
        self.donated = donated
        self.ready = False

    def block_until_ready(self) -> None:
        if self.donated:
            raise RuntimeError("Array has been deleted.")
        self.ready = True


def test_all_that_jax_was_asked_for_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [ComputedArray(), ComputedArray(donated=True), ComputedArray()]
    bridge = SimpleNamespace(_backends={})
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(live_arrays=lambda: arrays))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)  # type: ignore[arg-type]
    assert all_done() is None, "a question to JAX would make a backend"
    bridge._backends["cpu"] = object()
    finish = all_done()
    assert finish is not None
    finish()
    assert [array.ready for array in arrays] == [True, False, True]

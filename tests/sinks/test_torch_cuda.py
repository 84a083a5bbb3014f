"""Copies to CUDA on a separate stream: lifetimes of memory, with a stand-in for torch.cuda and on a
GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner

torch = pytest.importorskip("torch", reason="pip install torch")
from fastfeed.sinks import torch_iter  # noqa: E402  # needs torch
from fastfeed.sinks.torch_iter import SideStream, TorchBatches  # noqa: E402


class Event:
    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.done = False

    def record(self, stream: Stream) -> None:
        self.log.append(("record", stream.name))

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.log.append(("synchronize",))
        self.done = True


class Stream:
    device = "cuda:0"

    def __init__(self, name: str, log: list[Any]) -> None:
        self.name = name
        self.log = log

    def wait_event(self, event: Event) -> None:
        self.log.append((self.name, "waits"))


class Cuda:
    """A stand-in for the used part of torch.cuda; a copy must not be used before its event is
    `done`."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.events: list[Event] = []
        self.current = "main"

    def Stream(self, device: Any) -> Stream:  # torch's name
        return Stream("side", self.log)

    def Event(self) -> Event:  # torch's name
        self.events.append(Event(self.log))
        return self.events[-1]

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream.name
        yield
        self.current = before

    def current_stream(self, device: Any) -> Stream:
        return Stream(self.current, self.log)


class Tensor:
    """A tensor on the host, or (`at`) a copy on the device."""

    def __init__(self, cuda: Cuda, memory: Any = None, *, at: str = "host") -> None:
        self.cuda = cuda
        self.memory = memory
        self.at = at

    def pin_memory(self) -> Tensor:
        return Tensor(self.cuda, self.memory.clone(), at="pinned")

    def contiguous(self) -> Tensor:
        return self

    def to(self, device: str, *, non_blocking: bool) -> Tensor:
        self.cuda.log.append(("copy from", self.at, "on", self.cuda.current, non_blocking))
        if self.memory is None:
            raise MemoryError
        return Tensor(self.cuda, at=device)

    def record_stream(self, stream: Stream) -> None:
        self.cuda.log.append((self.at, "used on", stream.name))


@pytest.fixture
def cuda() -> Cuda:
    return Cuda()


@pytest.mark.parametrize("pin", [True, False])
def test_a_copy_runs_on_the_side_and_the_current_stream_waits_for_its_event_alone(
    pin: bool, cuda: Cuda
) -> None:
    side = SideStream(torch.device("cuda"), pin=pin, cuda=cuda)
    flight = side.begin([Tensor(cuda, torch.zeros(3)), Tensor(cuda, torch.zeros(3))])
    source = "pinned" if pin else "host"
    assert cuda.log == [("copy from", source, "on", "side", True)] * 2 + [("record", "side")]
    cuda.log.clear()
    arrived = side.finish(flight)
    assert cuda.log == [
        ("main", "waits"),
        ("cuda:0", "used on", "main"),
        ("cuda:0", "used on", "main"),
    ]
    assert [tensor.at for tensor in arrived] == ["cuda:0"] * 2
    cuda.log.clear()
    side.close()
    side.close()
    assert cuda.log == [("synchronize",)]


def numbers(count: int, shape: tuple[int, ...]) -> Callable[[], Iterator[np.ndarray]]:
    """Return a source that is pickled by value: an import of this file would import torch in the
    workers."""

    def numbered() -> Iterator[np.ndarray]:
        for number in range(count):
            yield np.full(shape, number, np.float32)

    return numbered


numbered = numbers(200, (8, 1000))


def test_the_slot_is_held_until_the_copy_is_over_and_no_longer(cuda: Cuda) -> None:
    side = SideStream(torch.device("cuda"), pin=False, cuda=cuda)
    with FeedRunner(numbered, processes=1, memory=12 * 36864) as runner:
        batches = iter(runner.torch())

        def lent() -> int:
            return runner.snapshot().slots.lent

        flights = [side.begin([Tensor(cuda, next(batches))]) for _ in range(3)]
        for flight in flights:
            side.finish(flight)
        del flights, flight
        assert lent() == 3, "delivered and dropped, but the copies run"
        cuda.events[1].done = True
        side.begin([Tensor(cuda, next(batches))])
        assert lent() == 4, (
            "the stream does one copy after another: an event behind an unfinished one tells "
            "nothing"
        )
        cuda.events[0].done = True
        side.begin([Tensor(cuda, next(batches))])
        assert lent() == 3
        batches.close()
        side.close()
        assert lent() == 0


def test_pinned_copies_free_the_slot_at_once_and_are_held_themselves(cuda: Cuda) -> None:
    side = SideStream(torch.device("cuda"), pin=True, cuda=cuda)
    with FeedRunner(numbered, processes=1, memory=12 * 36864) as runner:
        batches = iter(runner.torch())
        side.begin([Tensor(cuda, next(batches))])
        assert runner.snapshot().slots.lent == 0
        ((_, (pinned,)),) = side._copies
        assert pinned.at == "pinned"
        batches.close()
    side.close()
    assert not side._copies


def test_a_copy_that_was_begun_is_held_also_where_the_next_one_fails(cuda: Cuda) -> None:
    side = SideStream(torch.device("cuda"), pin=False, cuda=cuda)
    with pytest.raises(MemoryError):
        side.begin([Tensor(cuda, torch.zeros(3)), Tensor(cuda)])
    assert len(side._copies) == 1
    side.close()
    assert cuda.log[-2:] == [("record", "side"), ("synchronize",)]


class Side:
    """A stand-in for SideStream."""

    def __init__(self, device: Any, *, pin: bool) -> None:
        self.log: list[Any] = [(device.type, pin)]

    def begin(self, tensors: list[Any]) -> list[Any]:
        self.log.append(("begin", int(tensors[0][0])))
        return tensors

    def finish(self, flight: list[Any]) -> list[Any]:
        self.log.append(("finish", int(flight[0][0])))
        return flight

    def close(self) -> None:
        self.log.append("close")


@pytest.mark.parametrize("leave_at", [None, 1])
def test_the_next_batch_is_in_flight_before_this_one_is_waited_for(
    leave_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides: list[Side] = []
    monkeypatch.setattr(
        torch_iter,
        "SideStream",
        lambda *given, **rest: sides.append(Side(*given, **rest)) or sides[-1],
    )
    source = [{"x": np.full(2, n)} for n in range(3)]
    with FeedRunner(lambda: iter(source)) as runner:
        batches = iter(TorchBatches(runner.torch()._iterations, torch.device("cuda"), pin=True))
        for batch in batches:
            assert list(batch) == ["x"]
            sides[0].log.append(("step", int(batch["x"][0])))
            if batch["x"][0] == leave_at:
                batches.close()
    begun = [
        ("cuda", True),
        ("begin", 0),
        ("begin", 1),
        ("finish", 0),
        ("step", 0),
        ("begin", 2),
        ("finish", 1),
        ("step", 1),
    ]
    assert sides[0].log == [*begun, *([] if leave_at else [("finish", 2), ("step", 2)]), "close"]


@pytest.fixture(scope="module")
def context() -> None:
    """A context of CUDA, whose driver keeps a pipe for as long as the process lives."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.zeros(1, device="cuda").sum().item()


@pytest.mark.gpu
@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("pin", [True, False])
def test_on_a_gpu_every_batch_arrives_whole(pin: bool) -> None:
    with FeedRunner(numbered, processes=1, memory=12 * 36864) as runner:
        for _ in range(3):
            kept = []
            for number, tensor in enumerate(runner.torch(device="cuda", pin_memory=pin)):
                torch.cuda._sleep(100_000)  # the step is behind
                kept.append((number, tensor.sum(), tensor if number % 10 == 0 else None))
            assert len(kept) == 200
            assert all(int(total) == 8000 * number for number, total, _ in kept)
            assert all(bool((t == number).all()) for number, _, t in kept if t is not None)
        for tensor in runner.torch(device="cuda", pin_memory=pin):
            assert tensor.device.type == "cuda"
            break
        del tensor, kept
        assert runner.snapshot().slots.lent == 0

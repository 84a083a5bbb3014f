"""Sinks that break one promise each, around the plain loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from fastfeed import FeedRunner, FeedStopped, ProducerError
from tests.helpers.rings import give_back_early

MIDDLE = 50  # beyond the end of the scenes with few batches
LAST = 401  # record


class Loop:
    """The plain loop, which breaks nothing."""

    def __init__(self, runner: FeedRunner) -> None:
        self.runner = runner

    def __iter__(self) -> Iterator[Any]:
        yield from self.runner


class DropsTheLast(Loop):
    def __iter__(self) -> Iterator[Any]:
        for element in self.runner:
            if LAST not in element.index:
                yield element


class RepeatsOne(Loop):
    def __iter__(self) -> Iterator[Any]:
        for number, element in enumerate(self.runner):
            yield element
            if number == MIDDLE:
                yield element


class Reorders(Loop):
    """Gives a batch after its successor."""

    def __iter__(self) -> Iterator[Any]:
        held = None
        for number, element in enumerate(self.runner):
            if number == MIDDLE:
                held = element
                continue
            yield element
            if number == MIDDLE + 1:
                yield held


class Changes(Loop):
    """Gives another element than it took."""

    def __iter__(self) -> Iterator[Any]:
        for element in self.runner:
            yield self.changed(element)

    def changed(self, element: Any) -> Any:
        raise NotImplementedError


class ChangesAValue(Changes):
    """Makes the smallest possible change: the sign of a zero."""

    def changed(self, element: Any) -> Any:
        number, (levels, zeros) = element.nested
        return element._replace(nested=(number, [levels, np.abs(zeros)]))


class ChangesADtype(Changes):
    def changed(self, element: Any) -> Any:
        return element._replace(index=element.index.astype(np.int32))


class ChangesTheStructure(Changes):
    def changed(self, element: Any) -> Any:
        return element._asdict()


class ChangesAShape(Changes):
    def changed(self, element: Any) -> Any:
        return element._replace(index=element.index[:, None])


class KeepsWhatItTookAhead(Loop):
    """Holds one batch when the loop is left, and opens the next iteration with it."""

    held: Any = None

    def __iter__(self) -> Iterator[Any]:
        if self.held is not None:
            yield self.held
        for element in self.runner.prefetch_to_device(lambda batch: batch):
            self.held = element
            yield element
        self.held = None


class ReplaysTheFirstPass(Loop):
    def __init__(self, runner: FeedRunner) -> None:
        super().__init__(runner)
        self.cache: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        yield from self.cache
        if not self.cache:
            for element in self.runner:
                self.cache.append(element)
                yield element


class GivesMemoryBackTooEarly(Loop):
    """Gives the slot of every batch back although its arrays are views of it."""

    def __init__(self, runner: FeedRunner) -> None:
        super().__init__(runner)
        self.passes = runner._iterations_of("a broken sink")

    def __iter__(self) -> Iterator[Any]:
        one = iter(self.passes)
        while (batch := one.take()) is not None:
            give_back_early(batch)
            yield one.feed.spec.rebuild(batch)


class KeepsLeases(Loop):
    def __init__(self, runner: FeedRunner, leases: list[Any]) -> None:
        super().__init__(runner)
        self.leases = leases

    def __iter__(self) -> Iterator[Any]:
        for element in self.runner:
            if not self.leases:
                self.leases.append(element)
            yield element


class SwallowsErrors(Loop):
    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.runner
        except ProducerError:
            return


class LosesTheTraceback(Loop):
    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.runner
        except ProducerError as error:
            raise ProducerError("record 20 cannot be read") from error.__cause__


class LosesTheCause(Loop):
    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.runner
        except ProducerError as error:
            raise ProducerError(str(error)) from None


class RaisesAnother(Loop):
    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.runner
        except ProducerError as error:
            raise KeyError(str(error)) from error


class RaisesTooEarly(Loop):
    """Raises the error before a batch that was made earlier."""

    def __iter__(self) -> Iterator[Any]:
        stream = iter(self.runner)
        for element in stream:
            try:
                following = [next(stream)]
            except StopIteration:
                following = []
            yield element
            yield from following


class RepeatsWhereNothingIsReady(Loop):
    def __iter__(self) -> Iterator[Any]:
        for element in self.runner:
            # before the producers of a fast consumer may continue
            ready = self.runner.snapshot().depth
            yield element
            if not ready:
                yield element


class SkipsWhereItIsBehind(Loop):
    def __iter__(self) -> Iterator[Any]:
        for element in self.runner:
            if self.runner.snapshot().depth < 4:
                yield element


class EndsWhenStopped(Loop):
    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.runner
        except FeedStopped:
            return


class Hangs(Loop):
    """Hangs in its third element, until it is released."""

    def __init__(self, runner: FeedRunner, let_go: threading.Event) -> None:
        super().__init__(runner)
        self.let_go = let_go

    def __iter__(self) -> Iterator[Any]:
        for number, element in enumerate(self.runner):
            if number == 2:
                self.let_go.wait()
            yield element


class NeedsOneMore(Loop):
    """Gives a batch only when the next one is there."""

    def __iter__(self) -> Iterator[Any]:
        stream = iter(self.runner)
        held = [next(stream)]
        for element in stream:
            held.append(element)
            yield held.pop(0)
        yield from held


class LeaksAThread(Loop):
    def __init__(self, runner: FeedRunner, let_go: threading.Event) -> None:
        super().__init__(runner)
        threading.Thread(target=let_go.wait, name="forgotten").start()


class LeaksADescriptor(Loop):
    def __init__(self, runner: FeedRunner, opened: list[int]) -> None:
        super().__init__(runner)
        opened += os.pipe()


class NeverEnds(Loop):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.runner


class Fails(Loop):
    def __iter__(self) -> Iterator[Any]:
        raise ZeroDivisionError("a mistake of the sink's own")


class OverwritesWhatItGave(Loop):
    """Changes its elements as soon as they are read again."""

    def __iter__(self) -> Iterator[Any]:
        for element in self.runner:
            yield element._replace(index=Changing(element.index))


class Changing:
    """An array with other values each time."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.looks = -1

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self.looks += 1
        return self.array + np.int64(self.looks)

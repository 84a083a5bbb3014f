"""The sink for `fit` of Keras 3 on any backend: a PyDataset whose batches come in the runner's
order."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import MethodType
from typing import TYPE_CHECKING, Any

from fastfeed.augment.device import on_host
from fastfeed.core.structure import describe, lists_to_tuples, rebuild
from fastfeed.errors import FeedError, MissingExtra, SpecError, StateError

try:
    import keras
except ImportError as error:
    raise MissingExtra("Keras", "keras") from error

if TYPE_CHECKING:
    from fastfeed.core.batch import BatchSpec
    from fastfeed.runner.iteration import EpochIterator, IterationManager

LOOK_UP_S = 0.1
# batches that Keras takes at most to learn the shapes, in an iteration that it then begins again
LOOKED_AT = 2


def keras_data(passes: IterationManager) -> KerasData:
    """Return a `keras.utils.PyDataset` of the iterations, each of which is an epoch of `fit`.

    Raise StateError for a Keras that reads PyDatasets in an unknown way.
    """
    _take_over_iteration()
    return KerasData(passes) if passes.length is None else SizedKerasData(passes)


class KerasData(keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no types
    """A PyDataset each of whose iterators is an iteration over the runner, in its own order,
    whatever `shuffle=` says.

    Batches that Keras took only for their shapes, to build the model, are delivered again; they are
    held until then. Raise what iteration over the runner raises, and SpecError for batches that are
    not (x,), (x, y), (x, y, weights) or a dict of x.
    """

    def __init__(self, passes: IterationManager) -> None:
        # one: the iterator's own thread, and nothing is taken ahead into a queue
        super().__init__(workers=1)
        self._passes = passes
        self._lock = threading.Lock()
        self._pass: EpochIterator | None = None
        self._reader = 0  # the number of the newest iterator
        self._given = 0  # batches of the iteration that an iterator has for good
        self._ahead: deque[Any] = deque()  # batches taken and not given
        # what the newest iterator was given, while that may have been for the shapes only
        self._held: list[Any] | None = None
        # the adapter of Keras, one for each fit(), whose iterator that is
        self._of: weakref.ref[Any] | None = None
        self._asked = False  # Keras asked for the length since it had a batch
        self._failed: FeedError | None = None  # alive until it has crossed TensorFlow

    @property
    def num_batches(self) -> int | None:
        """Batches of an iteration, or None if that is unknown before its end; Keras asks before it
        begins another one."""
        self._asked = True
        return self._passes.length

    def __iter__(self) -> Iterator[Any]:
        return self.read(None)

    def read(self, adapter: Any) -> Iterator[Any]:
        """Return an iteration for an adapter of Keras, or for none."""
        with self._lock:
            if (
                self._held
                and adapter is not None
                and self._of is not None
                and self._of() is adapter
            ):
                self._ahead.extendleft(reversed(self._held))
                self._given = 0
            self._begin()
            self._of = None if adapter is None else weakref.ref(adapter)
            reader = self._reader
        del adapter
        while (batch := self._next(reader)) is not None:
            yield batch

    def __getitem__(self, index: int) -> Any:
        """Return a batch of the next iteration, which is held, with all before it, until an
        iterator takes them."""
        with self._lock:
            if self._given:
                self._begin()
            while len(self._ahead) <= index and (batch := self._take()) is not None:
                self._ahead.append(batch)
            if not self._ahead or (index >= len(self._ahead) and self._passes.length is not None):
                raise IndexError(f"batch {index} of a pass of {len(self._ahead)}")
            # Keras asks for two even where there may be only one
            return self._ahead[min(index, len(self._ahead) - 1)]

    def on_epoch_end(self) -> None:
        """Note, for Keras, that what it has had was trained on, unless it is about to begin and has
        asked for the length."""
        if not self._asked:
            self._held = None

    def crossing(self, adapter: Any) -> Iterator[Any]:
        """Return an iteration for TensorFlow's runtime, which fastfeed's errors cross only with a
        mark."""
        from fastfeed.sinks.tf_errors import crossing

        errors = crossing()
        try:
            yield from self.read(adapter)
        except FeedError as error:
            self._failed = error
            raise errors.marked(error) from None

    def _next(self, reader: int) -> Any:
        while not self._lock.acquire(timeout=LOOK_UP_S):  # see IterationManager.take
            self._refuse(reader)
        try:
            self._refuse(reader)
            batch = self._ahead.popleft() if self._ahead else self._take()
            if batch is None:
                return None
            self._asked = False
            self._given += 1
            if self._held is not None:
                self._held.append(batch)
                if len(self._held) > LOOKED_AT:
                    self._held = None
            return batch
        finally:
            self._lock.release()

    def _refuse(self, reader: int) -> None:
        self._passes.refuse_stopped()
        if reader != self._reader:
            self._passes.superseded()

    def _begin(self) -> None:
        """Begin an iteration, unless nothing of the present one was given, or its length is
        unknown."""
        self._reader += 1
        if self._given and (self._passes.length is not None or not self._more()):
            self._pass = None
            self._ahead.clear()
        self._given = 0
        self._held = []

    def _more(self) -> bool:
        """Return True if there is more of the present iteration."""
        if not self._ahead and (batch := self._take()) is not None:
            self._ahead.append(batch)
        return bool(self._ahead)

    def _take(self) -> Any:
        """Return the next batch as Keras expects it, or None at the end."""
        if self._pass is None:
            _check(self._passes.spec)
            self._pass = iter(self._passes)
        batch = self._pass.take()
        return (
            None
            if batch is None
            else lists_to_tuples(rebuild(self._passes.spec.structure, on_host(batch).leaves))
        )


class SizedKerasData(KerasData):
    """Such a dataset whose number of batches is known."""

    def __len__(self) -> int:
        return self._passes.length or 0


def _check(spec: BatchSpec) -> None:
    """Raise SpecError for batches that fit() cannot take."""
    of = spec.structure
    if of is not None and not issubclass(of.kind, dict) and len(of.children) not in (1, 2, 3):
        raise SpecError(
            "fit() needs batches (x,), (x, y), (x, y, sample_weight) or a dict of x, and these are "
            f"{describe(of)}: put several inputs into one tuple or dict, ((a, b), y)"
        )
    for leaf in spec.leaves:
        if leaf.dtype.kind not in "biuf":
            raise SpecError(
                f"{leaf.path} has dtype {leaf.dtype}, which Keras does not have: make numbers in "
                "transform="
            )


def _take_over_iteration() -> None:
    """Have Keras iterate over these datasets as they are, instead of asking for (shuffled) numbers
    without end.

    So each iterator is an iteration of its own, and one of unknown length ends.
    """
    try:
        from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

        plain = PyDatasetAdapter._get_iterator
        known = hasattr(keras.utils.PyDataset, "num_batches")
    except (ImportError, AttributeError):
        known = False
    if not known:
        raise StateError(
            f"Keras {keras.__version__} reads a PyDataset in an unknown way (needed: "
            "3.3 or later): feed fit() with dataset()"
        )
    if not isinstance(plain, Iteration):
        PyDatasetAdapter._get_iterator = Iteration(plain)


class Iteration:
    """Replaces a method of Keras' adapter for a PyDataset."""

    def __init__(self, plain: Callable[[Any], Iterator[Any]]) -> None:
        self._plain = plain

    def __get__(self, adapter: Any, kind: type) -> Any:
        if adapter is None:
            return self
        if not isinstance(adapter.py_dataset, KerasData):
            return MethodType(self._plain, adapter)
        # Keras before 3.6 would have TensorFlow mix, and hold, eight batches
        adapter.shuffle = False
        # TensorFlow never releases this function, and fit() holds the adapter
        loose = weakref.ref(adapter)
        return lambda: _batches(loose())


def _batches(adapter: Any) -> Iterator[Any]:
    data = adapter.py_dataset
    batches = (
        data.crossing(adapter) if keras.backend.backend() == "tensorflow" else data.read(adapter)
    )
    return map(adapter._standardize_batch, batches)

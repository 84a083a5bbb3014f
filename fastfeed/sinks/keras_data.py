"""The sink for `fit` of Keras 3 on any backend: a PyDataset in the order of the runner."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.augment.device import on_host
from fastfeed.core.dtypes import BYTES, cast
from fastfeed.core.structure import (
    NOTHING,
    Container,
    Structure,
    containers,
    describe,
    flattenable,
    rebuild,
)
from fastfeed.errors import FeedError, SpecError, StateError, required

with required("Keras", "keras"):
    import keras

if TYPE_CHECKING:
    from fastfeed.core.batch import BatchSpec, LeafSpec
    from fastfeed.runner.iteration import EpochIterator, IterationManager

DATASET_LOCK_POLL_S = 0.1
# batches that Keras takes at most to learn the shapes, in an iteration that it then begins again
MAX_SHAPE_BATCHES = 2


def keras_data(iterations: IterationManager) -> KerasData:
    """Return a `keras.utils.PyDataset` of the iterations, each of which is an epoch of `fit`.

    Raise StateError for a Keras that reads PyDatasets in an unknown way.
    """
    _patch_adapter()
    iterations.skip_end()
    return KerasData(iterations) if iterations.length is None else SizedKerasData(iterations)


class KerasData(keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no types
    """A PyDataset. Each of its iterators is an iteration over the runner, in its order, for any
    `shuffle=`.

    Batches that Keras takes only for their shapes, to build the model, are kept and delivered
    again. Raise what iteration over the runner raises, and SpecError for batches that are not (x,),
    (x, y), (x, y, weights) or a dict of x.
    """

    def __init__(self, iterations: IterationManager) -> None:
        # one worker: the thread of the iterator, without a queue of batches
        super().__init__(workers=1)
        self._iterations = iterations
        self._lock = threading.Lock()
        self._iterator: EpochIterator | None = None
        self._iterator_number = 0  # of the newest iterator
        self._delivered = 0  # batches of this iteration that are not delivered again
        self._pending: deque[Any] = deque()  # batches to deliver before those of the runner
        # batches of the newest iterator, while Keras may have taken them for their shapes only
        self._shape_batches: list[Any] | None = None
        # the adapter of Keras that owns the newest iterator; each fit() has one
        self._adapter: weakref.ref[Any] | None = None
        self._length_requested = False  # Keras read the length after its last batch
        self._error: FeedError | None = None  # kept alive until it has passed TensorFlow
        self._structure: Structure = None  # of the batches of the iterator
        self._narrower: list[tuple[int, LeafSpec, np.dtype[Any]]] = []  # leaves to be cast

    @property
    def num_batches(self) -> int | None:
        """Batches of an iteration, or None if unknown. Keras reads this before each iteration."""
        self._length_requested = True
        return self._iterations.length

    def __iter__(self) -> Iterator[Any]:
        return self.read(None)

    def read(self, adapter: Any) -> Iterator[Any]:
        """Return an iteration for an adapter of Keras, or for none."""
        with self._lock:
            if (
                self._shape_batches
                and adapter is not None
                and self._adapter is not None
                and self._adapter() is adapter
            ):
                self._pending.extendleft(reversed(self._shape_batches))
                self._delivered = 0
            self._begin()
            self._adapter = None if adapter is None else weakref.ref(adapter)
            number = self._iterator_number
        del adapter
        while (batch := self._next(number)) is not None:
            yield batch

    def __getitem__(self, index: int) -> Any:
        """Return a batch of the next iteration. It is kept, with all before it, for the next
        iterator."""
        with self._lock:
            if self._delivered:
                self._begin()
            while len(self._pending) <= index and (batch := self._take()) is not None:
                self._pending.append(batch)
            count, length = len(self._pending), self._iterations.length
            if not count or (length is not None and index >= length):
                raise IndexError(f"batch {index} of an iteration of {count}")
            # Keras reads two batches even if there is only one
            return self._pending[min(index, count - 1)]

    def on_epoch_end(self) -> None:
        """Called by Keras. Forget the batches that it took for their shapes, unless it has read the
        length and is about to begin."""
        if not self._length_requested:
            self._shape_batches = None

    def read_for_tensorflow(self, adapter: Any) -> Iterator[Any]:
        """Return an iteration for the runtime of TensorFlow, through which errors pass with a
        mark."""
        from fastfeed.sinks.tf_errors import error_registry

        registry = error_registry()
        try:
            yield from self.read(adapter)
        except FeedError as error:
            self._error = error
            raise registry.mark(error) from None

    def _next(self, number: int) -> Any:
        while not self._lock.acquire(timeout=DATASET_LOCK_POLL_S):  # see IterationManager.take
            self._refuse(number)
        try:
            self._refuse(number)
            batch = self._pending.popleft() if self._pending else self._take()
            if batch is None:
                return None
            self._length_requested = False
            self._delivered += 1
            if self._shape_batches is not None:
                self._shape_batches.append(batch)
                if len(self._shape_batches) > MAX_SHAPE_BATCHES:
                    self._shape_batches = None
            return batch
        finally:
            self._lock.release()

    def _refuse(self, number: int) -> None:
        self._iterations.refuse_stopped()
        if number != self._iterator_number:
            self._iterations.superseded()

    def _begin(self) -> None:
        """Begin an iteration. Continue the present one if none of its batches was delivered, or if
        its length is unknown."""
        self._iterator_number += 1
        if self._delivered and (self._iterations.length is not None or not self._has_more()):
            self._iterator = None
            self._pending.clear()
        self._delivered = 0
        self._shape_batches = []

    def _has_more(self) -> bool:
        """Return True if the present iteration has more batches."""
        if not self._pending and (batch := self._take()) is not None:
            self._pending.append(batch)
        return bool(self._pending)

    def _take(self) -> Any:
        """Return the next batch as Keras expects it, or None at the end."""
        if self._iterator is None:
            self._structure = _checked(self._iterations.spec)
            self._narrower = [
                (number, leaf, dtype)
                for number, leaf in enumerate(self._iterations.spec.leaves)
                if (dtype := _narrower(leaf.dtype)) is not None
            ]
            if isinstance(self, SizedKerasData) and self._iterations.length is None:
                raise SpecError(
                    "collate= or batch_transform= returns more records than it gets, so that an "
                    "epoch has more batches than Keras was told, and it would stop there: pass "
                    "runner.dataset() to fit(), or return as many records"
                )
            self._iterator = iter(self._iterations)
        batch = self._iterator.take()
        if batch is None:
            return None
        leaves = list(on_host(batch).leaves)
        for number, leaf, dtype in self._narrower:
            leaves[number] = cast(leaves[number], dtype, where=leaf.path)
        return rebuild(self._structure, leaves)


class SizedKerasData(KerasData):
    """A dataset with a known number of batches."""

    def __len__(self) -> int:
        return self._iterations.length or 0


def _checked(spec: BatchSpec) -> Structure:
    """Return the structure of batches for fit(): (x, y) for (x, y, None). Raise SpecError for
    batches that it cannot take."""
    container = flattenable(spec.structure)
    if container is not None and issubclass(container.kind, tuple):
        while container.children[1:] and container.children[-1] == NOTHING:
            container = Container(tuple, container.keys[:-1], container.children[:-1])
        if len(container.children) > 3:
            raise SpecError(
                "fit() needs batches (x,), (x, y), (x, y, sample_weight) or a dict of x, and these "
                f"are {describe(container)}: put several inputs into one tuple or dict, ((a, b), y)"
            )
    backend = keras.backend.backend()
    for leaf in spec.leaves:
        if leaf.dtype == BYTES:
            raise SpecError(
                f"{leaf.path} holds {leaf.name}, which runner.keras() cannot carry: make numbers "
                "in transform=, as in np.frombuffer(text.encode(), np.uint8). With TensorFlow, "
                "runner.dataset() carries bytes and text"
            )
        if not _held(leaf.dtype):
            raise SpecError(
                f"{leaf.path} has dtype {leaf.dtype}, which Keras on {backend} does not have: cast "
                "it with dtypes="
            )
    if backend == "tensorflow" and NOTHING in containers(container):
        raise SpecError(
            f"{describe(container)} holds None, which runner.keras() cannot carry on TensorFlow: "
            "runner.dataset() does"
        )
    return container


def _held(dtype: np.dtype[Any]) -> bool:
    """Return True for a dtype that the backend has. Complex numbers lose a part in most layers."""
    try:
        keras.ops.convert_to_tensor(np.empty(0, dtype))
    except (TypeError, ValueError):
        return False
    return dtype.kind != "c"


def _narrower(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the dtype in which the backend holds integers of 64 bits, None if it has them: JAX
    would wrap their values."""
    if dtype.kind not in "iu" or dtype.itemsize < 8:
        return None
    held = keras.backend.standardize_dtype(keras.ops.convert_to_tensor(np.empty(0, dtype)).dtype)
    return None if held == dtype.name else np.dtype(held)


def _patch_adapter() -> None:
    """Let Keras iterate over these datasets, instead of reading them by (shuffled) index.

    Each iterator is then a separate iteration, and one of unknown length ends.
    """
    try:
        from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

        plain = PyDatasetAdapter._get_iterator
        known = hasattr(keras.utils.PyDataset, "num_batches")
    except (ImportError, AttributeError):
        known = False
    if not known:
        raise StateError(
            f"Keras {keras.__version__} reads a PyDataset in an unknown way (must be "
            "3.3 or later): feed fit() with dataset()"
        )
    if not isinstance(plain, AdapterPatch):
        PyDatasetAdapter._get_iterator = AdapterPatch(plain)


class AdapterPatch:
    """Replaces `_get_iterator` of the adapter of Keras for a PyDataset."""

    def __init__(self, plain: Callable[[Any], Iterator[Any]]) -> None:
        self._plain = plain

    def __get__(self, adapter: Any, kind: type) -> Any:
        if adapter is None:
            return self
        if not isinstance(adapter.py_dataset, KerasData):
            return MethodType(self._plain, adapter)
        # Keras before 3.6 would let TensorFlow shuffle, and keep, eight batches
        adapter.shuffle = False
        # TensorFlow never releases this function; fit() keeps the adapter alive
        weak_adapter = weakref.ref(adapter)
        return lambda: _batches(weak_adapter())


def _batches(adapter: Any) -> Iterator[Any]:
    data = adapter.py_dataset
    on_tensorflow = keras.backend.backend() == "tensorflow"
    read = data.read_for_tensorflow if on_tensorflow else data.read
    return map(adapter._standardize_batch, read(adapter))

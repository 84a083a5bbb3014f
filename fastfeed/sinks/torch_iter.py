"""The sink for PyTorch: tensors that share the memory of a batch, or asynchronous copies to
CUDA."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.augment.device import on_device
from fastfeed.core.batch import Batch, LeafSpec
from fastfeed.core.dtypes import BYTES, decoded
from fastfeed.core.structure import rebuild
from fastfeed.errors import OptionError, SpecError, StateError, required
from fastfeed.sinks.ahead import length, one_ahead

with required("PyTorch", "torch"):
    import torch
    from torch.utils.data import IterableDataset, get_worker_info

if TYPE_CHECKING:
    from fastfeed.runner.iteration import IterationManager

Tensors = list[Any]  # tensors, and lists of bytes or text


def torch_iter(
    iterations: IterationManager, *, device: Any, pin_memory: bool | None
) -> TorchBatches:
    """Return an iterable of the batches as tensors on `device` (None: the CPU).

    Raise OptionError for a device that does not exist, and for `pin_memory` without CUDA.
    """
    where = _device(device)
    pin = where.type == "cuda" if pin_memory is None else bool(pin_memory)
    if pin and not torch.cuda.is_available():
        raise OptionError(
            "torch(pin_memory=True): PyTorch sees no CUDA device, so pinned memory has no use: "
            "leave it out"
        )
    return TorchBatches(iterations, where, pin=pin)


class TorchBatches(IterableDataset[Any]):
    """The batches as tensors. `DataLoader(batches, batch_size=None, num_workers=0)` works.

    Raise SpecError for leaves that torch cannot hold, and StateError inside a worker of DataLoader.
    """

    def __init__(self, iterations: IterationManager, device: torch.device, *, pin: bool) -> None:
        self._iterations = iterations
        self._device = device
        self._pin = pin

    def __len__(self) -> int:
        """Return the batches of an iteration. Raise TypeError if that is unknown."""
        return length(self._iterations)

    def __getstate__(self) -> None:
        raise _for_workers()

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise _for_workers()
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        spec = self._iterations.spec
        sharers = [_sharer(leaf) for leaf in spec.leaves]
        copier = SideStream(self._device, pin=self._pin) if self._device.type == "cuda" else None

        def tensors(batch: Batch) -> Tensors:
            return [share(leaf) for share, leaf in zip(sharers, batch.leaves, strict=True)]

        def convert(batch: Batch) -> Any:
            sources = [_pinned(tensor) if self._pin else tensor for tensor in tensors(batch)]
            return rebuild(spec.structure, [_moved(tensor, self._device) for tensor in sources])

        if copier is None:
            # no variable of this frame holds a batch during the wait for the next one
            yield from map(convert, iter(iter(self._iterations).take, None))
            return
        try:
            copies = one_ahead(self._iterations, lambda batch: copier.begin(tensors(batch)))
            yield from (rebuild(spec.structure, moved) for moved in map(copier.finish, copies))
        finally:
            copier.close()


class SideStream:
    """Copies to a CUDA device on a separate stream. `cuda` stands for `torch.cuda`.

    Sources are kept until their copy is complete. Completion is polled, and only waited for at the
    end.
    """

    def __init__(self, device: torch.device, *, pin: bool, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._pin = pin
        self._stream = cuda.Stream(device)
        # events, and the sources of the copies before them
        self._copies: deque[tuple[Any, Tensors]] = deque()

    def begin(self, tensors: Tensors) -> tuple[Tensors, Any]:
        """Begin to copy; return the copies, and the event that follows them."""
        self._forget_finished()
        # Other tensors would be copied by way of a temporary one without a reference.
        sources = [_pinned(t) if self._pin else _contiguous(t) for t in tensors]
        event = self._cuda.Event()
        try:
            with self._cuda.stream(self._stream):
                moved = [_moved(t, self._stream.device, non_blocking=True) for t in sources]
        finally:  # the first copy has begun even if the device has no memory for the second
            event.record(self._stream)
            self._copies.append((event, sources))
        return moved, event

    def finish(self, begun: tuple[Tensors, Any]) -> Tensors:
        """Return the copies. Later work of the current stream waits for them."""
        copies, event = begun
        current = self._cuda.current_stream(self._stream.device)
        current.wait_event(event)
        for tensor in copies:
            # otherwise the side stream, which owns the memory, would reuse it too early
            if not isinstance(tensor, list):
                tensor.record_stream(current)
        self._forget_finished()
        return copies

    def close(self) -> None:
        """Wait for the copies that are in progress."""
        while self._copies:
            self._copies[0][0].synchronize()
            self._copies.popleft()

    def _forget_finished(self) -> None:
        while self._copies and self._copies[0][0].query():
            self._copies.popleft()


def _pinned(tensor: Any) -> Any:
    """Return the tensor in page-locked memory; a list, or a tensor on a GPU, as it is."""
    as_it_is = isinstance(tensor, list) or getattr(tensor, "is_cuda", False)
    return tensor if as_it_is else tensor.pin_memory()


def _contiguous(tensor: Any) -> Any:
    return tensor if isinstance(tensor, list) else tensor.contiguous()


def _moved(tensor: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    return tensor if isinstance(tensor, list) else tensor.to(device, non_blocking=non_blocking)


def _device(given: Any) -> torch.device:
    try:
        device = torch.device("cpu" if given is None else given)
    except (RuntimeError, TypeError) as error:
        text = str(error).splitlines()[0]
        raise OptionError(
            f"torch(device={given!r}) is no device: must be 'cpu' or such as 'cuda:0' ({text})"
        ) from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise OptionError(
            f"torch(device={given!r}): PyTorch sees {torch.cuda.device_count()} CUDA devices"
        )
    return device


def _for_workers() -> StateError:
    return StateError(
        "runner.torch() cannot be read in worker processes of DataLoader, which would each have a "
        "copy of the runner: use DataLoader(..., batch_size=None, num_workers=0), and "
        "FeedRunner(..., processes=) makes batches in parallel"
    )


def _sharer(leaf: LeafSpec) -> Callable[[Any], Any]:
    """Return the function that makes a tensor of an array of this leaf, or a list of bytes or text.
    Raise SpecError if torch has no such dtype."""
    if leaf.dtype == BYTES:
        return _texts if leaf.text else _bytes
    name = leaf.dtype.name
    # of ml_dtypes, which torch does not know
    if name.startswith(("bfloat16", "float8")) and hasattr(torch, name):
        bits, dtype = np.dtype(f"i{leaf.dtype.itemsize}"), getattr(torch, name)
        return lambda array: _shared(array.view(bits)).view(dtype)
    try:
        torch.from_numpy(np.empty(0, leaf.dtype))
    except TypeError:
        raise SpecError(
            f"{leaf.path} holds {name}, which torch does not have: cast numbers in the producers "
            "with dtypes="
        ) from None
    return _shared


def _bytes(array: np.ndarray[Any, Any]) -> Any:
    return array.tolist()


def _texts(array: np.ndarray[Any, Any]) -> Any:
    return decoded(array).tolist()


def _shared(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a tensor in the memory of the array, on any device; a copy if the array is read-only,
    or has strides that torch does not support."""
    if on_device(array):
        tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(array)
        return tensor
    if array.flags.writeable:
        try:
            return torch.from_numpy(array)
        except ValueError:  # negative strides, or strides that are no multiple of the item size
            pass
    return torch.from_numpy(array.copy())

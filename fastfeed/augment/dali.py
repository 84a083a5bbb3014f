"""One DALI pipeline that executes the plans of records, on the CPU or a GPU, several batches in
flight."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfeed.augment.device import DeviceArray
from fastfeed.augment.packing import Packed, SampleKind
from fastfeed.augment.spec import Augment, HandOver, Placed
from fastfeed.augment.steps import Blend, Constant, RandomWindow
from fastfeed.augment.values import Cast, Layout, Normalize
from fastfeed.errors import MissingExtra, OptionError, SpecError

try:
    from nvidia.dali import Pipeline, backend, fn, types
except ImportError as error:
    raise MissingExtra("NVIDIA DALI", "dali") from error

from fastfeed.augment.dali_steps import Argument, Graph, check, decoded, finished, moved

TAIL = (Normalize, Cast, Layout, Blend)  # steps that are executed together, at the end


class DaliPipe:
    """`start` a batch, `finish` the oldest one that was started; a few may be in flight.

    `kinds`: of the images, then of the masks; `rows`: the most records of a batch; `pad`: fills the
    rest of images that are smaller than others of their batch. Nothing is copied on the host: a
    batch must not change between `start` and its `finish`. After a RuntimeError of either this
    pipeline is unusable. Raise OptionError for steps that DALI does not have, and for a missing
    GPU.
    """

    def __init__(
        self,
        augment: Augment,
        kinds: Sequence[SampleKind],
        *,
        rows: int,
        device: str,
        pad: float | None,
    ) -> None:
        self._program = handed_over(augment)
        check(self._program)
        self._augment = augment
        self._device = device
        self._pad = pad
        self._arguments: list[Argument] = []
        self._held: deque[Any] = deque()  # what DALI may still read
        self._names = [f"input{n}" for n in range(len(kinds))]
        self._layouts = [None if kind.encoded else "HWC" for kind in kinds]
        self._pipeline = Pipeline(
            batch_size=rows,
            num_threads=len(os.sched_getaffinity(0)),
            device_id=0 if device == "gpu" else None,
            # results stay valid as long as they are referenced, also after the next ones
            exec_dynamic=True,
            prefetch_queue_depth=1,  # what runs ahead is what was started, and never an empty batch
        )
        with self._pipeline:
            self._pipeline.set_outputs(*(self._drawn(n, kind) for n, kind in enumerate(kinds)))
        self._build()

    def start(self, packed: Packed) -> None:
        """Begin to work on a batch."""
        for name, samples, layout in zip(self._names, packed.samples, self._layouts, strict=True):
            self._pipeline.feed_input(name, list(samples), layout=layout)
        numbers = [np.ascontiguousarray(a.make(packed.plan[:, a.image])) for a in self._arguments]
        for argument, values in zip(self._arguments, numbers, strict=True):
            self._pipeline.feed_input(argument.name, values)
        self._held.append((packed, numbers))
        self._pipeline.schedule_run()

    def finish(self) -> list[Any]:
        """Return an array for each image and mask: of numpy in DALI's own memory, or a DeviceArray.
        Raise SpecError if images that are not padded differ in size."""
        lists = self._pipeline.share_outputs()
        self._pipeline.release_outputs()
        self._held.popleft()
        return [_array(made, self._device) for made in lists]

    def _drawn(self, number: int, kind: SampleKind) -> Any:
        """Return the graph of one input."""
        graph = Graph(0 if kind.mask else number, self._names[number], kind, device=self._device)
        node = fn.external_source(name=graph.name, no_copy=True)
        steps = [
            placed for placed in self._program if not isinstance(placed.step, (*TAIL, Constant))
        ]
        decode = self._augment.decodes
        if kind.encoded and decode is not None:
            window = steps.pop(0) if steps and isinstance(steps[0].step, RandomWindow) else None
            node = decoded(node, decode, window=window, graph=graph)
        elif self._device == "gpu":
            node = node.gpu()
        for placed in steps:
            node = moved(node, placed, graph=graph)
        if not kind.mask:
            node = finished(
                node,
                [placed for placed in self._program if isinstance(placed.step, TAIL)],
                graph=graph,
            )
        self._arguments += graph.arguments
        return node if self._pad is None else fn.pad(node, fill_value=self._pad)

    def _build(self) -> None:
        try:
            self._pipeline.build()
        except RuntimeError as error:
            if self._device != "gpu":
                raise
            raise OptionError(
                f'augment_on="dali-gpu": DALI finds no GPU that it can use ({_first_line(error)}): '
                'needed an NVIDIA GPU with its driver, or augment_on="dali-cpu"'
            ) from error


def _array(made: Any, device: str) -> Any:
    if not made.is_dense_tensor():
        shapes = sorted(set(map(tuple, made.shape())))
        raise SpecError(
            f"images of one batch have different shapes, such as {shapes[:3]}: make one size with "
            "Resize, Crop or RandomResizedCrop, or set pad=True (zeros) or pad=<number>"
        )
    tensor = made.as_tensor()
    return (
        np.asarray(tensor)
        if device == "cpu"
        else DeviceArray(tensor, tuple(tensor.shape()), dtype=_dtype(tensor))
    )


def _dtype(tensor: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(types.to_numpy_type(tensor.dtype))
    return found


def handed_over(augment: Augment) -> list[Placed]:
    """Return the steps that are left for DALI."""
    program = list(augment.program)
    at = next((n for n, placed in enumerate(program) if isinstance(placed.step, HandOver)), -1)
    return program[at + 1 :]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def gpus() -> int:
    """Return how many GPUs DALI can use; 0 without a driver."""
    try:
        count: Any = backend
        return int(count.GetCUDADeviceCount())
    except RuntimeError:
        return 0

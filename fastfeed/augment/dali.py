"""One DALI pipeline that executes the plans of records, on the CPU or a GPU, several batches in
flight."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfeed.augment.device import DeviceArray
from fastfeed.augment.packing import PackedBatch, SampleKind
from fastfeed.augment.spec import Augment, HandOver, PlacedStep
from fastfeed.augment.steps import Blend, Constant, RandomWindow
from fastfeed.augment.values import Cast, Layout, Normalize
from fastfeed.errors import OptionError, SpecError, required

with required("NVIDIA DALI", "dali"):
    from nvidia.dali import Pipeline, backend, fn, types

from fastfeed.augment.dali_steps import (
    Argument,
    Graph,
    add_decoder,
    add_final_steps,
    add_step,
    refuse_unsupported,
)

FINAL_STEPS = (Normalize, Cast, Layout, Blend)  # steps that are executed together, at the end


class DaliPipe:
    """A pipeline: `start` a batch, `finish` the oldest one. A few may be in flight.

    `kinds` are those of the images, then of the masks. A batch has at most `rows` records. `pad`
    fills up images that are smaller than others of their batch. The host copies no data: a batch
    must not change between `start` and its `finish`. After a RuntimeError of either the pipeline is
    unusable. Raise OptionError for steps that DALI does not have, and for a missing GPU.
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
        self._dali_steps = dali_program(augment)
        refuse_unsupported(self._dali_steps)
        self._augment = augment
        self._device = device
        self._pad = pad
        self._arguments: list[Argument] = []
        self._in_flight: deque[Any] = deque()  # what DALI may still read
        self._names = [f"input{n}" for n in range(len(kinds))]
        self._layouts = [None if kind.encoded else "HWC" for kind in kinds]
        self._pipeline = Pipeline(
            batch_size=rows,
            num_threads=len(os.sched_getaffinity(0)),
            device_id=0 if device == "gpu" else None,
            # results stay valid while they are referenced, also after the next ones
            exec_dynamic=True,
            prefetch_queue_depth=1,  # only batches that were started run ahead, never an empty one
        )
        with self._pipeline:
            self._pipeline.set_outputs(
                *(self._input_graph(n, kind) for n, kind in enumerate(kinds))
            )
        self._build()

    def start(self, packed: PackedBatch) -> None:
        """Start to process a batch."""
        for name, samples, layout in zip(self._names, packed.samples, self._layouts, strict=True):
            self._pipeline.feed_input(name, list(samples), layout=layout)
        numbers = [
            np.ascontiguousarray(a.values_of(packed.plan[:, a.image])) for a in self._arguments
        ]
        for argument, values in zip(self._arguments, numbers, strict=True):
            self._pipeline.feed_input(argument.name, values)
        self._in_flight.append((packed, numbers))
        self._pipeline.schedule_run()

    def finish(self) -> list[Any]:
        """Return an array for each image and mask: a numpy array in the memory of DALI, or a
        DeviceArray. Raise SpecError if images that are not padded differ in size."""
        lists = self._pipeline.share_outputs()
        self._pipeline.release_outputs()
        self._in_flight.popleft()
        return [_result_array(results, self._device) for results in lists]

    def _input_graph(self, number: int, kind: SampleKind) -> Any:
        """Return the last node of the graph of one input."""
        graph = Graph(0 if kind.mask else number, self._names[number], kind, device=self._device)
        node = fn.external_source(name=graph.name, no_copy=True)
        steps = [
            placed
            for placed in self._dali_steps
            if not isinstance(placed.step, (*FINAL_STEPS, Constant))
        ]
        decode = self._augment.decodes
        if kind.encoded and decode is not None:
            window = steps.pop(0) if steps and isinstance(steps[0].step, RandomWindow) else None
            node = add_decoder(node, decode, window=window, graph=graph)
        elif self._device == "gpu":
            node = node.gpu()
        for placed in steps:
            node = add_step(node, placed, graph=graph)
        if not kind.mask:
            node = add_final_steps(
                node,
                [placed for placed in self._dali_steps if isinstance(placed.step, FINAL_STEPS)],
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
                f'Augment(on="dali-gpu"): DALI finds no GPU that it can use '
                f'({_first_line(error)}): install an NVIDIA driver, or set on="dali-cpu"'
            ) from error


def _result_array(results: Any, device: str) -> Any:
    if not results.is_dense_tensor():
        shapes = sorted(set(map(tuple, results.shape())))
        raise SpecError(
            f"images of one batch have different shapes, such as {shapes[:3]}: make one size with "
            "Resize, Crop or RandomResizedCrop, or set pad=True (zeros) or pad=<number>"
        )
    tensor = results.as_tensor()
    return (
        np.asarray(tensor)
        if device == "cpu"
        else DeviceArray(
            tensor, tuple(tensor.shape()), dtype=np.dtype(types.to_numpy_type(tensor.dtype))
        )
    )


def dali_program(augment: Augment) -> list[PlacedStep]:
    """Return the steps that DALI executes."""
    program = list(augment.program)
    at = next((n for n, placed in enumerate(program) if isinstance(placed.step, HandOver)), -1)
    return program[at + 1 :]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def gpu_count() -> int:
    """Return the number of GPUs that DALI can use; 0 without a driver."""
    try:
        count: Any = backend
        return int(count.GetCUDADeviceCount())
    except RuntimeError:
        return 0

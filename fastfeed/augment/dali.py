"""One DALI pipeline that executes the plans of records, on the CPU or a GPU, several batches in
flight. Its operators read the numbers of a record from external sources."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastfeed.augment.device import DeviceArray
from fastfeed.augment.operations import (
    MAX_LEVEL,
    Affine,
    Cast,
    Colour,
    Crop,
    Decode,
    Erase,
    Flip,
    GaussianBlur,
    Layout,
    Normalize,
    Operation,
    RandomResizedCrop,
    Resize,
)
from fastfeed.augment.packing import PackedBatch, SampleKind
from fastfeed.augment.spec import Augment, Program
from fastfeed.errors import OptionError, SpecError, required

with required("NVIDIA DALI", "dali"):
    from nvidia.dali import Pipeline, fn, types

Array = np.ndarray[Any, Any]
Node = Any  # of a DALI graph


# an external source of numbers: its name, and what computes them from the plan of a batch
Argument = tuple[str, Callable[[Array], Array]]


class DaliPipe:
    """A pipeline: `start` a batch, `finish` the oldest one. A few may be in flight.

    `kinds` are those of the images, then of the masks. A batch has at most `rows` records. `pad`
    fills up images that are smaller than others of their batch. The host copies no data: a batch
    must not change between `start` and its `finish`. After a RuntimeError of either the pipeline is
    unusable. Raise OptionError for a missing GPU.
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
        self._device = device
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
            graphs = [
                Graph(name, kind, row=0 if kind.mask else n, device=device)
                for n, (name, kind) in enumerate(zip(self._names, kinds, strict=True))
            ]
            nodes = [graph.end(augment) for graph in graphs]
            if pad is not None:
                nodes = [fn.pad(node, fill_value=pad) for node in nodes]
            self._pipeline.set_outputs(*nodes)
        self._arguments = [argument for graph in graphs for argument in graph.arguments]
        self._build()

    def start(self, packed: PackedBatch) -> None:
        """Start to process a batch."""
        for name, samples, layout in zip(self._names, packed.samples, self._layouts, strict=True):
            self._pipeline.feed_input(name, list(samples), layout=layout)
        numbers = [(name, values_of(packed.plan)) for name, values_of in self._arguments]
        for name, values in numbers:
            self._pipeline.feed_input(name, values)
        self._in_flight.append((packed, numbers))
        self._pipeline.schedule_run()

    def finish(self) -> list[Any]:
        """Return an array for each image and mask: a numpy array in the memory of DALI, or a
        DeviceArray. Raise SpecError if images that are not padded differ in size."""
        lists = self._pipeline.share_outputs()
        self._pipeline.release_outputs()
        self._in_flight.popleft()
        return [_result_array(results, self._device) for results in lists]

    def _build(self) -> None:
        try:
            self._pipeline.build()
        except RuntimeError as error:
            if self._device != "gpu":
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise OptionError(
                f'Augment(on="dali-gpu"): DALI finds no GPU that it can use ({reason}): install an '
                'NVIDIA driver, or set on="dali-cpu"'
            ) from error


class Graph:
    """The graph of one image or mask, the input `name`, from its bytes or pixels on. `row` is the
    number of its row in the plan. A mask is moved, and its values stay."""

    def __init__(self, name: str, kind: SampleKind, *, row: int, device: str) -> None:
        self.arguments: list[Argument] = []
        self._name = name
        self._row = row
        self._kind = kind
        self._device = device

    def end(self, augment: Augment) -> Node:
        """Return the last node."""
        node = fn.external_source(name=self._name, no_copy=True)
        program = augment.program
        decode = augment.first(Decode)
        if decode is not None and self._kind.encoded:
            node, program = self._decoded(node, decode, program=program)
        elif self._device == "gpu":
            node = node.gpu()
        operators = MOVERS if self._kind.mask else {**MOVERS, **CHANGERS}
        for op, numbers in program:
            if type(op) in operators:
                node = operators[type(op)](self, node, op=op, at=numbers)
        return node if self._kind.mask else self._final(node, augment)

    def numbers(self, values_of: Callable[[Array], Array]) -> Node:
        """Return a node with the numbers that `values_of` computes from the rows of this image."""
        name, row = f"{self._name}.{len(self.arguments)}", self._row
        self.arguments.append((name, lambda plan: np.ascontiguousarray(values_of(plan[:, row]))))
        return fn.external_source(name=name, batch=True, no_copy=True)

    def columns(self, start: int, stop: int, *, dtype: type) -> Node:
        """Return a node with some numbers of the rows."""
        if stop == start + 1:
            return self.numbers(lambda plan: plan[:, start].astype(dtype))
        return self.numbers(lambda plan: plan[:, start:stop].astype(dtype))

    def _decoded(self, node: Node, decode: Decode, *, program: Program) -> tuple[Node, Program]:
        """Return the pixels of files, turned as EXIF specifies, and the operations that are left:
        of a random window only that part is decoded."""
        options = {
            "device": "mixed" if self._device == "gpu" else "cpu",
            "output_type": types.RGB if decode.channels == "rgb" else types.GRAY,
        }
        op, at = program[1] if len(program) > 1 else (decode, slice(0))
        if not isinstance(op, RandomResizedCrop):
            return fn.decoders.image(node, **options), program
        anchor, shape = self._window(at, np.int32)
        node = fn.decoders.image_slice(node, anchor, shape, axes=(0, 1), **options)
        return self._resized(node, op.size, antialias=op.antialias), program[2:]

    def _final(self, node: Node, augment: Augment) -> Node:
        """Return `node` after Normalize, Cast and Layout."""
        normalize, cast = augment.first(Normalize), augment.first(Cast)
        layout = augment.first(Layout)
        order = "HWC" if layout is None else layout.order
        dtype = "uint8" if normalize is None else "float32"
        if normalize is not None:
            mean, std = normalize.of_channels(self._kind.channels)
            node = fn.crop_mirror_normalize(
                node, mean=mean, std=std, output_layout=order, dtype=types.FLOAT
            )
        elif order == "CHW":
            node = fn.transpose(node, perm=[2, 0, 1])
        if cast is not None and cast.dtype != dtype:
            node = fn.cast(node, dtype=types.FLOAT16 if cast.dtype == "float16" else types.FLOAT)
        return node

    def _window(self, at: slice, dtype: type) -> list[Node]:
        return [self.columns(at.start + n, at.start + n + 2, dtype=dtype) for n in (0, 2)]

    def _resized(self, node: Node, size: Any, *, antialias: bool) -> Node:
        # Without antialiasing DALI's triangular filter is linear interpolation.
        kind = types.INTERP_NN if self._kind.mask else types.INTERP_LINEAR
        return fn.resize(
            node, size=size, interp_type=kind, antialias=antialias and not self._kind.mask
        )

    def random_window(self, node: Node, *, op: RandomResizedCrop, at: slice) -> Node:
        """Add RandomResizedCrop."""
        node = fn.slice(node, *self._window(at, np.int32), axes=(0, 1))
        return self._resized(node, op.size, antialias=op.antialias)

    def resize(self, node: Node, *, op: Resize, at: slice) -> Node:
        """Add Resize."""
        size = self.columns(at.start, at.stop, dtype=np.float32)
        return self._resized(node, size, antialias=op.antialias)

    def crop(self, node: Node, *, op: Crop, at: slice) -> Node:
        """Add Crop."""
        fill = 0 if self._kind.mask else round(op.fill)
        return fn.slice(
            node,
            *self._window(at, np.int32),
            axes=(0, 1),
            out_of_bounds_policy="pad",
            fill_values=fill,
        )

    def flip(self, node: Node, *, op: Flip, at: slice) -> Node:
        """Add Flip."""
        horizontal, vertical = (
            self.columns(at.start + n, at.start + n + 1, dtype=np.int32) for n in range(2)
        )
        return fn.flip(node, horizontal=horizontal, vertical=vertical)

    def affine(self, node: Node, *, op: Affine, at: slice) -> Node:
        """Add Affine."""
        matrix = self.numbers(lambda plan: plan[:, at].astype(np.float32).reshape(-1, 2, 3))
        return fn.warp_affine(
            node,
            matrix=matrix,
            inverse_map=True,
            interp_type=types.INTERP_NN if self._kind.mask else types.INTERP_LINEAR,
            fill_value=0 if self._kind.mask else round(op.fill),
        )

    def colour(self, node: Node, *, op: Colour, at: slice) -> Node:
        """Add tones."""
        grey = self._kind.channels == 1

        def factors(plan: Array) -> Array:
            rows = plan[:, at].astype(np.float32).reshape(-1, 3, 4)[:, :, :3]
            return rows[:, :1].sum(axis=2, keepdims=True) if grey else rows

        def added(plan: Array) -> Array:
            rows = plan[:, at].astype(np.float32).reshape(-1, 3, 4)[:, :, 3]
            return rows[:, : self._kind.channels] * np.float32(MAX_LEVEL)

        return fn.coord_transform(
            node, M=self.numbers(factors), T=self.numbers(added), dtype=types.UINT8
        )

    def blur(self, node: Node, *, op: GaussianBlur, at: slice) -> Node:
        """Add GaussianBlur."""
        sigma = self.columns(at.start, at.start + 1, dtype=np.float32)
        window = self.columns(at.start + 1, at.stop, dtype=np.int32)
        return fn.gaussian_blur(node, sigma=sigma, window_size=window)

    def erase(self, node: Node, *, op: Erase, at: slice) -> Node:
        """Add Erase."""
        anchor, shape = self._window(at, np.float32)
        return fn.erase(node, anchor=anchor, shape=shape, axes=(0, 1), fill_value=round(op.fill))


MOVERS: dict[type[Operation], Callable[..., Node]] = {
    RandomResizedCrop: Graph.random_window,
    Resize: Graph.resize,
    Crop: Graph.crop,
    Flip: Graph.flip,
    Affine: Graph.affine,
}
CHANGERS: dict[type[Operation], Callable[..., Node]] = {
    Colour: Graph.colour,
    GaussianBlur: Graph.blur,
    Erase: Graph.erase,
}


def _result_array(results: Any, device: str) -> Any:
    if not results.is_dense_tensor():
        shapes = sorted(set(map(tuple, results.shape())))
        raise SpecError(
            f"images of one batch have different shapes, such as {shapes[:3]}: make one size with "
            "Resize, Crop or RandomResizedCrop, or set pad=True (zeros) or pad=<number>"
        )
    tensor = results.as_tensor()
    if device == "cpu":
        return np.asarray(tensor)
    dtype = np.dtype(types.to_numpy_type(tensor.dtype))
    return DeviceArray(tensor, tuple(tensor.shape()), dtype=dtype)

"""The DALI operators of the steps of a program. Each reads the numbers of a record from an external
source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastfeed.augment.geometry import Decode
from fastfeed.augment.packing import SampleKind
from fastfeed.augment.spec import PlacedStep
from fastfeed.augment.steps import (
    MAX_LEVEL,
    Blend,
    Blur,
    Colour,
    Cutout,
    FixedWindow,
    Mirror,
    RandomWindow,
    Scale,
    Warp,
)
from fastfeed.augment.values import Cast, Layout, Normalize
from fastfeed.errors import OptionError, SpecError, required

with required("NVIDIA DALI", "dali"):
    from nvidia.dali import fn, types

Array = np.ndarray[Any, Any]
Node = Any  # of a DALI graph
# Without antialiasing DALI's triangular and cubic filters are plain interpolation, as other
# libraries define it.
INTERPOLATION_TYPES = {
    "nearest": types.INTERP_NN,
    "linear": types.INTERP_LINEAR,
    "cubic": types.INTERP_CUBIC,
}
DALI_DTYPES = {
    "uint8": types.UINT8,
    "uint16": types.UINT16,
    "float16": types.FLOAT16,
    "float32": types.FLOAT,
}


@dataclass(frozen=True)
class Argument:
    """An external source of numbers, and the function that computes them from the plan rows of all
    records, (records, numbers)."""

    name: str
    image: int
    values_of: Callable[[Array], Array]


@dataclass
class Graph:
    """State while the graph of one image (or mask) is built."""

    image: int  # the number of its row in the plan
    name: str
    kind: SampleKind
    device: str = "cpu"
    arguments: list[Argument] = field(default_factory=list)

    def numbers(
        self, name: str, values_of: Callable[[Array], Array], *, image: int | None = None
    ) -> Node:
        """Return a node with the numbers that `values_of` computes from the rows of this image, or
        of another `image`."""
        name = f"{self.name}.{name}{len(self.arguments)}"
        self.arguments.append(Argument(name, self.image if image is None else image, values_of))
        return fn.external_source(name=name, batch=True, no_copy=True)


def refuse_unsupported(program: Sequence[PlacedStep]) -> None:
    """Raise OptionError for a step without an operator in DALI."""
    for placed in program:
        step = placed.step
        if isinstance(step, Warp) and step.interpolation == "cubic":
            raise OptionError(
                'augment: Rotate or Affine(interpolation="cubic") is not available in DALI: '
                'must be "linear" or "nearest", or on="producers"'
            )


def add_decoder(source: Node, decode: Decode, *, window: PlacedStep | None, graph: Graph) -> Node:
    """Return the pixels of files, turned as EXIF specifies; with a `window` only that part is
    decoded."""
    output = types.RGB if decode.channels == "rgb" else types.GRAY
    options = {"device": "mixed" if graph.device == "gpu" else "cpu", "output_type": output}
    if window is None:
        return fn.decoders.image(source, **options)
    anchor, shape = _window(window, graph)
    return fn.decoders.image_slice(source, anchor, shape, axes=(0, 1), **options)


def add_step(node: Node, placed: PlacedStep, *, graph: Graph) -> Node:
    """Return `node` after one step that moves pixels or changes their values. Masks are only
    moved."""
    operator = OPERATORS.get(type(placed.step))
    if operator is None or (graph.kind.mask and isinstance(placed.step, (Colour, Blur, Cutout))):
        return node
    return operator(node, placed, graph=graph)


def add_final_steps(node: Node, tail: Sequence[PlacedStep], *, graph: Graph) -> Node:
    """Return `node` after Normalize, Cast, Layout and Mixup."""
    steps = {type(placed.step): placed for placed in tail}
    normalize, cast, layout = (
        getattr(steps.get(kind), "step", None) for kind in (Normalize, Cast, Layout)
    )
    order = "HWC" if layout is None else layout.order
    if normalize is not None:
        mean, std = (
            _per_channel(values, graph.kind.channels) for values in (normalize.mean, normalize.std)
        )
        node = fn.crop_mirror_normalize(
            node, mean=mean, std=std, output_layout=order, dtype=types.FLOAT
        )
    elif order == "CHW":
        node = fn.transpose(node, perm=[2, 0, 1])
    blend = steps.get(Blend)
    if blend is not None:
        node = _add_mixup(fn.cast(node, dtype=types.FLOAT), blend, graph=graph)
    if cast is not None and (blend is None or cast.dtype != "float32"):
        node = fn.cast(node, dtype=DALI_DTYPES[cast.dtype])
    return node


def _add_mixup(node: Node, blend: PlacedStep, *, graph: Graph) -> Node:
    # A record has one share, that of its first image, for all its images and labels.
    share = graph.numbers("share", lambda plan: plan[:, blend.start].astype(np.float32), image=0)
    remainder = graph.numbers(
        "rest", lambda plan: 1 - plan[:, blend.start].astype(np.float32), image=0
    )
    following = graph.numbers(
        "next", lambda plan: np.roll(np.arange(len(plan), dtype=np.int32), -1)
    )
    return node * share + fn.permute_batch(node, indices=following) * remainder


def _per_channel(values: tuple[float, ...], channels: int) -> list[float]:
    if len(values) not in (1, channels):
        raise SpecError(
            f"Normalize({values}): must be one number, or one for each of {channels} channels of "
            "the images"
        )
    return list(values) * (channels if len(values) == 1 else 1)


def _window(placed: PlacedStep, graph: Graph) -> tuple[Node, Node]:
    start = placed.start
    anchor = graph.numbers("anchor", lambda plan: plan[:, start : start + 2].astype(np.int32))
    return anchor, graph.numbers(
        "shape", lambda plan: plan[:, start + 2 : start + 4].astype(np.int32)
    )


def _add_slice(node: Node, placed: PlacedStep, *, graph: Graph) -> Node:
    anchor, shape = _window(placed, graph)
    fill = 0 if graph.kind.mask else getattr(placed.step, "fill", 0)
    return fn.slice(node, anchor, shape, axes=(0, 1), out_of_bounds_policy="pad", fill_values=fill)


def _add_resize(node: Node, placed: PlacedStep, *, graph: Graph) -> Node:
    size = graph.numbers("size", lambda plan: plan[:, placed.numbers].astype(np.float32))
    step: Any = placed.step
    sampler = "nearest" if graph.kind.mask else step.interpolation
    return fn.resize(
        node,
        size=size,
        interp_type=INTERPOLATION_TYPES[sampler],
        antialias=step.antialias and not graph.kind.mask,
    )


def _add_flip(node: Node, placed: PlacedStep, *, graph: Graph) -> Node:
    step: Any = placed.step
    flags = {}
    for at, (side, chance) in enumerate(
        (("horizontal", step.horizontal), ("vertical", step.vertical))
    ):
        if chance:
            flags[side] = graph.numbers(side, _column(placed.start + at))
    return fn.flip(node, **{"horizontal": 0, **flags}) if flags else node


def _column(at: int) -> Callable[[Array], Array]:
    return lambda plan: plan[:, at].astype(np.int32)


def _add_warp(node: Node, placed: PlacedStep, *, graph: Graph) -> Node:
    step: Any = placed.step
    matrix = graph.numbers(
        "matrix", lambda plan: plan[:, placed.numbers].astype(np.float32).reshape(-1, 2, 3)
    )
    sampler = "nearest" if graph.kind.mask else step.interpolation
    dtype = graph.kind.dtype
    is_uint8 = dtype == "uint8"  # other dtypes are converted to floats, which hold all their values
    node = fn.warp_affine(
        node if is_uint8 else fn.cast(node, dtype=types.FLOAT),
        matrix=matrix,
        inverse_map=True,
        interp_type=INTERPOLATION_TYPES[sampler],
        fill_value=0 if graph.kind.mask else step.fill,
    )
    return node if is_uint8 else fn.cast(node, dtype=DALI_DTYPES[dtype])


def _add_colour(node: Node, placed: PlacedStep, *, graph: Graph) -> Node:
    max_level = MAX_LEVEL[graph.kind.dtype]
    grey = graph.kind.channels == 1

    def factors(plan: Array) -> Array:
        rows = plan[:, placed.numbers].astype(np.float32).reshape(-1, 3, 4)
        return (
            rows[:, :1, :3].sum(axis=2, keepdims=True)
            if grey
            else np.ascontiguousarray(rows[:, :, :3])
        )

    def added(plan: Array) -> Array:
        rows = plan[:, placed.numbers].astype(np.float32).reshape(-1, 3, 4)
        return np.ascontiguousarray(rows[:, : 1 if grey else 3, 3]) * np.float32(max_level)

    matrix, offset = graph.numbers("factors", factors), graph.numbers("added", added)
    return fn.coord_transform(node, M=matrix, T=offset, dtype=DALI_DTYPES[graph.kind.dtype])


def _add_blur(node: Node, placed: PlacedStep, *, graph: Graph) -> Node:
    def sigmas(plan: Array) -> Array:
        sigma = plan[:, placed.start].astype(np.float32)
        # a window of one pixel leaves the image unchanged, for any sigma
        return np.where(sigma > 0, sigma, np.float32(1))

    sigma = graph.numbers("sigma", sigmas)
    window = graph.numbers("window", lambda plan: plan[:, placed.start + 1].astype(np.int32))
    return fn.gaussian_blur(node, sigma=sigma, window_size=window)


def _add_erase(node: Node, placed: PlacedStep, *, graph: Graph) -> Node:
    def part(plan: Array, first: int) -> Array:
        rectangles = plan[:, placed.numbers].astype(np.float32).reshape(len(plan), -1, 4)
        return np.ascontiguousarray(rectangles[:, :, first : first + 2]).reshape(len(plan), -1)

    step: Any = placed.step
    anchor, shape = (
        graph.numbers("anchor", lambda plan: part(plan, 0)),
        graph.numbers("shape", lambda p: part(p, 2)),
    )
    return fn.erase(node, anchor=anchor, shape=shape, axes=(0, 1), fill_value=step.fill)


OPERATORS: dict[type, Callable[..., Node]] = {
    RandomWindow: _add_slice,
    FixedWindow: _add_slice,
    Scale: _add_resize,
    Mirror: _add_flip,
    Warp: _add_warp,
    Colour: _add_colour,
    Blur: _add_blur,
    Cutout: _add_erase,
}

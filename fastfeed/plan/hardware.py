"""Assumptions: accelerators, optimizers and everything that nobody gave. Each has its source."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from fastfeed.core.unix import usable_cores
from fastfeed.errors import OptionError
from fastfeed.plan.plan_figures import PROFILED, Figure, PlanFigures


@dataclass(frozen=True)
class Accelerator:
    """Peak FLOP/s, memory in bytes, dollars an hour (None: it changes from month to month)."""

    peak: float
    nbytes: float
    price: float | None
    source: str


ACCELERATORS = {
    "P100": Accelerator(10.6e12, 16e9, 1.46, "NVIDIA P100 SXM2, float32; Google Cloud, 2018"),
    "V100": Accelerator(15.7e12, 16e9, None, "NVIDIA V100 SXM2, float32"),
    "T4": Accelerator(8.1e12, 16e9, None, "NVIDIA T4, float32"),
    "A100": Accelerator(156e12, 40e9, None, "NVIDIA A100 40 GB, TF32"),
    "H100": Accelerator(495e12, 80e9, None, "NVIDIA H100 SXM, dense TF32"),
    "TPUv2": Accelerator(180e12, 64e9, 4.50, "Cloud TPU v2 of 4 chips, bfloat16; Google, 2018"),
}
# Numbers for each parameter beside itself and its gradient.
OPTIMIZER_SLOTS = {"sgd": 0, "momentum": 1, "adam": 2}  # Kingma and Ba 2014: two moments
# 219 images/s of ResNet-50 on one P100 (TensorFlow's benchmarks of May 2017, batch 64) are 22.8
# GFLOP each (3 x 2 x 3.8 G multiply-adds, He et al. 2015).
EFFICIENCY = round(219 * 22.8e9 / 10.6e12, 2)

DEFAULTS = {
    "accelerators": Figure(1, "assumed: one"),
    "per_machine": Figure(1, "assumed: one for each machine"),
    "element_bytes": Figure(1, "assumed: uint8 until the step casts it"),
    "parameter_bytes": Figure(4, "assumed: float32"),
    "optimizer": Figure("momentum", "assumed: one slot for each parameter"),
    "efficiency": Figure(
        EFFICIENCY,
        "ResNet-50 on a P100: 219 images/s (TensorFlow, 2017) x 22.8 GFLOP / 10.6 TFLOP/s",
    ),
    "exchange": Figure("allreduce", "assumed: synchronous, over a ring"),
    "checkpoint_every": Figure(1000, "assumed"),
    "cache": Figure("no", "the default of FeedRunner"),
    "trainer": Figure(500e6, "TensorFlow 2.21 on a CPU after the first steps"),
}
# Assumptions that matter only with one of these figures, and those that follow from another one.
ONLY_WITH = {
    "efficiency": ("flops",),
    "peak": ("flops",),
    "element_bytes": ("image",),
    "parameter_bytes": ("parameters", "weights"),
    "optimizer": ("parameters", "weights"),
    "checkpoint_every": ("parameters", "weights"),
    "exchange": ("accelerators", "machines"),
    "trainer": ("source",),
}
INSTEAD = {"per_machine": "machines", "element_bytes": "sample", "parameter_bytes": "weights"}


def assume(figures: PlanFigures) -> PlanFigures:
    """Return the figures with those of the named accelerator, and the defaults for the others.

    Raise OptionError for an unknown accelerator, or for contradictions.
    """
    found = dict(DEFAULTS)
    name = figures.get("accelerator")
    if name is not None:
        if name not in ACCELERATORS:
            raise OptionError(
                f"accelerator={name!r} is not known: must be one of {', '.join(ACCELERATORS)}; or "
                "give peak=, accelerator_memory= and price= without it"
            )
        kind = ACCELERATORS[name]
        found["peak"] = Figure(kind.peak, kind.source)
        found["accelerator_memory"] = Figure(kind.nbytes, kind.source)
        if kind.price is not None:
            found["price"] = Figure(kind.price, kind.source)
    if "servers" in figures:
        found["exchange"] = Figure("servers", "from servers")
    given = "source" in figures and figures.known["source"].source != PROFILED
    if given and not any(part in figures for part in ("lock", "native", "wait")):
        found["native"] = Figure(1.0, "assumed: all of source= is native code")
    if "cores" not in figures and "ram" not in figures:
        found["ram"] = Figure(psutil.virtual_memory().total, f"{PROFILED}: this machine")
    if "cores" not in figures:
        found["cores"] = Figure(usable_cores(), f"{PROFILED}: this machine")
    unused = [name for name, others in ONLY_WITH.items() if not any(o in figures for o in others)]
    replaced = [name for name, other in INSTEAD.items() if other in figures]
    for name in {*unused, *replaced}:
        found.pop(name, None)
    return figures.filled(found)

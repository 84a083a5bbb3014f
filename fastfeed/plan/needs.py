"""What a training needs, line by line: each with its formula and the source of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fastfeed.errors import OptionError
from fastfeed.plan.balance import balanced_batch
from fastfeed.plan.hardware import OPTIMIZER_SLOTS
from fastfeed.plan.plan_figures import PlanFigures

RING = "ring all-reduce: 2 (N - 1) / N x weights (Patarasuk and Yuan 2009)"
SERVERS = "parameter servers: 2 x weights for each worker (Li et al. 2014)"
HOUR_S = 3600.0
# Convolution outputs by multiply-adds of ResNet-50: 11.1 M by 4.1 G (Radosavovic et al. 2020); each
# is kept before and after its normalization, as float32. A training step has 6 FLOPs for each.
ACTIVATION_NBYTES = 11.1e6 / 4.1e9 / 6 * 2 * 4
ESTIMATE = "flops x 3.6 bytes / 1000, as ResNet-50 (Radosavovic et al. 2020)"
EFFICIENT = 0.9  # speed-up by accelerators at which an interconnect is enough


@dataclass(frozen=True)
class Need:
    """A line of a plan: a value with its unit, the formula, and a warning if it does not fit."""

    topic: str
    name: str
    value: float
    unit: str
    why: str
    warning: str = ""


@dataclass(frozen=True)
class Pace:
    """The speed of one accelerator: samples/s and starvation (0 to 1), None if unknown."""

    samples_per_s: float
    starvation: float | None = None


def exchanged_nbytes(figures: PlanFigures) -> float:
    """Return the bytes that one worker sends and receives in a step, 0 if it is alone."""
    count = figures["accelerators"]
    if count < 2 or "weights" not in figures:
        return 0.0
    if figures["exchange"] == "servers":
        return float(2 * figures["weights"])
    return float(2 * (count - 1) / count * figures["weights"])


def exchange_seconds(figures: PlanFigures) -> float:
    """Return the seconds of the exchange of a step, without overlap with the step; 0 if unknown.

    The busier of a worker and a parameter server counts.
    """
    if "interconnect" not in figures:
        return 0.0
    busiest = exchanged_nbytes(figures)
    if figures["exchange"] == "servers" and "servers" in figures:
        busiest *= max(1.0, figures["accelerators"] / figures["servers"])
    return float(busiest / figures["interconnect"])


def exchange(figures: PlanFigures, step_s: float | None) -> Iterator[Need]:
    """Yield the bytes exchanged between workers, and what the interconnect makes of them."""
    nbytes, count = exchanged_nbytes(figures), figures["accelerators"]
    if not nbytes:
        return
    servers = figures["exchange"] == "servers"
    yield Need("exchange", "a worker and step", nbytes, "B", SERVERS if servers else RING)
    if servers and "servers" in figures:
        share = nbytes * count / figures["servers"]
        yield Need("exchange", "a server and step", share, "B", "x workers / servers")
    if step_s is None:
        return
    seconds = exchange_seconds(figures)
    if seconds:
        gain = count * step_s / (step_s + seconds)
        slow = gain < count / 2
        yield Need("exchange", "time of a step", seconds, "s", "bytes / interconnect, no overlap")
        warning = "the interconnect is the limit: more than half of a step is exchange" * slow
        yield Need(
            "exchange", f"speed-up on {count:.0f}", gain, "x", "N step / (step + exchange)", warning
        )
    enough = nbytes / (step_s * (1 / EFFICIENT - 1))
    yield Need("exchange", "interconnect for 90 %", enough, "B/s", "bytes / (step x (1 / 0.9 - 1))")
    if "speedup" in figures:
        if not 1 <= figures["speedup"] < count:
            raise OptionError(
                f"speedup={figures['speedup']:g}, accelerators={count:g} contradict each other: "
                "a speed-up must be >= 1 and below their number"
            )
        lost_s = step_s * (count / figures["speedup"] - 1)
        yield Need("exchange", "measured: lost in a step", lost_s, "s", "step x (N / speed-up - 1)")
        yield Need("exchange", "measured: bandwidth", nbytes / lost_s, "B/s", "bytes / lost time")


def bandwidth(figures: PlanFigures, pace: Pace) -> Iterator[Need]:
    """Yield the bytes that must flow each second."""
    rate = pace.samples_per_s
    if "sample" in figures:
        why = "samples/s x bytes of a sample, each accelerator"
        yield Need("bandwidth", "host to device", rate * figures["sample"], "B/s", why)
    if "stored" not in figures:
        return
    read = rate * figures["stored"] * figures["per_machine"]
    for name, what in (("storage", "reading, a machine"), ("network", "network, a machine")):
        short = name in figures and figures[name] < read
        warning = f"{name} is slower: it limits the samples/s" * short
        yield Need("bandwidth", what, read, "B/s", "samples/s x stored bytes, no cache", warning)


def duration(figures: PlanFigures, pace: Pace) -> Iterator[Need]:
    """Yield the time of an epoch and of the run, and what they cost."""
    rate = pace.samples_per_s * figures["accelerators"]
    yield Need("time", "samples/s", rate, "", "of all accelerators")
    spans = []
    if "samples" in figures:
        spans.append(("an epoch", figures["samples"] / rate, "samples / samples/s"))
    if figures.have("steps", "minibatch"):
        why = "steps x minibatch / samples/s"
        spans.append(("the run", figures["steps"] * figures["minibatch"] / rate, why))
    for name, seconds, why in spans:
        yield Need("time", name, seconds, "s", why)
    if "price" not in figures:
        return
    hourly = figures["price"] * figures["accelerators"]
    yield Need("money", "an hour", hourly, "$", "price x accelerators")
    lost, cost = pace.starvation, 0.0
    if lost is not None:
        yield Need("money", "starvation, an hour", hourly * lost, "$", "x starvation")
    for name, seconds, _ in spans:
        cost = hourly * seconds / HOUR_S
        yield Need("money", name, cost, "$", "price x accelerators x hours")
    if lost is not None and "steps" in figures:
        yield Need("money", "starvation, the run", cost * lost, "$", "x starvation")


def measured(figures: PlanFigures) -> Iterator[Need]:
    """Yield what a measured time of the run implies."""
    if not figures.have("took", "steps", "minibatch"):
        return
    took_s, samples = figures["took"], figures["steps"] * figures["minibatch"]
    yield Need("measured", "samples/s", samples / took_s, "", "steps x minibatch / took")
    if "flops" in figures:
        reached = samples * figures["flops"] / took_s
        yield Need("measured", "FLOP/s", reached, "FLOP/s", "x flops")
        if "peak" in figures:
            share = reached / figures["peak"] / figures["accelerators"]
            yield Need("measured", "of the peak", share, "%", "FLOP/s / (peak x accelerators)")
    if "price" in figures:
        cost = figures["price"] * figures["accelerators"] * took_s / HOUR_S
        yield Need("measured", "the run", cost, "$", "price x accelerators x hours")


def state_nbytes(figures: PlanFigures) -> float:
    """Return the bytes of weights and optimizer."""
    return float(figures["weights"] * (1 + OPTIMIZER_SLOTS[figures["optimizer"]]))


def activation_nbytes(figures: PlanFigures) -> float | None:
    """Return the bytes that a step keeps of a sample, given or estimated from its FLOPs."""
    given = figures.get("activations")
    if given is None and "flops" in figures:
        given = figures["flops"] * ACTIVATION_NBYTES
    return None if given is None else float(given)


def accelerator_memory(figures: PlanFigures) -> Iterator[Need]:
    """Yield the memory of an accelerator at the batch size."""
    if "weights" not in figures:
        return
    state, total = state_nbytes(figures), state_nbytes(figures) + figures["weights"]
    yield Need("device", "weights", figures["weights"], "B", "parameters x bytes of one")
    why = f"weights, gradients, slots of the optimizer: {OPTIMIZER_SLOTS[figures['optimizer']]}"
    yield Need("device", "parameters + optimizer", state + figures["weights"], "B", why)
    kept = activation_nbytes(figures)
    if kept is not None and "batch" in figures:
        guess = "activations" if "activations" in figures else ESTIMATE
        held = kept * figures["batch"]
        yield Need("device", "activations", held, "B", f"batch x {guess}")
        total += held + figures["batch"] * figures.get_or("sample", 0.0)
    have = figures.get("accelerator_memory")
    warning = ""
    if have is not None and total > have:
        warning = "does not fit into accelerator_memory: lower batch, or split the model"
    yield Need("device", "in all", total, "B", "+ the batch itself", warning)


def storage(figures: PlanFigures) -> Iterator[Need]:
    """Yield the disk for the data set and the checkpoints, and the download."""
    total = 0.0
    if "dataset" in figures:
        total += figures["dataset"]
        yield Need("storage", "data set", figures["dataset"], "B", "samples x stored bytes")
        if "network" in figures:
            seconds = figures["dataset"] / figures["network"]
            yield Need("storage", "its download", seconds, "s", "bytes / network")
    if figures.have("weights", "steps"):
        made = figures["steps"] // figures["checkpoint_every"]
        kept = min(made, figures.get_or("checkpoints", math.inf))
        total += kept * state_nbytes(figures)
        why = f"{kept:.0f} x (weights + optimizer)"
        yield Need("storage", "checkpoints", kept * state_nbytes(figures), "B", why)
    if figures["cache"] == "disk" and figures.have("samples", "sample"):
        cached = cache_nbytes(figures)
        total += cached
        yield Need("storage", "cache", cached, "B", "the machine's share of the samples")
    if total:
        full = "disk" in figures and figures["disk"] < total
        warning = "does not fit on disk: keep fewer checkpoints, or read from the network" * full
        yield Need("storage", "in all", total, "B", "on one machine", warning)


def cache_nbytes(figures: PlanFigures) -> float:
    """Return the bytes of the samples that the trainers of one machine cache."""
    share = min(1.0, figures["per_machine"] / figures["accelerators"])
    return float(figures["samples"] * figures["sample"] * share)


def balance(figures: PlanFigures, producers: int) -> Iterator[Need]:
    """Yield the batch size that balances input and step, if the step is known at two sizes."""
    if not figures.have("source", "step") or len(figures["step"]) < 2:
        return
    most, kept = None, activation_nbytes(figures)
    if kept and figures.have("accelerator_memory", "weights"):
        room = figures["accelerator_memory"] - state_nbytes(figures) - figures["weights"]
        most = max(1, int(room // (kept + figures.get_or("sample", 0.0))))
    lost_s = exchange_seconds(figures)
    steps = [(batch, seconds + lost_s) for batch, seconds in figures["step"]]
    found = balanced_batch(figures["source"], steps, producers=producers, most=most)
    if found.limit == "input":
        why = f"fixed + a x batch = source x batch / {producers}: {found.samples_per_second:.3g}/s"
    else:
        why = "the input is faster at any batch: 5 % of the step is its fixed part"
    yield Need("input", "balanced batch", found.batch, "samples", why)

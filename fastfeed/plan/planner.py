"""A plan: the figures, the speed with any number of producers, and everything that is needed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fastfeed.errors import OptionError
from fastfeed.model.bounds import LIMIT_PRODUCERS, demands, step_seconds
from fastfeed.model.workload import INPUT_BOUND, Producers, Workload
from fastfeed.plan import needs
from fastfeed.plan.footprint import FeedSize, MemoryCost
from fastfeed.plan.hardware import assume
from fastfeed.plan.needs import Need, Pace
from fastfeed.plan.plan_figures import KNOWN, PlanFigures
from fastfeed.plan.profiled import SourceProfile
from fastfeed.plan.speed import (
    PlannedSetting,
    cores_needed,
    cores_of_trainer,
    fewest,
    producers_given,
    seconds_of_step,
    setting_of,
    settings_of,
    with_exchange,
    workload_of,
)

MAX_OTHERS = 0.2  # cores of other programs in a profile; with 0.7 it was 30 % too slow
QUARTER = 4  # memory= is a quarter of the free memory, for each trainer of the machine
# What cannot be said without these figures.
MISSING = (
    (("source", "batch", "step"), "producers, cores, starvation and the memory of the feed"),
    (("batch", "step"), "time and money (or accelerator= and flops= for the step)"),
    (("samples",), "the time of an epoch"),
    (("steps",), "the time of the run and its checkpoints (or epochs=)"),
    (("stored",), "storage, download and reading (or dataset=)"),
    (("parameters",), "the accelerator's memory and the exchange (or weights=)"),
    (("interconnect",), "the time of the exchange on several accelerators"),
    (("price",), "money"),
)


@dataclass(frozen=True)
class Plan:
    """A plan. `settings` have 1 to 8 threads and processes; `chosen` has the fewest producers that
    are enough. Both are empty if no source is known. `missing` says what more figures would give.
    """

    figures: PlanFigures
    settings: tuple[PlannedSetting, ...]
    chosen: PlannedSetting | None
    ceiling: float | None
    needs: tuple[Need, ...]
    missing: tuple[str, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What does not fit, or limits the training."""
        return tuple(f"{n.topic}, {n.name}: {n.warning}" for n in self.needs if n.warning)


def make_plan(given: PlanFigures, profile: SourceProfile | None = None) -> Plan:
    """Return the plan for the given figures and the measured ones of a profile.

    Raise OptionError if there are none, or for figures that contradict each other.
    """
    if not given.known and profile is None:
        text = "\n".join(f"  {name:<18} {meaning}" for name, (_, meaning) in KNOWN.items())
        raise OptionError(
            "nothing to plan from: give --workload, as for fastfeed bench, or figures such as "
            f"samples=1.28M image=224x224x3 batch=64 step=300ms. The figures:\n{text}"
        )
    if profile is not None:
        twice = sorted(name for name in profile.figures if given.have(name) and name != "cores")
        if twice:
            raise OptionError(
                f"{', '.join(twice)} beside --workload: measured there; leave them out, or plan "
                "from figures alone"
            )
        given = given.filled(profile.figures)
    figures = assume(given)
    step_s, workload = _work(figures, profile)
    settings: list[PlannedSetting] = []
    chosen = None
    pace = None
    if workload is not None:
        size, cost = _memory(figures, profile)
        settings = settings_of(workload, size=size, cost=cost)
        producers = producers_given(figures) or fewest(workload)
        chosen = setting_of(workload, producers, size=size, cost=cost)
        pace = Pace(chosen.prediction.rate * figures["batch"], chosen.prediction.starvation)
    elif step_s is not None and "batch" in figures:
        pace = Pace(figures["batch"] / (step_s + needs.exchange_seconds(figures)))
    found = [
        *(_disturbed(profile) if profile else ()),
        *(_input(figures, workload, chosen=chosen) if workload and chosen else ()),
        *(_ram(figures, chosen) if chosen else ()),
        *(needs.bandwidth(figures, pace) if pace else ()),
        *(needs.duration(figures, pace) if pace else ()),
        *needs.measured(figures),
        *needs.exchange(figures, step_s),
        *needs.accelerator_memory(figures),
        *needs.storage(figures),
    ]
    ceiling = 1 / step_seconds(workload) if workload else None
    hints = tuple(_hints(figures, step_s))
    return Plan(figures, tuple(settings), chosen, ceiling, tuple(found), hints)


def _work(
    figures: PlanFigures, profile: SourceProfile | None
) -> tuple[float | None, Workload | None]:
    """Return the seconds of a step alone, and the workload with the exchange of gradients."""
    if profile is None:
        workload, step_s = workload_of(figures), seconds_of_step(figures)
    else:
        workload = replace(profile.workload, cores=cores_of_trainer(figures))
        step_s = step_seconds(workload) or None
    if workload is not None:
        workload = with_exchange(workload, needs.exchange_seconds(figures))
    return step_s, workload


def _memory(figures: PlanFigures, profile: SourceProfile | None) -> tuple[FeedSize, MemoryCost]:
    if profile is not None:
        return profile.size, profile.cost
    sample = figures.get_or("sample", 0.0)
    pool = figures.get_or("pool", 0.0) * sample
    bound = None
    if "ram" in figures:
        bound = int(figures["ram"] / QUARTER / figures["per_machine"])
    size = FeedSize(figures["batch"] * sample, pool, figures.get_or("captured", 0.0), bound)
    return size, MemoryCost.assumed(figures["trainer"])


def _input(figures: PlanFigures, workload: Workload, *, chosen: PlannedSetting) -> Iterator[Need]:
    """Yield producers, cores and machines, and the balanced batch."""
    found, trainers = chosen.prediction, figures["accelerators"]
    who = f"({chosen.producers})"
    given = "threads" in figures or "processes" in figures
    why = "given" if given else "the fewest that starve a step < 5 %"
    starved = f"the step starves, the limit is: {found.limit}" * (found.starvation >= INPUT_BOUND)
    yield Need("input", "producers", chosen.producers.count, who, f"{why}; each trainer", starved)
    yield Need("input", "starvation", found.starvation, "%", "simulated (docs/model.md)")
    cores = cores_needed(workload) * trainers
    yield Need("input", "cores", cores, "", "to keep all steps busy: core seconds / step")
    machines, there = math.ceil(cores / figures["cores"]), figures.get_or("machines", 1.0)
    few = f"{there:.0f} with {figures['cores']:g} cores cannot keep the steps at their own speed"
    few *= machines > there
    yield Need("input", "machines", max(machines, there), "", "for cores and accelerators", few)
    if few:
        yield from _remote(figures, workload)
    yield from needs.balance(figures, chosen.producers.count)


def _remote(figures: PlanFigures, workload: Workload) -> Iterator[Need]:
    """Yield the remote producers that do the work of the missing machines."""
    step_s, made_s = step_seconds(workload), demands(workload, Producers(1, 1))[LIMIT_PRODUCERS]
    count = math.ceil(made_s / step_s)
    why = "remote= on nodes without accelerators, instead of machines; each trainer"
    yield Need("input", "remote producers", count, f"(Remote(..., producers={count}))", why)
    if "sample" in figures:
        rate = figures["sample"] * figures["batch"] / step_s
        yield Need(
            "input", "remote link", rate, "B/s", "batches that come from there; each trainer"
        )


def _disturbed(profile: SourceProfile) -> Iterator[Need]:
    """Yield the cores that other programs took during the profile."""
    busy = profile.others > MAX_OTHERS
    warning = "the profile is too slow by what they took: stop them and plan again" * busy
    yield Need("input", "other programs", profile.others, "cores", "took in the profile", warning)


def _ram(figures: PlanFigures, chosen: PlannedSetting) -> Iterator[Need]:
    """Yield the parts of the memory of a machine."""
    trainers, memory = figures["per_machine"], chosen.memory
    parts = (
        ("trainer", memory.trainer, "framework, data and step, without the code of libraries"),
        ("ring", memory.ring, "batches made ahead (ring/layout.py, core/worker.py)"),
        ("shuffle pool", memory.pool, "records x sample"),
        ("captured data", memory.captured, "of the source, once for all workers"),
        ("producers", memory.workers, "threads, or interpreters and their modules"),
    )
    total = memory.total * trainers
    for name, value, why in parts:
        if value:
            yield Need("ram", name, value, "B", why)
    if figures["cache"] == "ram" and figures.have("samples", "sample"):
        cached = needs.cache_nbytes(figures)
        total += cached
        yield Need("ram", "cache", cached, "B", "the machine's share of samples x sample")
    short = "ram" in figures and figures["ram"] < total
    warning = "does not fit into ram: cache on disk, fewer producers, or more machines" * short
    yield Need("ram", "a machine", total, "B", f"x {trainers:g} trainers, + cache", warning)


def _hints(figures: PlanFigures, step_s: float | None) -> Iterator[str]:
    for names, what in MISSING:
        absent = [n for n in names if n not in figures and not (n == "step" and step_s)]
        alone = names == ("interconnect",) and figures["accelerators"] < 2
        if absent and not alone:
            yield f"{', '.join(f'{name}=' for name in absent)} for {what}"

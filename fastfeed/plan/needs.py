"""A plan: what a training needs, line by line. Each line is computed by the formula that is
printed beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from fastfeed.errors import OptionError
from fastfeed.model.workload import (
    LIMIT_PRODUCERS,
    STEP_PARTS,
    Producers,
    Workload,
    demands,
    rows_of,
    step_seconds,
)
from fastfeed.plan.balance import balanced_batch
from fastfeed.plan.plan_figures import OPTIMIZER_SLOTS, PlanFigures, assume
from fastfeed.plan.planned_feed import (
    FeedMemory,
    PlannedSetting,
    SourceProfile,
    cores_needed,
    cores_of_trainer,
    seconds_of_step,
    settings_of,
    workload_of,
)

MAX_OTHERS = 0.2  # cores of other programs in a profile; with 0.7 it was 30 % too slow
SHORT = "is too short to be true"
QUARTER = 4  # memory= is a quarter of the free memory, for each trainer of the machine
RAM = {
    "trainer": "framework, data and step, without the code of libraries",
    "captured": "arrays of the source, once for all workers",
    "pool": "records x sample",
    "ring": "batches made ahead (ring/layout.py, core/worker.py)",
    "producers": "threads, or interpreters and their modules",
}
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


# Lines of a plan: topic, name, unit, formula. Its names are those of figures and of _values();
# `above` is the sum of the topic's lines above. A line with an unknown name is left out.
EXCHANGED = "2 * (accelerators - 1) / accelerators * weights"
LINES = (
    ("ram", "cache", "B", "cached_in_ram"),
    ("ram", "a machine", "B", "feed_memory * per_machine + cached_in_ram"),
    ("bandwidth", "host to device", "B/s", "samples_per_s * sample"),
    ("bandwidth", "reading, a machine", "B/s", "samples_per_s * stored * per_machine"),
    ("bandwidth", "network, a machine", "B/s", "samples_per_s * stored * per_machine"),
    ("time", "samples/s", "", "samples_per_s * accelerators"),
    ("time", "an epoch", "s", "samples / (samples_per_s * accelerators)"),
    ("time", "the run", "s", "steps * batch / samples_per_s"),
    ("money", "an hour", "$", "price * accelerators"),
    ("money", "starvation, an hour", "$", "price * accelerators * starvation"),
    ("money", "an epoch", "$", "price * samples / samples_per_s / 3600"),
    ("money", "the run", "$", "price * accelerators * steps * batch / samples_per_s / 3600"),
    ("measured", "samples/s", "", "steps * minibatch / took"),
    ("measured", "FLOP/s", "FLOP/s", "steps * minibatch * flops / took"),
    ("measured", "of the peak", "%", "steps * minibatch * flops / took / peak / accelerators"),
    ("measured", "the run", "$", "price * accelerators * took / 3600"),
    ("exchange", "a worker and step", "B", EXCHANGED),
    ("exchange", "time of a step", "s", "exchange_s"),
    ("exchange", "speed-up", "x", "accelerators * step_s / (step_s + exchange_s)"),
    ("exchange", "interconnect for 90 %", "B/s", f"{EXCHANGED} / (step_s * (1 / 0.9 - 1))"),
    ("device", "weights", "B", "weights"),
    ("device", "gradients + optimizer", "B", "weights * (1 + slots)"),
    ("device", "activations", "B", "batch * activations if weights else 0"),
    ("device", "batch", "B", "batch * sample if weights else 0"),
    ("device", "in all", "B", "above"),
    ("storage", "data set", "B", "dataset"),
    ("storage", "its download", "s", "dataset / network"),
    ("storage", "checkpoints", "B", "kept_checkpoints * weights * (1 + slots)"),
    ("storage", "cache", "B", "cached_on_disk"),
    ("storage", "in all", "B", "above"),
)
# Topic and name of a line, what is wrong with its value, and what to say then.
WARNINGS = (
    ("ram", "a machine", "value > ram", "does not fit into ram: cache on disk, fewer producers"),
    ("bandwidth", "reading, a machine", "value > storage", "storage is slower, it is the limit"),
    ("bandwidth", "network, a machine", "value > network", "network is slower, it is the limit"),
    ("measured", "samples/s", "value > 1e7 * accelerators", f"took= {SHORT}"),  # rows of numbers
    ("measured", "samples/s", "took < steps * given_step_s", f"took= {SHORT} beside step="),
    ("measured", "of the peak", "value > 1", f"more than the peak: took= {SHORT}, or flops= wrong"),
    ("exchange", "speed-up", "value < accelerators / 2", "the interconnect is the limit"),
    ("device", "in all", "value > accelerator_memory", "does not fit into accelerator_memory"),
    ("storage", "in all", "value > disk", "does not fit on disk: keep fewer checkpoints"),
)


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
class Plan:
    """A plan. `settings` have 1 to 8 threads and processes, and `chosen`; both are empty if no
    source is known. `missing` says what more figures would give."""

    figures: PlanFigures
    settings: tuple[PlannedSetting, ...]
    chosen: PlannedSetting | None
    needs: tuple[Need, ...]
    missing: tuple[str, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What does not fit, or limits the training."""
        return tuple(f"{n.topic}, {n.name}: {n.warning}" for n in self.needs if n.warning)


def make_plan(given: PlanFigures, profile: SourceProfile | None = None) -> Plan:
    """Return the plan for the given figures and the measured ones of a profile.

    Raise OptionError for figures that contradict each other, or that a profile measures.
    """
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
    values = _values(figures, step_s)
    settings: list[PlannedSetting] = []
    chosen, found = None, list(_disturbed(profile)) if profile else []
    if workload is not None:
        own = None
        if "threads" in figures or "processes" in figures:
            own = Producers(figures.get("threads") or 1, figures.get("processes") or 0)
        settings, chosen = settings_of(workload, _memory(figures, profile), given=own)
        values["samples_per_s"] = chosen.prediction.rate * figures["batch"]
        values["starvation"] = round(chosen.prediction.starvation, 3)
        values["feed_memory"] = chosen.nbytes
        found += _input(figures, workload, chosen=chosen, given=own is not None)
        found += [Need("ram", part, n, "B", RAM[part]) for part, n in chosen.memory.items() if n]
    elif step_s is not None and "batch" in figures:
        values["samples_per_s"] = figures["batch"] / (step_s + exchange_seconds(figures))
    hints = tuple(_hints(figures, step_s))
    return Plan(figures, tuple(settings), chosen, (*found, *lines_of(values)), hints)


def lines_of(values: dict[str, Any]) -> Iterator[Need]:
    """Yield the lines whose formulas can be computed from these values; those of 0 are left out."""

    def computed(formula: str, **more: float) -> Any:
        code = compile(formula, "<formula>", "eval")
        known = {**values, **more}
        return eval(code, {}, known) if set(code.co_names) <= set(known) else 0

    above: dict[tuple[str, str], float] = {}
    for topic, name, unit, formula in LINES:
        so_far = above.get((topic, unit), 0.0)
        value = computed(formula, above=so_far)
        if not value:
            continue
        above[topic, unit] = so_far + value
        checks = [(wrong, text) for *line, wrong, text in WARNINGS if line == [topic, name]]
        warning = "; ".join(text for wrong, text in checks if computed(wrong, value=value))
        why = "the sum of these" if formula == "above" else formula.replace("*", "x")
        yield Need(topic, name, value, unit, why.removesuffix(" if weights else 0"), warning)


def _values(figures: PlanFigures, step_s: float | None) -> dict[str, Any]:
    """Return the names of formulas: the figures, and what is computed from them."""
    found = {name: figure.value for name, figure in figures.known.items()}
    if step_s is not None:
        found["step_s"] = step_s
        if "step" in figures:
            found["given_step_s"] = step_s
    if "optimizer" in figures:
        found["slots"] = OPTIMIZER_SLOTS[figures["optimizer"]]
    if seconds := exchange_seconds(figures):
        found["exchange_s"] = seconds
    if figures.have("steps", "checkpoint_every"):
        made = figures["steps"] // figures["checkpoint_every"]
        found["kept_checkpoints"] = min(made, figures.get_or("checkpoints", math.inf))
    cached = figures.get_or("samples", 0.0) * figures.get_or("sample", 0.0)
    cached *= min(1.0, figures["per_machine"] / figures["accelerators"])
    found["cached_in_ram"] = cached * (figures["cache"] == "ram")
    found["cached_on_disk"] = cached * (figures["cache"] == "disk")
    return found


def exchange_seconds(figures: PlanFigures) -> float:
    """Return the seconds of the exchange of a step, without overlap with the step; 0 if unknown.

    A worker sends and receives 2 (N - 1) / N x weights, over a ring (Patarasuk and Yuan 2009).
    """
    if not figures.have("interconnect", "weights"):
        return 0.0
    share = 1 - 1 / figures["accelerators"]
    return float(2 * share * figures["weights"] / figures["interconnect"])


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
        lost = rows_of(STEP_PARTS, accelerator=exchange_seconds(figures))
        workload = replace(workload, steps=workload.steps + lost)
    return step_s, workload


def _memory(figures: PlanFigures, profile: SourceProfile | None) -> FeedMemory:
    if profile is not None:
        return profile.memory
    sample, bound = figures.get_or("sample", 0.0), None
    if "ram" in figures:
        bound = int(figures["ram"] / QUARTER / figures["per_machine"])
    return FeedMemory(
        figures["batch"] * sample,
        figures["trainer"],
        pool=figures.get_or("pool", 0.0) * sample,
        captured=figures.get_or("captured", 0.0),
        bound=bound,
    )


def _input(
    figures: PlanFigures, workload: Workload, *, chosen: PlannedSetting, given: bool
) -> Iterator[Need]:
    """Yield producers, cores and machines, and the balanced batch."""
    found, step_s, count = chosen.prediction, step_seconds(workload), chosen.producers.count
    why = "the fewest that feed the step" if chosen.fed else "no number feeds the step"
    why = f"{'given' if given else why}; each trainer"
    starved = f"the step starves, the limit is: {found.limit}" * (not chosen.fed)
    yield Need("input", "producers", count, f"({chosen.producers})", why, starved)
    yield Need("input", "starvation", found.starvation, "%", "simulated (docs/model.md)")
    cores = cores_needed(workload) * figures["accelerators"]
    yield Need("input", "cores", cores, "", "to keep all steps busy: core seconds / step")
    there = math.ceil(figures["accelerators"] / figures["per_machine"])
    machines = math.ceil(cores / figures["cores"])
    few = f"{there} with {figures['cores']:g} cores cannot keep the steps at their own speed"
    few *= machines > there
    yield Need("input", "machines", max(machines, there), "", "for cores and accelerators", few)
    if few:
        remote = math.ceil(demands(workload, Producers(1, 1))[LIMIT_PRODUCERS] / step_s)
        why = "remote= on nodes without accelerators, instead of machines; each trainer"
        yield Need("input", "remote producers", remote, f"(Remote(..., producers={remote}))", why)
        link = figures.get_or("sample", 0.0) * figures["batch"] / step_s
        if link:
            yield Need("input", "remote link", link, "B/s", "the batches from there; each trainer")
    if figures.have("source", "step") and len(figures["step"]) > 1:
        yield _balance(figures, count)


def _balance(figures: PlanFigures, count: int) -> Need:
    """Return the batch size that balances input and step."""
    most, sample = None, figures.get_or("sample", 0.0)
    if figures.have("accelerator_memory", "weights", "activations"):
        state = figures["weights"] * (2 + OPTIMIZER_SLOTS[figures["optimizer"]])
        room = figures["accelerator_memory"] - state
        most = max(1, int(room // (figures["activations"] + sample)))
    lost_s = exchange_seconds(figures)
    steps = [(batch, seconds + lost_s) for batch, seconds in figures["step"]]
    found = balanced_batch(figures["source"], steps, producers=count, most=most)
    if found.limit == "input":
        why = f"fixed + a x batch = source x batch / {count}: {found.samples_per_second:.3g}/s"
    else:
        why = "the input is faster at any batch: 5 % of the step is its fixed part"
    return Need("input", "balanced batch", found.batch, "samples", why)


def _disturbed(profile: SourceProfile) -> Iterator[Need]:
    """Yield the cores that other programs took during the profile."""
    busy = profile.others > MAX_OTHERS
    warning = "the profile is too slow by what they took: stop them and plan again" * busy
    yield Need("input", "other programs", profile.others, "cores", "took in the profile", warning)


def _hints(figures: PlanFigures, step_s: float | None) -> Iterator[str]:
    for names, what in MISSING:
        absent = [n for n in names if n not in figures and not (n == "step" and step_s)]
        alone = names == ("interconnect",) and figures["accelerators"] < 2
        if absent and not alone:
            yield f"{', '.join(f'{name}=' for name in absent)} for {what}"

"""What to change, which knob does it, and what it is predicted to gain: by the model of fastfeed.model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fastfeed.diagnose import signals
from fastfeed.diagnose.diagnosis import Cause, Ceiling, Figures, Recommendation
from fastfeed.diagnose.evidence import DISK, FRAMEWORK, LOCK, LOCK_PYTHON, PRODUCER, RUNNABLE, TRAINER, Evidence
from fastfeed.diagnose.figures import Rows
from fastfeed.diagnose.makers import Makers
from fastfeed.model import SPREAD_ALONE, Prediction, Producers, Profile, predict

CANDIDATES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
COUNTS = ("threads", "processes")  # knobs
ENOUGH = 0.95  # of the best rate: more producers are not worth it
SPINNING = 0.6  # 6 runnable threads a core cost 3 times the work, 7 of them 2.8 to 3.4 times, where it was measured
WORTH = 1.03  # a gain below it is none
SURE = (0.1, 0.1)  # below and above: where a loss simply goes away
PREPARE = "prepare batches in the producers, ahead of the step, and not on the training thread"
UNSURE = (0.15, 0.4)  # where nobody knows how much of it does


@dataclass(frozen=True)
class Facts:
    """What a recommendation follows from."""

    evidence: Evidence
    rows: Rows
    figures: Figures
    ceiling: Ceiling
    makers: Makers | None
    limit: float = float("inf")  # the speed-up without any wait for input, at most: no change of the input gains more

    @property
    def now(self) -> float:
        """Steps/s."""
        return self.figures.steps_per_second

    @property
    def rest_s(self) -> float:
        """Seconds a step that are neither wait nor step: the loop's own Python, and pauses."""
        return float((self.rows.host + self.rows.pause).sum()) / max(1, self.figures.steps)

    @property
    def most(self) -> float:
        """Steps/s where the input is always at hand."""
        return 1 / max(1e-9, self.ceiling.step_s + self.rest_s)


def advice_of(causes: tuple[Cause, ...], facts: Facts) -> tuple[Recommendation, ...]:
    """For each cause what takes it away, the greatest gain first."""
    found: dict[str, Recommendation] = {}
    for cause in causes:
        counts = any(knob in found for knob in COUNTS)
        changes = _BY_CODE.get(cause.code, _nothing)(cause, facts)
        if cause.code.startswith("input."):
            changes = [_at_most(one, facts.limit) for one in changes if facts.limit >= WORTH]
        for one in changes:
            if not (counts and one.knob in COUNTS):  # how many producers is one decision
                found.setdefault(one.knob, one)
    return tuple(sorted(found.values(), key=lambda one: -one.predicted_speedup))


def _at_most(one: Recommendation, limit: float) -> Recommendation:
    low, high = (min(end, limit) for end in one.interval)
    return replace(one, predicted_speedup=min(one.predicted_speedup, limit), interval=(low, high))


def profile_of(facts: Facts) -> Profile:
    """What a batch costs, from what the producers did while they made those of the steps."""
    rows, makers = facts.rows, facts.makers
    steps, cores = max(1, facts.figures.steps), facts.evidence.machine.cores
    if makers is None:
        return Profile(0.0, 0.0, 0.0, 0.0, facts.ceiling.step_s + facts.rest_s, cores)
    if makers.where == "trainer":
        batch_s = float((rows.wait + rows.boundary).sum()) / steps
    else:
        # Without the time in which they wait for each other: the model knows the cores and the lock itself.
        alone = 1 - makers.share(LOCK_PYTHON, RUNNABLE)
        batch_s = makers.count * makers.active * alone * rows.seconds / steps
    working = makers.python + makers.native
    cpu_s = min(batch_s, makers.cpu_s / steps if makers.cpu_s else batch_s * working)
    return Profile(
        batch_s=batch_s,
        cpu_s=cpu_s,
        gil_s=cpu_s * makers.python / working if working else 0.0,
        gil_wait_s=0.0,
        step_s=facts.ceiling.step_s + facts.rest_s,
        cores=cores,
        step_cpu_s=_step_cpu_s(facts, makers, steps=steps),
    )


def _step_cpu_s(facts: Facts, makers: Makers, *, steps: int) -> float:
    """Seconds on the cores that a step takes, without what is made on its thread."""
    tasks, seconds = facts.evidence.tasks, facts.evidence.end_s - facts.evidence.start_s
    roles = (TRAINER,) if makers.where == "native" else (TRAINER, FRAMEWORK)
    cpu_s = sum(task.cpu_s for task in tasks if task.role in roles)
    own_s = makers.cpu_s if makers.where == "trainer" else 0.0
    return max(0.0, cpu_s - own_s) * facts.rows.seconds / max(1e-9, seconds) / steps


def _more_producers(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Threads where they help, worker processes where the lock is held: as many as gain something."""
    makers = facts.makers
    prepared = facts.rows.share(facts.rows.converted)
    if cause.code == "input.serial" and prepared >= signals.LEAST:
        speedup = min(_gone(prepared), facts.most / facts.now)
        return [_gain(PREPARE, ("threads", str(facts.evidence.threads)), speedup=speedup, spread=UNSURE)]
    if makers is None or not makers.known:
        return []
    python = makers.python >= max(makers.native, makers.waiting)
    held = cause.code == "input.gil" or (cause.code == "input.serial" and python)
    processes = held or makers.where == "processes"
    profile = profile_of(facts)
    most = profile.cores if held else 4 * profile.cores if processes else CANDIDATES[-1]
    sizes = [n for n in CANDIDATES if n <= most]
    found = {n: predict(profile, Producers(1, n) if processes else Producers(n)) for n in sizes}
    now = facts.now
    if makers.where == ("processes" if processes else "threads") and signals.noisy(facts.evidence):
        # The model gives them all cores: what it says of as many as there are is what others take, and no gain of more.
        as_many = Producers(1, makers.count) if processes else Producers(makers.count)
        now = max(now, predict(profile, as_many).rate)
    best = max(one.rate for one in found.values())
    if best < WORTH * now:
        return []
    count = next(n for n in sizes if found[n].rate >= ENOUGH * best)
    knob = "processes" if processes else "threads"
    if makers.where == "native":
        knob, change = (
            "num_parallel_calls",
            "let tf.data work in parallel: num_parallel_calls=tf.data.AUTOTUNE, prefetch",
        )
    elif makers.where == "trainer" or (held and makers.where == "threads"):
        names = {"threads": "threads, ahead of the step", "processes": "worker processes"}
        change = f"make the batches in {count} {names[knob] if count > 1 else names[knob].replace('threads', 'thread')}"
    else:
        change = f"{knob} {makers.count} -> {count}"
    why = _limits(found, count, now=now)
    if held and makers.where != "processes":
        why = f"threads cannot help: {makers.python:.0%} of the work holds the interpreter lock, or waits for it. {why}"
    if makers.share(LOCK) >= 0.3:
        why += "; only if they stop waiting for a lock of their own"
    return [_gain(change, (knob, str(count)), speedup=found[count].rate / now, spread=SPREAD_ALONE, why=why)]


def _limits(found: dict[int, Prediction], count: int, *, now: float) -> str:
    """What fewer would give, and what the limit is then."""
    fewer = [n for n in found if n < count and found[n].rate >= WORTH * now]
    less = f"{fewer[-1]} give{'s' * (fewer[-1] == 1)} {found[fewer[-1]].rate / now:.1f}x, " if fewer else ""
    return f"{less}with {count} the limit is {found[count].limit}; more gains nothing"


def _gain(
    change: str, knob: tuple[str, str], *, speedup: float, spread: tuple[float, float], why: str = ""
) -> Recommendation:
    speedup = max(1.0, speedup)
    interval = max(1.0, speedup * (1 - spread[0])), speedup * (1 + spread[1])
    return Recommendation(change, *knob, speedup, interval, why)


def _lighter(facts: Facts, fraction: float) -> float:
    """The speed-up where a batch costs its producers so much less."""
    makers = facts.makers
    if makers is None:
        return 1.0
    if makers.where == "trainer":
        return 1 / max(1e-3, 1 - fraction * facts.rows.share(facts.rows.wait + facts.rows.boundary))
    return max(1.0, min(facts.most / facts.now, 1 / max(1e-3, 1 - fraction)))


def _gone(share: float) -> float:
    return 1 / max(1e-3, 1 - share)


def _disk(cause: Cause, facts: Facts) -> list[Recommendation]:
    fraction = facts.makers.share(DISK) if facts.makers is not None else 0.0
    read, used = signals.read_nbytes(facts.evidence, facts.now), signals.used_nbytes(facts.evidence)
    found = _more_producers(cause, facts)
    if used and read > signals.WASTED * used and facts.makers is not None:
        # All that the reading line does it does to bytes that nobody uses: into the page cache, out of it, into arrays.
        change = f"read only what is used: {read / 1e6:.3g} MB are read for a batch of {used / 1e6:.2g} MB"
        gone = max(fraction, facts.makers.place_share) * (1 - used / read)
        found.append(_gain(change, ("cache", "what is used"), speedup=_lighter(facts, gone), spread=UNSURE))
    cache = _gain(
        "keep the data in memory, or in fewer and larger files that are read in order",
        ("cache", "memory"),
        speedup=_lighter(facts, fraction),
        spread=UNSURE,
    )
    return [*found, cache]


def _cpu(cause: Cause, facts: Facts) -> list[Recommendation]:
    """More producers, as long as there are cores; then only less work helps."""
    half = _gain(
        "make a batch cost half: smaller images, cheaper operations, results that are kept; or take more cores",
        ("work", "half"),
        speedup=_lighter(facts, 0.5),
        spread=UNSURE,
    )
    return _more_producers(cause, facts) or [half]


def _copy(cause: Cause, facts: Facts) -> list[Recommendation]:
    makers, loop = facts.makers, facts.evidence.loop
    dtypes = {leaf.dtype for leaf in loop.leaves} if loop is not None else set()
    knob = ("dtypes", "float32" if "float64" in dtypes else "uint8")
    change = (
        "make arrays of the final dtype once, into memory that is used again (out=); send uint8, cast on the device"
    )
    if "float64" in dtypes:
        change = "make float32 instead of float64 (dtypes='float32' casts in the producers), without lists between"
    if facts.rows.share(facts.rows.converted) >= signals.LEAST:
        return [_gain(change, knob, speedup=_gone(cause.share), spread=UNSURE)]
    fraction = max(makers.copying, makers.faulting) if makers is not None else 0.0
    return [_gain(change, knob, speedup=_lighter(facts, fraction), spread=UNSURE), *_more_producers(cause, facts)]


def _ipc(cause: Cause, facts: Facts) -> list[Recommendation]:
    makers = facts.makers
    speedup = _lighter(facts, 0.3 if makers is None else max(0.3, signals.pickling(facts.evidence, makers)))
    if makers is not None and signals.handed_over(facts.evidence, makers) >= signals.HANDS_OVER:
        speedup = min(_gone(cause.share), facts.most / facts.now)  # the producers have time to spare
    change = "pass batches through shared memory instead of pickling them: FeedRunner(..., processes=)"
    count = facts.makers.count if facts.makers is not None else facts.evidence.machine.cores
    return [_gain(change, ("processes", str(count)), speedup=speedup, spread=UNSURE)]


def _crowd(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Native pools in many producers keep each other from the cores; more producers than cores alone cost little."""
    cores, makers, pools = facts.evidence.machine.cores, facts.makers, list(facts.evidence.pools)
    inner = [task.threads for task in facts.evidence.tasks if task.role == PRODUCER and task.threads > 2]
    if inner and not pools:
        pools = ["native libraries"]
    crowd = max(1.0, facts.evidence.machine.runnable / cores)
    speedup = min(facts.most / facts.now, crowd**SPINNING) if pools else 1.05
    found = []
    for name in pools:
        knob = ("cv2.setNumThreads", "0") if name == "OpenCV" else ("OMP_NUM_THREADS", "1")
        change = f"one thread for {name} in each producer: {'='.join(knob)}"
        found.append(_gain(change, knob, speedup=speedup, spread=UNSURE))
    if makers is not None and makers.count > cores and makers.where in ("threads", "processes"):
        change = f"lower {makers.where} to {cores}: you are oversubscribed"
        found.append(_gain(change, (makers.where, str(cores)), speedup=speedup, spread=UNSURE))
    return found


def _straggler(cause: Cause, facts: Facts) -> list[Recommendation]:
    change = "deliver what is ready first (order='any'), or make more batches ahead (memory=, a larger prefetch)"
    return [_gain(change, ("order", "any"), speedup=_gone(cause.share), spread=SURE)]


def _epoch_gap(cause: Cause, facts: Facts) -> list[Recommendation]:
    change = "keep the workers between epochs (persistent_workers=True; a FeedRunner makes the next epoch ahead)"
    return [_gain(change, ("epochs", "warm workers"), speedup=_gone(cause.share), spread=SURE)]


def _pause(cause: Cause, facts: Facts) -> list[Recommendation]:
    what = ", ".join(sorted({name for _, _, name in facts.rows.pauses if name})) or "the work between steps"
    change = f"do it less often, or beside the training: {what}"
    return [_gain(change, ("every", "10x the steps"), speedup=_gone(0.9 * cause.share), spread=SURE)]


def _noise(cause: Cause, facts: Facts) -> list[Recommendation]:
    names = ", ".join(name for name, _ in facts.evidence.machine.noisy[:3]) or "other processes"
    return [
        _gain(f"leave the cores to the training: {names}", ("cores", "free"), speedup=_gone(cause.share), spread=UNSURE)
    ]


def _host(cause: Cause, facts: Facts) -> list[Recommendation]:
    change = "fewer, larger calls: larger batches, steps_per_execution, tf.function, less work in callbacks and logs"
    return [_gain(change, ("steps_per_execution", "10"), speedup=_gone(0.7 * cause.share), spread=UNSURE)]


def _nothing(cause: Cause, facts: Facts) -> list[Recommendation]:
    return []


_BY_CODE: dict[str, Callable[[Cause, Facts], list[Recommendation]]] = {
    "input.serial": _more_producers,
    "input.latency": _more_producers,
    "input.gil": _more_producers,
    "input.cpu": _cpu,
    "input.disk": _disk,
    "input.copy": _copy,
    "input.ipc": _ipc,
    "input.oversubscribed": _crowd,
    "input.straggler": _straggler,
    "input.epoch_gap": _epoch_gap,
    "pause.periodic": _pause,
    "external.noise": _noise,
    "step.host": _host,
}

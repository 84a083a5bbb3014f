"""The changes that remove each cause: knob, value, and predicted gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fastfeed.diagnose.diagnosis import Cause, Recommendation
from fastfeed.diagnose.evidence import DISK, LOCK, PRODUCER
from fastfeed.diagnose.judge import loop_changes, signals
from fastfeed.diagnose.judge.facts import Facts, profile_of
from fastfeed.diagnose.judge.gains import (
    SURE,
    UNSURE,
    WORTH,
    gain,
    gone,
    lighter,
)
from fastfeed.diagnose.judge.producer_profile import ProducerProfile
from fastfeed.model.prediction import (
    SPREAD_ALONE,
    Prediction,
    Producers,
    Profile,
    predict,
)

CANDIDATES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
ENOUGH = 0.95  # of the best rate: more producers are not worth it
# 6 runnable threads a core cost 3 times the work, 7 of them 2.8 to 3.4 times, as measured
SPINNING = 0.6
# weight of that: the gain of four such loops was 0.3, 1, 1 and 1.1 times all that the step allows
AT_LEAST = 0.25
# CPU of a batch if threads fight for the interpreter lock: 1.07 to 1.27 times, as measured
FOUGHT = 1.15
PREPARE = "prepare batches in the producers, ahead of the step, and not on the training thread"
# wait of a step for a ready batch of a DataLoader's worker: 1.4 to 3.7 ms, as measured
HANDED_S = 2.5e-3


def _more_producers(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Return threads if they help, worker processes if the lock is held: as many as gain
    something."""
    makers = facts.makers
    prepared, waited = (facts.rows.share(part) for part in (facts.rows.converted, facts.rows.wait))
    if cause.code == "input.serial" and prepared >= max(signals.LEAST, waited):
        speedup = min(gone(prepared), facts.most / facts.now)
        return [
            gain(PREPARE, ("threads", str(facts.evidence.threads)), speedup=speedup, spread=UNSURE)
        ]
    full = facts.evidence.machine.own_cpu >= signals.FULL * facts.evidence.machine.cores
    if (
        makers is None
        or not makers.known
        or (makers.where == "native" and (full or signals.at_hand(facts.evidence)))
    ):
        return []
    python = makers.python >= max(makers.native, makers.waiting)
    held = cause.code == "input.gil" or (cause.code == "input.serial" and python)
    loaded = makers.where == "trainer" and signals.loaded(facts.evidence)
    processes = held or loaded or makers.where == "processes"
    same = makers.where == ("processes" if processes else "threads")
    profile = _profile(facts, makers, same=same, held=held, loaded=loaded)
    most = profile.cores if held else 4 * profile.cores if processes else CANDIDATES[-1]
    sizes = [n for n in CANDIDATES if n <= most]
    found = {n: predict(profile, Producers(1, n) if processes else Producers(n)) for n in sizes}
    now = facts.now
    if same and signals.noisy(facts.evidence):
        # The model gives them all cores: its result for the present number shows what others take,
        # and is no gain.
        as_many = Producers(1, makers.count) if processes else Producers(makers.count)
        now = max(now, predict(profile, as_many).rate)
    best = max(one.rate for one in found.values())
    count = next(n for n in sizes if found[n].rate >= ENOUGH * best)
    if found[count].rate < WORTH * now or (same and count <= makers.count):
        return []
    knob, change = _named(
        facts, makers, count=count, processes=processes, ahead=makers.where == "trainer" or held
    )
    why = _reason(makers, _limits(found, count, now=now), held=held)
    speedup = found[count].rate / now
    return [gain(change, (knob, str(count)), speedup=speedup, spread=SPREAD_ALONE, why=why)]


def _profile(
    facts: Facts, makers: ProducerProfile, *, same: bool, held: bool, loaded: bool
) -> Profile:
    """Return what the model needs to know. `same`: the change keeps the kind of producer."""
    profile = profile_of(facts, kept=same and makers.count > 1)
    if held and makers.where == "threads" and makers.count > 1:
        profile = _unfought(profile)
    return replace(profile, step_s=profile.step_s + HANDED_S) if loaded else profile


def _reason(makers: ProducerProfile, limits: str, *, held: bool) -> str:
    """Return why that many producers, and why processes if threads cannot help."""
    if held and makers.where != "processes":
        limits = (
            f"threads cannot help: {makers.python:.0%} of the work holds the interpreter lock, "
            f"or waits for it. {limits}"
        )
    if makers.share(LOCK) >= 0.3:
        limits += "; only if they stop waiting for a lock of their own"
    return limits


def _named(
    facts: Facts, makers: ProducerProfile, *, count: int, processes: bool, ahead: bool
) -> tuple[str, str]:
    """Return the knob for that many producers, and the change in words; `ahead`: none worked ahead
    of the step until now."""
    knob = "processes" if processes else "threads"
    if makers.where == "native":
        return (
            "num_parallel_calls",
            "let tf.data work in parallel: num_parallel_calls=tf.data.AUTOTUNE, prefetch",
        )
    if (
        makers.where == "threads"
        and not processes
        and (makers.in_framework or signals.mapped(facts.evidence))
    ):
        pool = _pool(facts, "options.threading.private_threadpool_size", count=count)
        return "num_parallel_calls", f"num_parallel_calls {makers.count} -> {count}{pool}"
    if not ahead or makers.where == "processes":
        in_graph = signals.in_graph(facts.evidence) and not processes
        pool = (
            _pool(facts, "ConfigProto.inter_op_parallelism_threads", count=count)
            if in_graph
            else ""
        )
        return knob, f"{knob} {makers.count} -> {count}{pool}"
    more = "threads, ahead of the step" if knob == "threads" else "worker processes"
    one = "thread, ahead of the step" if knob == "threads" else "worker process"
    workers = f" (num_workers={count})" if signals.loaded(facts.evidence) else ""
    return knob, f"make the batches in {count} {more if count > 1 else one}{workers}"


def _pool(facts: Facts, option: str, *, count: int) -> str:
    """Return the advice on a pool: Python that blocks occupies a thread of a pool that has one for
    each core, however many calls are requested."""
    return f" and {option}={count}" if count > facts.evidence.machine.cores else ""


def _unfought(profile: Profile) -> Profile:
    """Return the same batches, made without competition for the lock."""
    parts = (profile.batch_s, profile.cpu_s, profile.gil_s)
    batch_s, cpu_s, gil_s = (part / FOUGHT for part in parts)
    return replace(profile, batch_s=batch_s, cpu_s=cpu_s, gil_s=gil_s)


def _limits(found: dict[int, Prediction], count: int, *, now: float) -> str:
    """Return what fewer would gain, and the limit then."""
    fewer = [n for n in found if n < count and found[n].rate >= WORTH * now]
    less = (
        f"{fewer[-1]} give{'s' * (fewer[-1] == 1)} {found[fewer[-1]].rate / now:.1f}x, "
        if fewer
        else ""
    )
    return f"{less}with {count} the limit is {found[count].limit}; more gains nothing"


def _disk(cause: Cause, facts: Facts) -> list[Recommendation]:
    fraction = facts.makers.share(DISK) if facts.makers is not None else 0.0
    read, used = signals.read_nbytes(facts.evidence, facts.now), signals.used_nbytes(facts.evidence)
    found = [_with_this_disk(one, facts) for one in _more_producers(cause, facts)]
    if used and read > signals.WASTED * used and facts.makers is not None:
        # the reading function also handles bytes that are not used: into the page cache, out of it,
        # copied
        change = f"read only what is used: {read / 1e6:.3g} MB are read for a batch of {used / 1e6:.2g} MB"
        line, whole = (
            share * (1 - used / read)
            for share in (fraction, max(fraction, facts.makers.function_share))
        )
        least, speedup = lighter(facts, line), lighter(facts, whole)
        spread = (max(UNSURE[0], 1 - least / speedup), UNSURE[1])
        # of equal changes the one first that asks the disk for less
        found.insert(0, gain(change, ("cache", "what is used"), speedup=speedup, spread=spread))
    cache = gain(
        "keep the data in memory, or in fewer and larger files that are read in order",
        ("cache", "memory"),
        speedup=lighter(facts, fraction),
        spread=UNSURE,
    )
    return [*found, cache]


def _with_this_disk(one: Recommendation, facts: Facts) -> Recommendation:
    """Return the change with a wider interval: a disk may have no more to give; at least, it is
    busy only while something waits for it."""
    makers = facts.makers
    busy = makers.count * makers.active * makers.share(DISK) if makers is not None else 0.0
    low, high = one.interval
    return replace(one, interval=(min(low, 1 / min(1.0, max(1e-3, busy))), high))


def _cpu(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Return more producers, as long as there are cores; then only less work helps."""
    profile = profile_of(facts)
    batch_s, step_s = profile.cpu_s, profile.step_cpu_s  # they share the cores
    half = gain(
        "make a batch cost half: smaller images, cheaper operations, results that are kept; or "
        "take more cores",
        ("work", "half"),
        speedup=min(lighter(facts, 0.5), (batch_s + step_s) / max(1e-9, 0.5 * batch_s + step_s)),
        spread=UNSURE,
    )
    return _more_producers(cause, facts) or ([] if signals.at_hand(facts.evidence) else [half])


def _copy(cause: Cause, facts: Facts) -> list[Recommendation]:
    if facts.rows.starvation < signals.LEAST and signals.given_back(facts.evidence, waits=False):
        change = "feed it without from_generator, which has the process give its memory back: FeedRunner(...).dataset()"
        return [
            gain(change, ("dataset", "runner.dataset()"), speedup=gone(cause.share), spread=UNSURE)
        ]
    makers, loop = facts.makers, facts.evidence.loop
    dtypes = {leaf.dtype for leaf in loop.leaves} if loop is not None else set()
    knob = ("dtypes", "float32" if "float64" in dtypes else "uint8")
    change = "make arrays of the final dtype once, into memory that is used again (out=); send uint8, cast on the device"
    if "float64" in dtypes:
        change = "make float32 instead of float64 (dtypes='float32' casts in the producers), without lists between"
    if facts.rows.share(facts.rows.converted) >= signals.LEAST:
        return [gain(change, knob, speedup=gone(cause.share), spread=UNSURE)]
    fraction = makers.copies if makers is not None else 0.0
    return [
        gain(change, knob, speedup=lighter(facts, fraction), spread=UNSURE),
        *_more_producers(cause, facts),
    ]


def _ipc(cause: Cause, facts: Facts) -> list[Recommendation]:
    makers = facts.makers
    speedup = lighter(
        facts, 0.3 if makers is None else max(0.3, signals.pickling(facts.evidence, makers))
    )
    if makers is not None and signals.handed_over(facts.evidence, makers) >= signals.HANDS_OVER:
        speedup = min(gone(cause.share), facts.most / facts.now)  # the producers have time to spare
    count = makers.count if makers is not None else facts.evidence.machine.cores
    change = f"pass batches through shared memory instead of pickling them: FeedRunner(..., processes={count})"
    return [gain(change, ("transport", "shared memory"), speedup=speedup, spread=UNSURE)]


def _crowd(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Return changes against native pools in many producers, which keep each other from the cores;
    more producers than cores alone cost little."""
    cores, makers, pools = facts.evidence.machine.cores, facts.makers, list(facts.evidence.pools)
    inner = [
        task.threads for task in facts.evidence.tasks if task.role == PRODUCER and task.threads > 2
    ]
    if inner and not pools:
        pools = ["native libraries"]
    crowd = max(1.0, facts.evidence.machine.runnable / cores)
    most, speedup, spread = facts.most / facts.now, 1.05, UNSURE
    if pools:
        # pools that wait for each other in many small parts lose far more, usually all that the
        # step leaves them
        least = min(most, crowd**SPINNING)
        speedup = least**AT_LEAST * most ** (1 - AT_LEAST)
        spread = (1 - (1 - UNSURE[0]) * least / speedup, max(UNSURE[1], most / speedup - 1))
    found = []
    for name in pools:
        knob = ("cv2.setNumThreads", "0") if name == "OpenCV" else ("OMP_NUM_THREADS", "1")
        change = f"one thread for {name} in each producer: {'='.join(knob)}"
        found.append(gain(change, knob, speedup=speedup, spread=spread))
    if makers is not None and makers.count > cores and makers.where in ("threads", "processes"):
        change = f"lower {makers.where} to {cores}: you are oversubscribed"
        found.append(gain(change, (makers.where, str(cores)), speedup=speedup, spread=spread))
    return found


def _straggler(cause: Cause, facts: Facts) -> list[Recommendation]:
    change = "deliver what is ready first (order='any'), or make more batches ahead (memory=, a larger prefetch)"
    if facts.makers is not None and facts.makers.in_framework:
        change = "deliver what is ready first (options.deterministic = False), or make more batches ahead (prefetch)"
    return [gain(change, ("order", "any"), speedup=gone(cause.share), spread=SURE)]


def _epoch_gap(cause: Cause, facts: Facts) -> list[Recommendation]:
    change = "keep the workers between epochs (persistent_workers=True; a FeedRunner makes the next epoch ahead)"
    return [gain(change, ("epochs", "warm workers"), speedup=gone(cause.share), spread=SURE)]


def nothing(cause: Cause, facts: Facts) -> list[Recommendation]:
    return []


BY_CODE: dict[str, Callable[[Cause, Facts], list[Recommendation]]] = {
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
    "pause.periodic": loop_changes.pause,
    "external.noise": loop_changes.noise,
    "step.host": loop_changes.host,
}

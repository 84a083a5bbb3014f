"""Changes that remove each cause, in the words of the loop that there is."""

from __future__ import annotations

import re
from dataclasses import replace

from fastfeed.diagnose.diagnosis import Recommendation
from fastfeed.diagnose.evidence import CALLED_BACK, DISK, PRODUCER
from fastfeed.diagnose.judge import knobs, signals
from fastfeed.diagnose.judge.case import Case
from fastfeed.diagnose.judge.feed_costs import Change, FeedCosts
from fastfeed.model.workload import INPUT_BOUND, Producers

# The number of producers, by the names that it has.
COUNT_KNOBS = (
    *("threads", "processes", "producers", "num_workers", "num_parallel_calls", "num_threads"),
)
TRIED_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MOST_GAINED = 0.9  # share of the most that producers gain: more of them are not worth it
MIN_GAIN = 1 / (1 - INPUT_BOUND)  # a smaller speed-up is no gain
TENTH = 0.1  # what is left of a cost if it comes a tenth as often
# What a for loop iterates over, also inside enumerate(), tqdm() and the like.
LOOP_SOURCE = re.compile(
    r"^for\b.*\bin (?:(?:enumerate|iter|tqdm|tqdm\.tqdm)\()*(?P<name>[A-Za-z_][\w.]*)\s*[,):]"
)
# A generator is a FlatMap, and no map of the user's.
MAP_STAGES = re.compile(r"^tf\.data: (?!.*FlatMap).*\b(Map|ParallelMap|MapAndBatch)\b")


def processes(case: Case, first: bool) -> list[Recommendation]:
    """Return worker processes, each of which has an interpreter lock of its own."""
    return _producers(case, held=True)


def more_producers(case: Case, first: bool) -> list[Recommendation]:
    """Return more threads, or processes if bytecode holds the lock."""
    producers = case.made_by
    held = case.held and producers.python >= max(producers.native, producers.waiting)
    return _producers(case, held=held)


def _producers(case: Case, *, held: bool) -> list[Recommendation]:
    """Return the smallest number of producers near the best rate, if it gains something."""
    if held not in case.producer_changes:
        case.producer_changes[held] = _tried_producers(case, held=held)
    return list(case.producer_changes[held])


def _tried_producers(case: Case, *, held: bool) -> list[Recommendation]:
    producers, now = case.made_by, case.feed
    if not producers.known or (producers.kind == "native" and case.full):
        return []
    processes = producers.kind == "processes" or held or _by_loader(case)
    same = producers.kind == ("processes" if processes else "threads")
    taken_s = knobs.LOADER_HANDOVER_S if producers.kind == "trainer" and _by_loader(case) else 0.0
    most = TRIED_COUNTS[-1]
    if processes and not producers.away:
        most = (1 if held else 4) * round(now.cores)
    tried: dict[int, Change] = {
        count: knobs.own_readers(
            knobs.made_by(
                Producers(1, count) if processes else Producers(count), handover_s=taken_s
            )
        )
        for count in TRIED_COUNTS
        if count <= most
    }
    feeds = {count: change(now) for count, change in tried.items()}
    gains = {count: now.period / feed.period - 1 for count, feed in feeds.items()}
    best = max(gains.values())
    if best <= 0:
        return []
    count = next(n for n, gain in gains.items() if gain >= MOST_GAINED * best)
    if same and count <= producers.count:
        return []
    local = producers.count - producers.remote if producers.remote else 0  # these stay
    knob, text = _in_words(case, count - local, processes=processes)
    if now.reader and count > 1:
        text = f"let each producer read its share, in a function that takes `worker`, and {text}"
    why = _limits(feeds, count, now=now)
    if held and producers.kind != "processes":
        why = (
            f"threads cannot help: {producers.python:.0%} of the work holds the interpreter lock "
            f"or waits for it; {why}"
        )
    # A disk may have no more to give.
    disks = max(1.0, producers.count * producers.active * producers.share(DISK))
    least = [lambda feed: replace(tried[count](feed), disks=disks)] * bool(producers.share(DISK))
    changed = [tried[count], *least]
    lock = ("lock",) if not processes and now.lock else ()
    tested = case.untested("burst", "cores", *lock)
    knob_value = knob, str(count - local)
    one = case.recommend(text, knob_value, *changed, why=why, adds_work=True, untested=tested)
    where = case.evidence.loop.where if case.evidence.loop is not None else ""
    return [replace(one, where=where, code=_code(case, knob, count=count - local))]


def _code(case: Case, knob: str, *, count: int) -> str:
    """Return the change in Python, with the name of what the loop iterates over; "" if unknown."""
    loop = case.evidence.loop
    found = LOOP_SOURCE.search(loop.text) if loop is not None else None
    if found is None:
        return ""
    name = found["name"]
    forms = {
        "num_workers": f"{name} = DataLoader(..., num_workers={count}, persistent_workers=True)",
        "num_parallel_calls": f"{name} = ....map(..., num_parallel_calls={count}).prefetch(2)",
    }
    runner = "FeedRunner(..., " if case.loop_kind == "runner" else f"FeedRunner({name}, "
    return forms.get(knob, f"{name} = {runner}{knob}={count})")


def _by_loader(case: Case) -> bool:
    """Return True if a DataLoader delivers the batches: its workers are processes."""
    return case.loop_kind == "torch"


def _limits(feeds: dict[int, FeedCosts], count: int, *, now: FeedCosts) -> str:
    """Return the gain of fewer producers, and the limit with that number."""
    limit = f"with {count} the limit is {feeds[count].limit}"
    gains = {n: now.period / feed.period for n, feed in feeds.items() if n < count}
    fewer = [n for n, gain in gains.items() if gain >= MIN_GAIN]
    if not fewer:
        return limit
    give = "gives" if fewer[-1] == 1 else "give"
    return f"{fewer[-1]} {give} {gains[fewer[-1]]:.1f}x, {limit}"


def _in_words(case: Case, count: int, *, processes: bool) -> tuple[str, str]:
    """Return the loop's own knob for that number of producers, and the change in words."""
    producers, evidence = case.made_by, case.evidence
    if producers.remote:
        return "producers", f"producers of remote=Remote(...): {producers.remote} -> {count}"
    knob = "processes" if processes else "threads"
    loop = evidence.loop
    mapped = loop is not None and any(map(MAP_STAGES.search, (loop.name, loop.note)))
    if producers.kind == "native" and case.loop_kind == "session" and loop and loop.buffer:
        filled = f"fill the queue with {count} threads: num_threads={count} in tf.train.batch"
        return "num_threads", filled
    if producers.kind == "native":
        parallel = "let tf.data work in parallel: num_parallel_calls=tf.data.AUTOTUNE, and prefetch"
        return "num_parallel_calls", parallel
    if not processes and producers.kind == "threads" and (producers.in_framework or mapped):
        pool = _pool(case, "options.threading.private_threadpool_size", count=count)
        return "num_parallel_calls", f"num_parallel_calls {producers.count} -> {count}{pool}"
    if _by_loader(case):
        before = 0 if producers.kind == "trainer" else producers.count
        return "num_workers", f"make the batches ahead of the step: num_workers {before} -> {count}"
    if producers.kind == knob:
        in_graph = case.loop_kind == "session" and any(
            task.name == CALLED_BACK for task in evidence.tasks_of(PRODUCER)
        )
        option = "ConfigProto.inter_op_parallelism_threads"
        pool = _pool(case, option, count=count) if in_graph and not processes else ""
        return knob, f"{knob} {producers.count} -> {count}{pool}"
    noun = "worker process" if processes else "thread"
    plural = ("es" if processes else "s") if count > 1 else ""
    ahead = "" if processes else ", ahead of the step"
    return knob, f"make the batches in {count} {noun}{plural}{ahead}"


def _pool(case: Case, option: str, *, count: int) -> str:
    """Return the size of a thread pool that the change needs, if any.

    Python that blocks occupies a thread of a pool that has one thread for each core, however many
    calls are requested.
    """
    return f" and {option}={count}" if count > case.evidence.machine.cores else ""


def disk(case: Case, first: bool) -> list[Recommendation]:
    """Return less to read, more parallel reads, and data in memory."""
    found = more_producers(case, first)
    wasted = case.observed.wasted
    if wasted:
        read = case.evidence.machine.disk_read_nbytes_s / case.figures.steps_per_second
        change = (
            f"read only what is used: {read / 1e6:.3g} MB are read for a batch of "
            f"{signals.batch_nbytes(case.evidence) / 1e6:.2g} MB"
        )
        less = [knobs.batch_cost(1 - wasted), lambda feed: feed.batches(disk=1 - wasted)]
        # Of equal changes the one that asks the disk for less comes first.
        found.insert(0, case.recommend(change, ("cache", "what is used"), *less))
    change = "keep the data in memory, or in fewer and larger files that are read in order"
    return [*found, case.recommend(change, ("cache", "memory"), knobs.no_disk)]


def cores(case: Case, first: bool) -> list[Recommendation]:
    """Return more producers as long as there are cores; then only less work helps."""
    more = more_producers(case, first)
    if not first or any(one.predicted_speedup >= MIN_GAIN for one in more):
        return more
    change = (
        "halve the cost of a batch (smaller images, cheaper operations, cached results), or use "
        "more cores"
    )
    return [case.recommend(change, ("work", "half"), knobs.batch_cost(0.5))]


def copies(case: Case, first: bool) -> list[Recommendation]:
    """Return batches of the final dtype, in memory that is reused."""
    loop = case.evidence.loop
    if loop is not None and "float64" in {leaf.dtype for leaf in loop.leaves}:
        knob = ("dtypes", "float32")
        change = (
            "make float32 instead of float64 (dtypes='float32' casts in the producers), without "
            "lists in between"
        )
    else:
        knob = ("dtypes", "final")
        change = (
            "make arrays of the final dtype once, in memory that is reused (out=); send whole "
            "numbers below 256 as uint8, and cast on the device"
        )
    one = case.recommend(change, knob, knobs.no_copies)
    return [one] if case.feed.converted else [one, *more_producers(case, first)]


def ipc(case: Case, first: bool) -> list[Recommendation]:
    """Return shared memory instead of pickling."""
    change = (
        "pass batches through shared memory instead of pickling them: "
        f"FeedRunner(..., processes={case.made_by.count})"
    )
    return [case.recommend(change, ("transport", "shared memory"), knobs.no_handover)]


def oversubscribed(case: Case, first: bool) -> list[Recommendation]:
    """Return fewer threads of native pools in each producer, and fewer producers."""
    producers, pools = case.made_by, sorted(case.evidence.pools) or ["native libraries"]
    found = []
    for knob, names in (
        (("cv2.setNumThreads", "0"), [name for name in pools if name == "OpenCV"]),
        (("OMP_NUM_THREADS", "1"), [name for name in pools if name != "OpenCV"]),
    ):
        if names:
            change = f"use one thread for {' and '.join(names)} in each producer: {'='.join(knob)}"
            found.append(case.recommend(change, knob, knobs.single_threaded_pools))
    count = case.evidence.machine.cores
    if producers.kind in ("threads", "processes") and producers.count > count:
        name = "num_workers" if _by_loader(case) else producers.kind
        change = f"lower {name} to {count}: there are more producers than cores"
        fewer = Producers(1, count) if producers.kind == "processes" else Producers(count)
        one = knobs.made_by(fewer)
        found.append(case.recommend(change, (name, str(count)), one, adds_work=True))
    return found


def straggler(case: Case, first: bool) -> list[Recommendation]:
    """Return ready batches first."""
    change = (
        "deliver ready batches first (order='any'), or make more batches ahead (memory=, a larger "
        "prefetch)"
    )
    if case.made_by.in_framework:
        change = (
            "deliver ready batches first (options.deterministic = False), or make more batches "
            "ahead (prefetch)"
        )
    return [case.recommend(change, ("order", "any"), knobs.even_batches)]


def epoch_gap(case: Case, first: bool) -> list[Recommendation]:
    """Return workers that live on between epochs, and an epoch that is made ahead."""
    ahead = "make the first batches of the next epoch ahead, in a FeedRunner"
    found = [case.recommend(ahead, ("epochs", "made ahead"), knobs.warm_epochs)]
    if _by_loader(case) and case.made_by.kind == "processes":
        kept = "keep the workers between epochs: persistent_workers=True"
        found.insert(0, case.recommend(kept, ("epochs", "kept workers"), knobs.kept_workers))
    return found


def pause(case: Case, first: bool) -> list[Recommendation]:
    """Return rarer pauses."""
    names = ", ".join(sorted({name for _, _, name in case.ledger.pauses if name}))
    each = len(case.ledger.pauses) > len(case.ledger) / 2 and case.loop_kind == "session"
    more = "in the run of the step (run([train_op, loss, ...]))" if each else "beside the training"
    change = f"do it less often, or {more}: {names or 'the work between steps'}"
    # Their time was measured; whether input would then be the limit was not.
    behind = case.figures.starvation >= INPUT_BOUND
    untested = "less if producers make batches during the pauses" if behind else ""
    knob = ("every", "10x the steps")
    return [case.recommend(change, knob, knobs.pauses(TENTH), untested=untested)]


def noise(case: Case, first: bool) -> list[Recommendation]:
    """Return a machine without the other processes."""
    names = ", ".join(name for name, _ in case.evidence.machine.noisy[:3]) or "other processes"
    change = f"stop what takes the cores from the training: {names}"
    return [case.recommend(change, ("cores", "free"), knobs.no_others)]


def host(case: Case, first: bool) -> list[Recommendation]:
    """Return less work between the steps, or fewer calls."""
    lines = case.evidence.parts_of("host")
    between = min(case.host, case.ledger.share(case.ledger.host))
    if between < 0.5 * case.host:
        return [_fewer_calls(case)]
    trainer = case.evidence.trainer
    top = trainer.top() if trainer is not None else None
    where = str(top[0]) if top is not None and top[0].users else "callbacks, metrics, logs"
    if lines:
        where = str(max(lines, key=lambda part: part.share).place)
    change = f"do the work between the steps every 100 steps, or beside the training: {where}"
    left = case.without((1 - TENTH**2) * between)
    return [case.recommend(change, ("every", "100 steps"), left)]


def _fewer_calls(case: Case) -> Recommendation:
    kind, share = case.loop_kind, case.host
    # It is unknown how much of a call is the same for any number of steps.
    saved = (1 - TENTH) * share
    larger = case.without(saved), case.without(saved / 2)
    if kind == "keras":
        change = "run 10 steps in a call (steps_per_execution=10), or use larger batches"
        return case.recommend(change, ("steps_per_execution", "10"), *larger)
    if kind == "session":
        change = (
            "use batches 10 times as large: a call costs the same for small and for large ones "
            "(the gain is in records per second)"
        )
        return case.recommend(change, ("batch_size", "10x"), *larger)
    change = (
        "make the whole step one call (tf.function, jax.jit, torch.compile), or use larger batches"
    )
    return case.recommend(change, ("compile", "the step"), *larger)

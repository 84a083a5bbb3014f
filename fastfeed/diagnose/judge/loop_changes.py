"""Changes beside the input: to the loop's own work, to its pauses, and to other processes on the
machine."""

from __future__ import annotations

from fastfeed.diagnose.diagnosis import Cause, Recommendation
from fastfeed.diagnose.evidence import PYTHON, TRAINER
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.facts import Facts
from fastfeed.diagnose.judge.gains import (
    SURE,
    UNKNOWN,
    UNSURE,
    WORTH,
    gain,
    gone,
)
from fastfeed.diagnose.judge.overhead import in_calls, more_calls

RARELY, MANY = 100, 10
# a call of a small compiled step: 0.3 to 0.8 ms with TensorFlow, as measured
CALL_S = 5e-4


def pause(cause: Cause, facts: Facts) -> list[Recommendation]:
    what = (
        ", ".join(sorted({name for _, _, name in facts.rows.pauses if name}))
        or "the work between steps"
    )
    change = f"do it less often, or beside the training: {what}"
    return [gain(change, ("every", "10x the steps"), speedup=gone(0.9 * cause.share), spread=SURE)]


def noise(cause: Cause, facts: Facts) -> list[Recommendation]:
    names = ", ".join(name for name, _ in facts.evidence.machine.noisy[:3]) or "other processes"
    return [
        gain(
            f"leave the cores to the training: {names}",
            ("cores", "free"),
            speedup=gone(cause.share),
            spread=UNSURE,
        )
    ]


def host(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Return changes to the work between the steps; a step of many small calls can become one call,
    which costs CALL_S."""
    # a line that sleeps or computes may be the step itself
    parts = [part for part in facts.evidence.parts if part.kind == "host"]
    lines = [part for part in parts if part.busy.get(PYTHON, 0.0) >= signals.BYTECODE]
    between = min(
        cause.share, max(facts.rows.share(facts.rows.host), sum(part.share for part in lines))
    )
    if between >= 0.5 * cause.share:
        where = max(lines, key=lambda part: part.share).place if lines else _busiest(facts)
        change = (
            f"do what lies between the steps every {RARELY} steps, or beside the training: {where}"
        )
        left_out = (1 - 1 / RARELY) * between
        return [gain(change, ("every", f"{RARELY} steps"), speedup=gone(left_out), spread=UNSURE)]
    loop, now = facts.evidence.loop, facts.rows.seconds / max(1, facts.figures.steps)
    left_out = (1 - 1 / MANY) * cause.share
    if loop is not None and loop.kind == "keras":
        change = f"{MANY} steps in a call: steps_per_execution={MANY}; or larger batches"
        return [
            gain(change, ("steps_per_execution", str(MANY)), speedup=gone(left_out), spread=UNKNOWN)
        ]
    session = loop is not None and loop.kind == "session"
    more, cost = more_calls(facts.evidence, facts.rows)
    if session and more >= 1:
        change = f"one run for the {more + 1:.0f} of a step: run([train_op, loss, ...])"
        return [gain(change, ("fetches", "in one run"), speedup=gone(cost), spread=UNKNOWN)]
    compiled = now / (max(0.0, 1 - cause.share * in_calls(facts.evidence)) * now + CALL_S)
    if session or compiled < WORTH:
        change = f"batches {MANY} times as large (the gain is in records a second): small or large, a call costs the same"
        return [gain(change, ("batch_size", f"{MANY}x"), speedup=gone(left_out), spread=UNKNOWN)]
    change = "one call for the whole step (tf.function, jax.jit, torch.compile), or larger batches"
    return [gain(change, ("compile", "the step"), speedup=compiled, spread=UNKNOWN)]


def _busiest(facts: Facts) -> str:
    """Return the script's own line with most of the training thread's time."""
    trainer = next((task for task in facts.evidence.tasks if task.role == TRAINER), None)
    top = trainer.top() if trainer is not None else None
    return str(top[0]) if top is not None and top[0].users else "callbacks, metrics, logs"

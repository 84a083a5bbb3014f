"""Changes beside the input: to the loop's own work, its pauses, and other processes."""

from __future__ import annotations

from fastfeed.diagnose.diagnosis import Cause, Recommendation
from fastfeed.diagnose.evidence import PYTHON
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.facts import MIN_GAIN, Facts
from fastfeed.diagnose.judge.overhead import extra_calls, in_framework_calls

EVERY_STEPS = 100  # recommended steps between two rounds of the loop's own work
STEPS_PER_CALL = 10  # recommended steps, or batches, in one call
RARER_PAUSES = 0.1  # share of the pauses that is left if they come a tenth as often
# A call of a small compiled step: 0.3 to 0.8 ms were measured with TensorFlow.
COMPILED_CALL_S = 5e-4


def pause(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Return rarer pauses."""
    names = ", ".join(sorted({name for _, _, name in facts.table.pauses if name}))
    change = f"do it less often, or beside the training: {names or 'the work between steps'}"
    knob = ("every", "10x the steps")
    return [facts.recommend(change, knob, lambda feed: feed.step(pause=RARER_PAUSES))]


def noise(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Return a machine without the other processes."""
    names = ", ".join(name for name, _ in facts.evidence.machine.noisy[:3]) or "other processes"
    change = f"stop what takes the cores from the training: {names}"
    left = 1 - cause.share
    return [facts.recommend(change, ("cores", "free"), lambda feed: feed.step(left).batch(left))]


def host(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Return less work between the steps, or fewer calls.

    A step of many small calls can become one call, which costs COMPILED_CALL_S.
    """
    # A line that sleeps or computes may be the step itself.
    parts = facts.evidence.parts_of("host")
    lines = [part for part in parts if part.busy.get(PYTHON, 0.0) >= signals.MIN_BYTECODE]
    sampled = sum(part.share for part in lines)
    between = min(cause.share, max(facts.table.share(facts.table.host), sampled))
    if between < 0.5 * cause.share:
        return [_fewer_calls(cause, facts)]
    where = max(lines, key=lambda part: part.share).place if lines else _busiest(facts)
    change = (
        f"do the work between the steps every {EVERY_STEPS} steps, or beside the training: {where}"
    )
    knob = ("every", f"{EVERY_STEPS} steps")
    return [facts.recommend(change, knob, facts.without((1 - 1 / EVERY_STEPS) * between))]


def _fewer_calls(cause: Cause, facts: Facts) -> Recommendation:
    loop = facts.evidence.loop
    kind = loop.kind if loop is not None else ""
    period_s = facts.table.seconds / max(1, facts.figures.steps)
    # It is unknown how much of a call is the same for any number of steps.
    saved = (1 - 1 / STEPS_PER_CALL) * cause.share
    larger = facts.without(saved), facts.without(saved / 2)
    if kind == "keras":
        steps = str(STEPS_PER_CALL)
        change = f"run {steps} steps in a call (steps_per_execution={steps}), or use larger batches"
        knob = ("steps_per_execution", steps)
        return facts.recommend(change, knob, *larger)
    extra, cost = extra_calls(facts.evidence, facts.table)
    if kind == "session" and extra >= 1:
        change = f"make one run of the {extra + 1:.0f} of a step: run([train_op, loss, ...])"
        return facts.recommend(change, ("fetches", "in one run"), facts.without(cost))
    replaced = cause.share * in_framework_calls(facts.evidence)
    saved = replaced - COMPILED_CALL_S / period_s
    if kind == "session" or saved < 1 - 1 / MIN_GAIN:
        change = (
            f"use batches {STEPS_PER_CALL} times as large: a call costs the same for small and for "
            "large ones (the gain is in records per second)"
        )
        knob = ("batch_size", f"{STEPS_PER_CALL}x")
        return facts.recommend(change, knob, *larger)
    change = (
        "make the whole step one call (tf.function, jax.jit, torch.compile), or use larger batches"
    )
    knob = ("compile", "the step")
    return facts.recommend(change, knob, facts.without(saved), facts.without(saved / 2))


def _busiest(facts: Facts) -> str:
    """Return the script's own line with most of the training thread's time."""
    trainer = facts.evidence.trainer
    top = trainer.top() if trainer is not None else None
    return str(top[0]) if top is not None and top[0].users else "callbacks, metrics, logs"

"""Overhead of a loop: Python between its steps, and calls that compute next to nothing."""

from __future__ import annotations

from fastfeed.diagnose.evidence import FRAMEWORK, NATIVE, PYTHON, SLEEP, Evidence, Task
from fastfeed.diagnose.judge.signals import MOST
from fastfeed.diagnose.judge.step_ledger import Ledger
from fastfeed.probes.places import Place

IDLE_POOLS = 0.2  # cores of native pools beside one of the thread: the pools compute no step
MANY_PLACES = 5.0  # an eager step has samples in dozens of places, one that computes in a few


def host_share(evidence: Evidence, ledger: Ledger) -> float:
    """Return the share of the loop's own Python: beside the step, and in a step that is bytecode
    and calls rather than computing."""
    trainer = evidence.trainer
    inside, host = ledger.share(ledger.inside), ledger.share(ledger.host)
    lines = evidence.parts_of("host")
    found = min(host, sum(part.share_in(PYTHON) for part in lines)) if lines else host
    if trainer is None or not trainer.busy:
        return min(found, host + inside)
    own, native, pools = _work_beside_input(evidence, ledger, trainer=trainer)
    awake = max(0.0, inside - trainer.share(SLEEP))  # a simulated accelerator sleeps
    if own > native + pools and own >= MOST * awake:
        found = max(found, own)
    # One long call of native code is a step; many short ones, from many places, are the cost of
    # calling.
    many = place_diversity(trainer) >= MANY_PLACES
    if many and pools < IDLE_POOLS * (own + native) and own + native >= MOST * awake:
        found = max(found, own + native)
    return min(1.0 - ledger.starvation, found)


def _work_beside_input(
    evidence: Evidence, ledger: Ledger, *, trainer: Task
) -> tuple[float, float, float]:
    """Return bytecode and native code of the loop's thread, and native code of pools, as shares of
    the time, without what the thread does for its input."""
    python, native = trainer.share(PYTHON), trainer.share(NATIVE)
    left = max(0.0, 1.0 - ledger.share(ledger.converted) / max(1e-9, python + native))
    inputs, measured = evidence.parts_of("input"), 1.0
    if evidence.loop is not None and evidence.loop.waits == "exact":  # the rest is none
        measured = min(1.0, ledger.starvation / max(1e-9, sum(part.share for part in inputs)))
    made = [measured * sum(p.share_in(one) for p in inputs) for one in (PYTHON, NATIVE)]
    pools = sum(task.cpu_s for task in evidence.tasks_of(FRAMEWORK))
    return (
        max(0.0, left * python - made[0]),
        max(0.0, left * native - made[1]),
        pools / max(1e-9, evidence.seconds),
    )


def place_diversity(task: Task) -> float:
    """Return the number of places outside of the user's code that the samples of a task are spread
    over: the inverse of Simpson's index of the innermost ones."""
    counts: dict[Place, int] = {}
    for stack, count in task.stacks.items():
        if stack and not stack[-1].users:
            counts[stack[-1]] = counts.get(stack[-1], 0) + count
    total = sum(counts.values())
    pairs = sum(count * (count - 1) for count in counts.values())
    return total * (total - 1) / pairs if pairs else float(total)

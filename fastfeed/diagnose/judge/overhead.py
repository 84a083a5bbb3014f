"""Overhead of a loop: Python between its steps, and calls that compute next to nothing."""

from __future__ import annotations

import re

import numpy as np

from fastfeed.diagnose.evidence import FRAMEWORK, NATIVE, PYTHON, SLEEP, Evidence, Task
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.figures import StepTable
from fastfeed.probes.places import Place

SHORT_EAGER_STEP_S = 0.05  # a longer step is not all overhead
EAGER_BYTECODE = 0.25  # share of a step in bytecode: more than any step that computes has
# Least cost of a call that computes next to nothing: 0.32 ms of Session.run and 1.6 ms of fit were
# measured.
CALL_COST_S = {"session": 3e-4, "keras": 1e-3}
MOSTLY_CALLS = 0.5  # share of the time: below it, calls are the price of steps that compute
MANY_PLACES = 5.0  # an eager step has samples in dozens of places, one that computes in a few
FRAMEWORK_FILES = re.compile(r"^(tensorflow|keras|torch|jax|flax|optax|haiku|equinox)(/|\.py$)")
# Share of the samples: a step with fewer of them in a framework's code consists of something else.
MIN_FRAMEWORK_SHARE = 0.2


def host_share(evidence: Evidence, table: StepTable, *, trainer: Task | None) -> float:
    """Return the share of the loop's own Python.

    It lies beside the step, and in a step that is bytecode rather than computing.
    """
    inside = table.share(table.inside)
    beside = max(between_steps(evidence, table), _mostly_calls(evidence, table))
    if trainer is None or not trainer.busy:
        return min(beside, table.share(table.host) + inside)
    seconds = max(1e-9, evidence.seconds)
    # Conversions of the input do not count.
    left = max(0.0, 1.0 - table.share(table.converted) / max(1e-9, trainer.share(PYTHON, NATIVE)))
    python, own_native = left * trainer.share(PYTHON), left * trainer.share(NATIVE)
    pools = sum(task.cpu_s for task in evidence.tasks_of(FRAMEWORK)) / seconds
    native = pools + own_native
    inputs = evidence.parts_of("input")
    made, made_native = (sum(part.share_in(state) for part in inputs) for state in (PYTHON, NATIVE))
    own = max(0.0, python - made)
    computes = max(0.0, native - made)
    # A simulated accelerator belongs to the step, too.
    awake = max(0.0, inside - trainer.share(SLEEP))
    overhead = own if own > computes and own >= 0.5 * awake else 0.0
    on_core = own + max(0.0, own_native - max(made, made_native))
    short = float(np.median(table.inside)) < SHORT_EAGER_STEP_S
    eager = short or own >= EAGER_BYTECODE * awake
    if eager and pools < 0.2 * on_core and on_core >= 0.7 * awake:
        # One long call of native code is a step; many short ones, from many places, are the cost of
        # calling. A long step is made of such calls only if they come from twice as many places,
        # and leave pools idle.
        places = MANY_PLACES if short else 2 * MANY_PLACES
        idle = short or pools < 0.05 * on_core
        if idle and signals.place_diversity(trainer) >= places:
            overhead = max(overhead, on_core)
    return min(1.0 - table.starvation, max(beside, overhead))


def _mostly_calls(evidence: Evidence, table: StepTable) -> float:
    """Return the share of calls and of the time between them, if it is most of the time; else 0."""
    calls_s = len(table.inside) * min(_call_s(evidence), float(np.median(table.inside)))
    _, extra = extra_calls(evidence, table)
    share = min(table.share(table.inside), calls_s / table.seconds + extra)
    return share + table.share(table.host) if share >= MOSTLY_CALLS else 0.0


def extra_calls(evidence: Evidence, table: StepTable) -> tuple[float, float]:
    """Return the number of calls beside a step's own, and their share of the time.

    Such are the runs of a session that only fetch a loss. What they compute does not count.
    """
    call_s = _call_s(evidence)
    if not call_s or not len(table.begin):
        return 0.0, 0.0
    end_s = table.begin[-1] + table.period[-1]
    calls = [one for one in evidence.beside if table.begin[0] <= one.begin_s < end_s]
    cost_s = sum(min(call_s, one.end_s - one.begin_s - one.wait_s) for one in calls)
    return len(calls) / len(table.begin), cost_s / table.seconds


def _call_s(evidence: Evidence) -> float:
    return CALL_COST_S.get(evidence.loop.kind, 0.0) if evidence.loop is not None else 0.0


def between_steps(evidence: Evidence, table: StepTable) -> float:
    """Return the share of the time beside the step, by its time or by its lines."""
    return max(table.share(table.host), in_host_lines(evidence))


def in_host_lines(evidence: Evidence) -> float:
    """Return the share of the time beside the step, by its lines.

    A line that is mostly bytecode is no model: all of it belongs to the loop.
    """
    pythons = [(part.share, part.busy.get(PYTHON, 0.0)) for part in evidence.parts_of("host")]
    return sum(
        share * (1.0 if python >= signals.MIN_BYTECODE else python) for share, python in pythons
    )


def in_framework_calls(evidence: Evidence) -> float:
    """Return the part of the work of the loop's thread that one compiled call replaces.

    That is the calls of a framework, not the loop's own Python beside them; 1 if the step does not
    consist of such calls.
    """
    trainer = evidence.trainer
    stacks = trainer.stacks if trainer is not None else {}
    calls = sum(count for stack, count in stacks.items() if any(map(_is_framework, stack)))
    share = calls / max(1, sum(stacks.values()))
    return share if share >= MIN_FRAMEWORK_SHARE else 1.0


def _is_framework(place: Place) -> bool:
    return not place.users and FRAMEWORK_FILES.search(place.file) is not None

"""The overhead of a loop: Python between its steps, and steps that are calls and compute next to
nothing."""

from __future__ import annotations

import re

import numpy as np

from fastfeed.diagnose.evidence import FRAMEWORK, NATIVE, PYTHON, SLEEP, TRAINER, Evidence, Task
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.figures import StepTable
from fastfeed.probes.places import Place

SHORT_S = 0.05  # a step that is all overhead is no longer than that
EAGER = 0.25  # of a step, in bytecode: more than any step that computes
# Least cost of a call that computes next to nothing: measured as 0.32 ms of Session.run and 1.6 ms
# of fit.
CALLS_S = {"session": 3e-4, "keras": 1e-3}
MOSTLY = 0.5  # of the time: below it, calls are the price of steps that compute
SPREAD = 5.0  # places: an eager step has dozens, one that computes has a few
FRAMEWORKS = re.compile(r"^(tensorflow|keras|torch|jax|flax|optax|haiku|equinox)(/|\.py$)")
# of its samples: a loop with less of them in a framework's code makes its step of something else
EAGERLY = 0.2


def host_share(evidence: Evidence, rows: StepTable, *, trainer: Task | None) -> float:
    """Return the share of the loop's own Python: beside the step, and in a step that is bytecode
    rather than computing."""
    inside, beside = rows.share(rows.inside), max(between(evidence, rows), _called(evidence, rows))
    if trainer is None or not trainer.busy:
        return min(beside, rows.share(rows.host) + inside)
    seconds = max(1e-9, evidence.end_s - evidence.start_s)
    # without the conversion of what it is fed
    left = max(0.0, 1.0 - rows.share(rows.converted) / max(1e-9, trainer.share(PYTHON, NATIVE)))
    python, own_native = left * trainer.share(PYTHON), left * trainer.share(NATIVE)
    pools = sum(t.cpu_s for t in evidence.tasks if t.role == FRAMEWORK) / seconds
    native = pools + own_native
    inputs = [part for part in evidence.parts if part.kind == "input"]
    made, made_native = (
        sum(part.share * part.busy.get(state, 0.0) for part in inputs) for state in (PYTHON, NATIVE)
    )
    own = max(0.0, python - made)
    computes = max(0.0, native - made)
    # a simulated accelerator belongs to the step, too
    awake = max(0.0, inside - trainer.share(SLEEP))
    overhead = own if own > computes and own >= 0.5 * awake else 0.0
    on_core = own + max(0.0, own_native - max(made, made_native))
    short = float(np.median(rows.inside)) < SHORT_S
    if (short or own >= EAGER * awake) and pools < 0.2 * on_core and on_core >= 0.7 * awake:
        # One long call of native code is a step; many short ones, from many places, are the cost of
        # calling. A long step is made of such calls only if they come from twice as many places,
        # and leave pools idle.
        scattered = signals.spread_of(trainer) >= (SPREAD if short else 2 * SPREAD)
        overhead = max(
            overhead, on_core if scattered and (short or pools < 0.05 * on_core) else 0.0
        )
    return min(1.0 - rows.starvation, max(beside, overhead))


def _called(evidence: Evidence, rows: StepTable) -> float:
    """Return the cost of calls of steps that are too small for them, and the time between them; 0
    otherwise."""
    calls_s = len(rows.inside) * min(_call_s(evidence), float(np.median(rows.inside)))
    found = min(rows.share(rows.inside), calls_s / rows.seconds + more_calls(evidence, rows)[1])
    return found + rows.share(rows.host) if found >= MOSTLY else 0.0


def more_calls(evidence: Evidence, rows: StepTable) -> tuple[float, float]:
    """Return the calls beside the step's own, such as the runs of a session that only fetch a loss:
    their number in a step, and their share of the time without what they compute."""
    call_s = _call_s(evidence)
    if not call_s or not len(rows.begin):
        return 0.0, 0.0
    end_s = rows.begin[-1] + rows.period[-1]
    calls = [one for one in evidence.beside if rows.begin[0] <= one.begin_s < end_s]
    cost_s = sum(min(call_s, one.end_s - one.begin_s - one.wait_s) for one in calls)
    return len(calls) / len(rows.begin), cost_s / rows.seconds


def _call_s(evidence: Evidence) -> float:
    return CALLS_S.get(evidence.loop.kind, 0.0) if evidence.loop is not None else 0.0


def between(evidence: Evidence, rows: StepTable) -> float:
    """Return the time beside the step, by its time or by its lines."""
    return max(rows.share(rows.host), in_lines(evidence))


def in_lines(evidence: Evidence) -> float:
    """Return the time beside the step by its lines. A line that is mostly bytecode is no model: all
    of it belongs to the loop."""
    pythons = [
        (part.share, part.busy.get(PYTHON, 0.0)) for part in evidence.parts if part.kind == "host"
    ]
    return sum(share * (1.0 if python >= signals.BYTECODE else python) for share, python in pythons)


def in_calls(evidence: Evidence) -> float:
    """Return the part of the work of the loop's thread that one compiled call replaces: the calls
    of a framework, and not the loop's own Python beside them; 1 if the step is not made of such
    calls."""
    trainer = next((task for task in evidence.tasks if task.role == TRAINER), None)
    stacks = trainer.stacks if trainer is not None else {}
    calls = sum(count for stack, count in stacks.items() if any(map(_is_framework, stack)))
    share = calls / max(1, sum(stacks.values()))
    return share if share >= EAGERLY else 1.0


def _is_framework(place: Place) -> bool:
    return not place.users and FRAMEWORKS.search(place.file) is not None

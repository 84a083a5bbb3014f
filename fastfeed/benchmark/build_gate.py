"""A gate for builds: fail if the accelerator is not kept busy enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastfeed.benchmark.sweep import Setting, Sweep
from fastfeed.errors import OptionError


@dataclass(frozen=True)
class GateResult:
    """The result of the gate, and the line that explains it."""

    passed: bool
    text: str


def check_step(consumer: str) -> None:
    """Raise OptionError for the consumer without a step: there is nothing to keep busy."""
    if consumer == "none":
        raise OptionError(
            "--assert-au needs a step to keep busy: --consumer none has none, take --consumer "
            "sim:20ms"
        )


def check_au(sweep: Sweep, percent: float) -> GateResult:
    """Check if the best of the requested settings, fed by fastfeed, reaches an AU of `percent`."""
    settings = sweep.ours()
    best = max(settings, key=lambda s: _known(sweep.au(s)))
    was = 100 * _known(sweep.au(best))
    passed = was >= percent
    among = f", the best of {len(settings)} settings" if len(settings) > 1 else ""
    result = "passed" if passed else "FAILED"
    text = f"AU {was:.1f} % with {best.producers}{among}; needed {percent:g} %: {result}."
    return GateResult(passed, text if passed else f"{text} {_knob(sweep, best)}")


def _known(share: float) -> float:
    return 0.0 if math.isnan(share) else share


def _knob(sweep: Sweep, best: Setting) -> str:
    """Return what to change: the cost of a batch, which the build has changed, or the settings that
    were not tried."""
    needed = math.ceil(sweep.producer.batch_s / sweep.step.step_s) if sweep.step.step_s else 1
    batch_ms, step_ms = sweep.producer.batch_s * 1e3, sweep.step.step_s * 1e3
    cost = f"a batch costs one producer {batch_ms:.1f} ms, the step {step_ms:.1f} ms"
    if needed > best.producers.count:
        return (
            f"Make batches cheaper, or raise --threads or --processes: {cost}, so {needed} "
            "producers are the least."
        )
    return (
        f"Make batches cheaper, or try --processes: {cost}, and {best.producers} should have been "
        "enough."
    )

"""Diagnoses to show: a realistic one of every code, one without a verdict, one without evidence,
and odd ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from fastfeed.core.stats import Decision, Snapshot, StageRow
from fastfeed.diagnose.diagnosis import (
    CODES,
    Account,
    Cause,
    Ceiling,
    Diagnosis,
    Doubt,
    Figures,
    Recommendation,
)
from fastfeed.diagnose.evidence import (
    PRODUCER,
    TRAINER,
    ChildRate,
    Evidence,
    Intervention,
    LoopPart,
    MarkHint,
    Task,
)
from fastfeed.diagnose.proof import SAME, Proof, Tried
from fastfeed.probes.gpu import GpuUsage
from fastfeed.probes.machine_log import Machine
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import DeviceGap, Leaf, Loop, Mark, Step

ODD = (
    'x </script><script>alert("1")</script> <img src=x onerror=alert(2)> & '
    "\x1b[31m {{ 7 * 7 }} ü 漢 \udcff"
)
NAN = math.nan
THREAD = Place("_bootstrap", "threading.py", 1002, False)
RUN = Place("run", "threading.py", 982, False)
PRODUCE = Place("batches", "data.py", 12, True)
DECODE = Place("decode", "data.py", 41, True)
RESIZE = Place("resize", "data.py", 55, True)
CALL = Place("call", "cv2.py", 7, False)
MAIN = Place("main", "train.py", 30, True)
STEP = Place("train_on_batch", "train.py", 41, True)
START_S = 1000.0

# By code: the shares of step, wait, host and pause, and the second cause.
CASES = {
    "step.bound": (0.97, 0.01, 0.02, 0.0, ""),
    "step.host": (0.3, 0.02, 0.68, 0.0, ""),
    "input.serial": (0.28, 0.71, 0.01, 0.0, "input.latency"),
    "input.latency": (0.25, 0.74, 0.01, 0.0, "input.cpu"),
    "input.disk": (0.4, 0.58, 0.02, 0.0, ""),
    "input.gil": (0.35, 0.6, 0.05, 0.0, "step.host"),
    "input.cpu": (0.45, 0.53, 0.02, 0.0, "external.noise"),
    "input.oversubscribed": (0.5, 0.45, 0.05, 0.0, "input.cpu"),
    "input.ipc": (0.5, 0.48, 0.02, 0.0, "input.copy"),
    "input.copy": (0.55, 0.43, 0.02, 0.0, ""),
    "input.straggler": (0.7, 0.29, 0.01, 0.0, ""),
    "input.epoch_gap": (0.66, 0.03, 0.01, 0.3, ""),
    "pause.periodic": (0.72, 0.01, 0.01, 0.26, "input.latency"),
    "external.noise": (0.6, 0.38, 0.02, 0.0, ""),
    "feed.dead": (0.05, 0.95, 0.0, 0.0, ""),
}
TRACE = (
    "Thread feeder-1 ended:\nTraceback (most recent call last):\n"
    '  File "data.py", line 41, in decode\n    image = np.load(path)\n'
    "FileNotFoundError: [Errno 2] No such file or directory: 'shard-00017.npy'"
)


def steps_of(count: int, share: float, *, period_s: float = 0.052) -> list[Step]:
    """`count` steps, of each of which `share` is a wait; every ninth takes half as long again."""
    found, now = [], START_S - 10 * period_s
    for number in range(count):
        length = period_s * (1.5 if number % 9 == 8 else 1.0) * 0.98
        found.append(Step(now, now + length, share * length, free=number % 60 in (30, 31)))
        now += period_s * (1.5 if number % 9 == 8 else 1.0) + (
            23 * period_s if number % 150 == 149 else 0.0
        )
    return found


def tasks_of(count: int) -> tuple[Task, ...]:
    trainer = Task(
        *("MainThread", 4000, 4000, TRAINER, 20.0, 5.9),
        busy={"python": 0.05, "native": 0.24, "empty": 0.71},
        stacks={(MAIN, STEP): 290, (MAIN, Place("get", "queue.py", 171, False)): 710},
    )
    stacks = {
        (THREAD, RUN, PRODUCE, DECODE): 312,
        (THREAD, RUN, PRODUCE, DECODE, CALL): 96,
        (THREAD, RUN, PRODUCE, RESIZE): 71,
        (THREAD, RUN, PRODUCE): 21,
    }
    busy = {"sleep": 0.62, "python": 0.2, "native": 0.1, "gil": 0.05, "runnable": 0.03}
    rest = {
        "cpu_s": 6.1,
        "busy": busy,
        "stacks": stacks,
    }
    return (
        trainer,
        *(Task(f"producer-{i}", 4000, 4001 + i, PRODUCER, 20.0, **rest) for i in range(count)),
    )


def evidence(share: float, *, steps: int = 384, producers: int = 2) -> Evidence:
    """Evidence of a loop in which `share` of each step was a wait for input."""
    leaves = (
        Leaf("batch[0]", "uint8", (64, 224, 224, 3), "numpy.ndarray"),
        Leaf("batch[1]", "int64", (64,), "numpy.ndarray"),
    )
    loop = Loop(
        "train_on_batch",
        "keras",
        1,
        where="train.py:41",
        buffer=0,
        steps=steps_of(steps, share),
        leaves=leaves,
        device_gaps=[DeviceGap(START_S + i * 0.05, 0.001 * (i % 7)) for i in range(steps)],
    )
    end_s = loop.steps[-1].end_s
    marks = [
        Mark("epoch", START_S + i * 8.0, START_S + i * 8.0, f"epoch {i + 1}") for i in range(3)
    ]
    marks += [
        Mark("checkpoint", START_S + 7.0 + i * 9.0, START_S + 8.2 + i * 9.0, "model.keras")
        for i in range(2)
    ]
    marks += [
        Mark("batch", START_S + i * 0.1, START_S + i * 0.1 + 0.09, f"producer-{i % 2}")
        for i in range(40)
    ]
    machine = Machine(
        *(8, 2.1, 0.4, 0.01, 3.2, 31e6, 1e6, 2e6, 64_000_000_000, 21_000_000_000),
        gpus=(GpuUsage("NVIDIA H200", 0.27, 0.4, own=True),),
        noisy=(("ffmpeg", 0.3),),
    )
    return Evidence(
        *(loop, tuple(marks), tasks_of(producers), machine, START_S, end_s),
        parts=(LoopPart("input", DECODE, share), LoopPart("step", STEP, 1 - share)),
        gil_late_s=0.0001,
        gil_late_p90_s=0.0004,
        pools={"OpenCV": 8},
        missing=("GPU (no driver)", "stacks of 2 child processes (py-spy: permission denied)"),
        overhead_s=0.09,
        interventions=(Intervention("cores", 1, 0.12, (0.08, 0.16), 0.2),),
        first_batch_s=0.4,
        warmup_s=3.0,
        threads=producers,
    )


def figures(shares: Sequence[float], seen: Evidence) -> Figures:
    steps = len(seen.loop.steps) if seen.loop else 0
    seconds = seen.end_s - seen.start_s
    each = seconds / steps
    named = dict(zip(("step", "wait", "host", "pause"), shares, strict=True))
    return Figures(
        *(steps, seconds, 1 / each, (0.96 / each, 1.03 / each), shares[0] * each, each),
        *(
            shares[1] * each,
            shares[1] * each * 1.6,
            shares[1],
            (shares[1] * 0.96, min(1.0, shares[1] * 1.04)),
        ),
        *(shares[0], {name: share for name, share in named.items() if share}),
    )


def diagnosis(code: str) -> Diagnosis:
    """A realistic one of a code of CODES."""
    *shares, second = CASES[code]
    seen = evidence(shares[1])
    gain = 1 / max(0.05, 1 - shares[1])
    told = (
        "waits take 36.9 ms of a period of 52.1 ms, in 96 % of the steps",
        "`decode` at data.py:41: 78 % of producer time, asleep 62 % of it",
        "no batch is made while a step runs: 0 of 384 overlap",
    )
    causes = [
        Cause(code, max(shares[1:]), told),
        *([Cause(second, 0.09, told[1:2])] if second else []),
    ]
    advice = (
        Recommendation(
            "Make batches in 4 threads",
            "threads",
            "4",
            gain,
            (gain * 0.92, gain * 1.05),
            "3 give 2.9x.",
        ),
        Recommendation("Keep OpenCV to one thread", "cv2.setNumThreads", "0", 1.08, (1.02, 1.15)),
    )
    known = None if code == "step.bound" else 0.0
    return Diagnosis(
        *(code, tuple(causes), figures(shares, seen)),
        Ceiling(0.0148, 0.0141, 0.0160, True, "measured with 24 cached batches in the running job"),
        *(gain, (gain * 0.93, gain * 1.06)),
        *(() if known is None else advice,),
        None,
        seen,
        script="train.py",
        died=(TRACE,) if code == "feed.dead" else (),
    )


def abstained() -> Diagnosis:
    """The script ended after 12 steps."""
    seen = evidence(0.4, steps=12)
    why = "the script ended after 12 steps, and 20 are needed"
    return replace(
        diagnosis("input.serial"),
        **{
            "verdict": None,
            "causes": (),
            "recommendations": (),
            "abstained": why,
        },
        **{"figures": figures((0.6, 0.4, 0.0, 0.0), seen), "ceiling": None, "evidence": seen},
        **{"speedup_if_input_free": NAN, "speedup_range": (NAN, NAN)},
    )


def doubtful() -> Diagnosis:
    """The halves of the watch lead to different verdicts, and one change may cost."""
    one = diagnosis("input.latency")
    slower = Recommendation("Make batches in a process", "num_workers", "1", 1.04, (0.92, 1.1))
    advice = replace(one.recommendations[0], where="train.py:8", code="FeedRunner(..., threads=4)")
    return replace(
        one,
        recommendations=(advice,),
        may_cost=(slower,),
        doubt=Doubt(2 / 3, ("input.latency", "input.cpu")),
        accounts=(
            Account("input", 0.74, 0.03),
            Account("step elsewhere", 0.2, 0.01),
            Account("unseen", 0.06, 0.0),
        ),
    )


DIFF = """\
--- a/train.py
+++ b/train.py
@@ -7,2 +7,2 @@
-runner = FeedRunner(batches, threads=1)
+runner = FeedRunner(batches, threads=4)
 for batch in runner:
"""


def proven() -> Diagnosis:
    """A change was proven, another one was slower, and one could not run."""
    one = diagnosis("input.latency")
    advice = one.recommendations[0]
    gain = {"predicted": advice.predicted_speedup, "predicted_interval": advice.interval}
    known = {"knob": advice.knob, **gain}
    more = Tried(
        "threads=4", 1.87, (1.81, 1.93), 3, True, "", SAME, "the first 200 are equal", **known
    )
    loss = "same loss after 50 steps"
    tried = (
        replace(more, loss=loss),
        Tried('order="any"', 0.82, (0.78, 0.87), 1, False, "slower"),
        Tried("processes=2", None, None, 1, False, "Traceback ...\nPicklingError: a lock"),
    )
    untried = (
        "10 times rarer: if n % 100 == 0: your script would do it less often (--also-rarer)",
    )
    proof = Proof(31.0, 58.0, 1.87, (1.81, 1.93), SAME, DIFF, tried, untried, 143.0, 0.08)
    return replace(one, proof=proof)


def no_gain() -> Diagnosis:
    """No change is recommended."""
    why = "No change of the input gains anything: with free input the loop is as fast (the step)"
    return replace(diagnosis("step.bound"), recommendations=(), no_change=why)


def whole_epochs() -> Diagnosis:
    """Two child processes train, each call of which is an epoch."""
    one = abstained()
    rates = tuple(ChildRate(f"Process-{i} (process {4100 + i})", 8, 0.4) for i in (1, 2))
    hint = MarkHint(STEP, 0.97, False)
    return replace(one, evidence=replace(one.evidence, children=rates, hint=hint))


def no_steps() -> Diagnosis:
    """Evidence without observations."""
    seen = Evidence(None, (), (), Machine(2), START_S, START_S + 20.0, missing=("steps",))
    why = "no training step was seen in 20 s; mark them with fastfeed.watch"
    return Diagnosis(None, (), None, None, NAN, (NAN, NAN), (), why, seen, "train.py")


def unknown() -> Diagnosis:
    """Every number that may be unknown is."""
    one = diagnosis("input.cpu")
    both = (NAN, NAN)
    seen = replace(
        one.evidence,
        gil_late_s=NAN,
        machine=Machine(2, own_cpu=NAN, steal=math.inf),
        first_batch_s=None,
    )
    blank = Figures(
        0, 0.0, NAN, both, NAN, NAN, NAN, NAN, NAN, both, NAN, {"step": NAN, "wait": NAN}
    )
    return replace(
        one,
        **{
            "figures": blank,
            "ceiling": Ceiling(NAN, NAN, NAN, False, "could not be estimated"),
        },
        **{"speedup_if_input_free": math.inf, "speedup_range": both, "evidence": seen},
        causes=(Cause("input.cpu", NAN, ()),),
        recommendations=(Recommendation("Try it", "", "", NAN, both),),
    )


@cache
def long() -> Diagnosis:
    """100,000 steps of 0.2 ms, 300 threads, 2,000 marks."""
    one = diagnosis("input.straggler")
    loop = Loop("step", "watch", 1, steps=steps_of(100_000, 0.3, period_s=0.0002))
    marks = tuple(
        Mark("callback", START_S + i * 0.01, START_S + i * 0.01 + 0.001, f"call {i}")
        for i in range(2000)
    )
    seen = replace(
        one.evidence, loop=loop, marks=marks, tasks=tasks_of(299), end_s=loop.steps[-1].end_s
    )
    return replace(one, evidence=seen, figures=figures((0.70, 0.29, 0.01, 0.0), seen))


ROWS = StageRow(batches=40, read_s=4, transform_s=2, wait_out_s=4), StageRow()
FEED = Snapshot(
    60.0,
    ROWS[0],
    StageRow(batches=40, wait_in_s=8, shuffle_s=2),
    3,
    96,
    ROWS,
    tuning=(Decision(1.5, "threads", 1, 4, True, "20 -> 80 steps/s"),),
)


def odd() -> Diagnosis:
    """Every name is ODD."""
    one = diagnosis("feed.dead")
    place = Place(ODD, ODD, 1, True)
    task = Task(ODD, 1, 2, PRODUCER, 1.0, 0.5, busy={"python": 1.0}, stacks={(place,): 3}, exit=ODD)
    loop = replace(
        one.evidence.loop or Loop("", "", 1),
        name=ODD,
        where=ODD,
        note=ODD,
        leaves=(Leaf(*[ODD] * 2, (1,), ODD),),
    )
    seen = replace(
        one.evidence,
        **{
            "loop": loop,
            "tasks": (task, *one.evidence.tasks),
            "parts": (LoopPart("input", place, 0.5),),
            "missing": (ODD,),
        },
        feed=replace(FEED, set_aside=(ODD,)),
        **{"marks": (Mark(ODD, START_S, START_S + 1, ODD),), "pools": {ODD: 3}},
        machine=Machine(2, gpus=(GpuUsage(ODD, 0.1, 0.1),), noisy=((ODD, 1.0),)),
    )
    advice = Recommendation(ODD, ODD, ODD, 2.0, (1.5, 2.5), ODD)
    return replace(
        one,
        **{
            "script": ODD,
            "evidence": seen,
            "recommendations": (advice,),
            "died": (ODD,),
        },
        **{
            "causes": (Cause("feed.dead", 0.9, (ODD,)),),
            "ceiling": Ceiling(0.1, 0.1, 0.1, False, ODD),
        },
    )


def _of(code: str) -> Callable[[], Diagnosis]:
    return lambda: diagnosis(code)


EXAMPLES: dict[str, Callable[[], Diagnosis]] = {code: _of(code) for code in CODES}
EXAMPLES |= {f.__name__: f for f in (abstained, no_steps, unknown, long, odd)}
EXAMPLES |= {f.__name__: f for f in (doubtful, no_gain, proven, whole_epochs)}

"""`with fastfeed.diagnose() as report`: in a script or notebook, which goes on afterwards."""

from __future__ import annotations

import _thread
import gc
import os
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import process, spawn
from typing import Any

import pytest

import fastfeed
from fastfeed import OptionError, StateError
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.diagnose.run.block import BlockDiagnosis
from fastfeed.probes import pyspy
from fastfeed.steps.watch import watch
from tests.diagnose.diagnoses import evidence
from tests.diagnose.observing import ROOT, ended, observed
from tests.helpers.dying import until

STEPS = 120


def batches(count: int = STEPS) -> Iterator[int]:
    for n in range(count):
        time.sleep(0.005)  # the work of making a batch
        yield n


def train(count: int = STEPS) -> None:
    for _ in fastfeed.watch(batches(count)):
        time.sleep(0.001)  # the work of a step


def patched() -> list[Any]:
    """What a diagnosis changes in a process."""
    changed: list[Any] = [os._exit, threading.excepthook, sys.excepthook, watch.log]
    changed += [getattr(threading, "_make_invoke_excepthook", None), list(sys.meta_path)]
    changed += [process.BaseProcess.start, process.BaseProcess._bootstrap]
    return [*changed, spawn.get_preparation_data, list(warnings.filters), sys.gettrace()]


@pytest.fixture(autouse=True)
def nothing_changed() -> Iterator[None]:
    """No patch, no thread of any kind and no helper remains."""
    before, count = patched(), _thread._count()
    yield
    assert patched() == before
    until(lambda: _thread._count() <= count, "the end of the threads")
    until(lambda: not pyspy.watchers_of(os.getpid()), "the end of the helper of py-spy")


def diagnosed(work: Callable[[], None], **options: Any) -> BlockDiagnosis:
    with fastfeed.diagnose(**{"warmup": 0.05, **options}) as report:
        work()
    assert isinstance(report, BlockDiagnosis)
    return report


def test_a_block_is_diagnosed() -> None:
    report = diagnosed(train)
    found = report.json()
    assert found["verdict"] == report.diagnosis.verdict
    assert found["starvation"] > 0.3
    assert found["loop"]["kind"] == "watch" and found["figures"]["steps"] >= 20
    assert found["script"].startswith("test_block.py:")
    assert found["headline"] in " ".join(str(report).split())
    assert "\x1b" not in str(report)
    page = report._repr_html_()
    assert page is not None and page.startswith('<iframe srcdoc="&lt;!')
    assert page.count("<") == 2, "the page is text in the cell"


def test_the_stages_of_a_feed_runner_are_told() -> None:
    def slow(number: int) -> int:
        time.sleep(0.005)  # the work of making a batch
        return number

    def train_on_batches() -> None:
        for _ in runner:
            time.sleep(0.001)  # the work of a step

    with fastfeed.FeedRunner(range(STEPS), batch_size=1, transform=slow) as runner:
        found = diagnosed(train_on_batches).json()
    waits, (made,) = found["feed"]["waits"], found["feed"]["producers"]
    assert sum(waits.values()) == pytest.approx(found["starvation"])
    assert max(waits, key=waits.__getitem__) == "transform"
    assert made["batches"] == STEPS
    assert sum(made["busy"].values()) == pytest.approx(1)


def test_the_rest_of_a_long_block_runs_without_a_diagnosis() -> None:
    """The report is made when its time is over."""
    report = fastfeed.diagnose(seconds=0.4, warmup=0.05)
    with report:
        train()
        until(lambda: "without a report" not in str(report), "the report")
        before = report.diagnosis
        train(3)
    assert report.diagnosis is before


def test_an_exception_passes_through() -> None:
    report = fastfeed.diagnose(warmup=0.05)
    with pytest.raises(ZeroDivisionError) as raised, report:
        train()
        raise ZeroDivisionError("mine")
    assert raised.value.args == ("mine",)
    assert report.diagnosis.figures is not None


def test_ctrl_c_passes_through() -> None:
    report = fastfeed.diagnose(warmup=0.05)
    with pytest.raises(KeyboardInterrupt), report:
        train()
        raise KeyboardInterrupt
    assert report.diagnosis.figures is not None
    assert report.diagnosis.verdict != "feed.dead"


def test_a_block_without_steps() -> None:
    report = diagnosed(lambda: None)
    assert report.diagnosis.verdict is None
    assert "no training step" in str(report)
    assert report.json()["abstained"]


def test_one_after_the_other() -> None:
    """Nothing in the process refers to the first: no handler at exit, no hook, no thread."""
    first = diagnosed(train)
    launch, told = weakref.ref(first._launch), first.diagnosis
    del first
    gc.collect()
    assert launch() is None
    assert diagnosed(train).diagnosis is not told


def test_bad_input() -> None:
    for warmup in (-1.0, 3.0, float("nan")):
        with pytest.raises(OptionError, match="the warm-up is a part of the 3 seconds"):
            fastfeed.diagnose(seconds=3.0, warmup=warmup)
    report = fastfeed.diagnose()
    for call in (report.json, lambda: report.diagnosis):
        with pytest.raises(StateError, match="no diagnosis yet"):
            call()
    assert "without a report" in str(report) and report._repr_html_() is None
    refused = pytest.raises(OptionError, match="under diagnosis already")
    with report, refused, fastfeed.diagnose():
        pass


def test_a_block_of_a_second_gives_no_advice() -> None:
    """There was no time to try anything; its figures are measured all the same."""
    found = diagnosed(train, experiments=False).diagnosis
    assert found.figures is not None and found.figures.starvation > 0.3
    assert "without a result of any experiment, and was to last 20 s" in found.evidence.short
    assert found.recommendations == found.may_cost == ()
    whole = diagnosed(train, seconds=0.5, experiments=False).diagnosis
    assert whole.evidence.short == ""


def test_advice_needs_a_watch_that_is_not_short() -> None:
    seen = evidence(0.5)
    advised, short = judge(seen), judge(replace(seen, short="the watch ended too early"))
    assert advised.recommendations and not advised.no_change
    assert short.verdict == advised.verdict and short.figures == advised.figures
    assert short.recommendations == short.may_cost == ()
    assert short.no_change.endswith("none could be tried: the watch ended too early")


def test_one_block_at_a_time() -> None:
    """Of the threads that enter one at the same moment, and while the report of a first is made."""
    together, entered, refused = threading.Barrier(4), threading.Event(), []

    def enter() -> None:
        together.wait()
        try:
            with fastfeed.diagnose():
                entered.set()
                until(lambda: len(refused) == 3, "the others")
        except OptionError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert entered.is_set() and all("under diagnosis already" in text for text in refused)
    with fastfeed.diagnose(seconds=0.4, warmup=0.05) as report:
        train()
        until(lambda: "without a report" not in str(report), "the report")
        with pytest.raises(OptionError, match="under diagnosis already"), report:
            pass


ENDS = """
import os, sys, time, fastfeed
try:
    with fastfeed.diagnose(warmup=0.05):
        for i in fastfeed.watch(range(60)):
            time.sleep(0.002)
            if i == 30:
                {end}
finally:
    print("finally", flush=True)
"""


@pytest.mark.parametrize(
    ("end", "code", "out", "last"),
    [
        ("sys.exit(3)", 3, "finally\n", ""),
        ("os._exit(4)", 4, "", ""),
        ("raise ValueError('mine')", 1, "finally\n", "ValueError: mine\n"),
        ("os.kill(os.getpid(), 9)", -9, "", ""),
        ("os.execv(sys.executable, ['python', '-c', 'print(7)'])", 0, "7\n", ""),
    ],
    ids=["sys.exit", "os._exit", "exception", "killed", "exec"],
)
def test_a_script_that_ends_inside_a_block(end: str, code: int, out: str, last: str) -> None:
    """It ends as without a block, and leaves no process behind: its pipes are closed."""
    code_, out_, err = ended(sys.executable, "-c", ENDS.format(end=end))
    assert (code_, out_) == (code, out)
    assert err.endswith(last) and bool(err) == bool(last)


LEAVES = """
import os, fastfeed
from fastfeed.diagnose.run import launch
from fastfeed.diagnose.sample import sampler
from tests.diagnose.run.test_block import patched

launch.SCRIPT_STOP_S = sampler.SAMPLER_STOP_S = 1e6
before = patched()
with fastfeed.diagnose() as report:
    child = os.fork()
if not child:
    os._exit(0 if patched() == before and "without a report" in str(report) else 1)
assert os.waitpid(child, 0)[1] == 0
assert "without a report" not in str(report)
"""


def test_a_forked_child_leaves_the_block_at_once() -> None:
    """It has none of the threads that the end of the block waits for."""
    code, _, err = ended(sys.executable, "-c", LEAVES, cwd=ROOT)
    assert code == 0, err


FORKS = """
import os, fastfeed
with fastfeed.diagnose():
    child = os.fork()
    if not child:
        code = 1
        try:
            with fastfeed.diagnose() as own:
                for _ in fastfeed.watch(range(3)): pass
            code = int("without a report" in str(own))
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_may_have_a_block_of_its_own() -> None:
    code, _, err = ended(sys.executable, "-c", FORKS)
    assert code == 0, err


def test_a_block_in_a_script_under_diagnosis_is_refused() -> None:
    code, out, err, _ = observed("-c", "import fastfeed\nwith fastfeed.diagnose(): print('in')")
    assert (code, out) == (1, "")
    assert "OptionError: this process is under diagnosis already" in err


@pytest.mark.parametrize(
    "first", ["pass", "import fastfeed.diagnose.evidence", "from fastfeed import diagnose"]
)
def test_the_package_can_be_called(first: str) -> None:
    """Whatever was imported before; and neither numpy nor rich is imported for it."""
    code = f"import sys\n{first}\nimport fastfeed\nassert 'diagnose' in dir(fastfeed)\n"
    code += "report = fastfeed.diagnose(seconds=3)\nprint(type(report).__name__)\n"
    code += "import fastfeed.diagnose.evidence as ev\nassert fastfeed.diagnose.evidence is ev\n"
    code += "print({'numpy', 'rich', 'jinja2', 'tensorflow', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "BlockDiagnosis\nset()\n", done.stderr

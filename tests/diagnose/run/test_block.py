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
from multiprocessing import process, spawn
from typing import Any

import pytest

import fastfeed
from fastfeed import OptionError, StateError
from fastfeed.diagnose.run.block import BlockDiagnosis
from fastfeed.probes import pyspy
from fastfeed.steps.watch import watch
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
        with pytest.raises(OptionError, match="warmup is a part of seconds"):
            fastfeed.diagnose(seconds=3.0, warmup=warmup)
    report = fastfeed.diagnose()
    for call in (report.json, lambda: report.diagnosis):
        with pytest.raises(StateError, match="no diagnosis yet"):
            call()
    assert "without a report" in str(report) and report._repr_html_() is None
    refused = pytest.raises(OptionError, match="under diagnosis already")
    with report, refused, fastfeed.diagnose():
        pass


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

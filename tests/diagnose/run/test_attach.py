"""A job that runs already, watched from outside."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from fastfeed.cli import main
from fastfeed.diagnose.evidence import EMPTY, FOREIGN, FRAMEWORK, PRODUCER, TRAINER, Evidence
from fastfeed.diagnose.evidence_file import read_evidence
from fastfeed.diagnose.run.command import ANOTHER_DIAGNOSIS, watch_job
from fastfeed.diagnose.run.publisher import Publisher
from fastfeed.diagnose.sample import job_sampler
from fastfeed.diagnose.sample.job_sampler import FROM_OUTSIDE, NOT_OUTSIDE, JobSampler
from fastfeed.probes import pyspy
from fastfeed.probes.places import Places
from fastfeed.probes.pyspy import PySpy
from tests.helpers.dying import until

JOB = """
import queue, sys, threading, time
batches = queue.Queue(2)

def produce():
    while True:
        time.sleep(0.02)
        batches.put(1)

threading.Thread(target=produce, daemon=True).start()
print("ready", flush=True)
while True:
    batches.get()
"""


@contextlib.contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has printed a line and is killed in the end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A training that waits for its producer."""
    (tmp_path / "train.py").write_text(JOB)
    with running(sys.executable, str(tmp_path / "train.py")) as process:
        yield process


def refused(*words: str) -> str:
    done = CliRunner().invoke(main, ["diagnose", *words])
    assert done.exit_code == 2, done.output
    return " ".join(done.output.replace("│", " ").split())


def test_what_cannot_be_watched(
    job: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert "no such process" in refused("--pid", str(ended.pid))
    assert "is this very command" in refused("--pid", str(os.getpid()))
    with running("sh", "-c", "echo; exec sleep 1000") as other:
        assert "runs no Python" in refused("--pid", str(other.pid))
    assert "got more than one" in refused("--pid", str(job.pid), "--", "train.py")
    assert "--stop ends a script" in refused("--pid", str(job.pid), "--stop")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert f"another user (uid {os.getuid()})" in refused("--pid", str(job.pid))


def test_a_zombie_cannot_be_watched() -> None:
    with running("sh", "-c", "echo") as process:
        until(lambda: pyspy.procfs.stat_of(process.pid).state == "Z", "its end")
        assert "no such process" in refused("--pid", str(process.pid))


class Folded(PySpy):
    """Stacks of the main thread and of the producer, in place of py-spy's; and of no other."""

    def begin(self) -> None:
        super().begin()
        pid = self.pid
        tids = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
        file = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[1]
        main = f"<module> ({file}:13);get (/x/lib/python3/queue.py:1)"
        lines = f"thread ({tids[0]}): MainThread;{main} 9\n"
        lines += f"thread ({tids[1]}): Thread-1;produce ({file}:7) 10\n"
        self.all[pid].add(lines, Places(), looks=10, pid=pid)
        self.holders[pid].add("", Places(), looks=10, pid=pid)

    def __init__(self, places: Places, *, job: int) -> None:
        super().__init__(places, program="", job=job)
        self.pid = job


def test_threads_of_a_job(job: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its main thread waits for what the other one makes."""
    monkeypatch.setattr(job_sampler, "PySpy", Folded)
    with contextlib.closing(JobSampler(job.pid)) as sampler:
        sampler.run(0.5)
        found = sampler.evidence()
    main_thread, producer = found.tasks_of(TRAINER) + found.tasks_of(PRODUCER)
    assert {task.role for task in found.tasks} <= {TRAINER, PRODUCER, FRAMEWORK, FOREIGN}
    assert (main_thread.pid, main_thread.tid) == (job.pid, job.pid)
    assert max(main_thread.busy, key=lambda state: main_thread.busy[state]) == EMPTY
    top = producer.top()
    assert top is not None and (top[0].function, top[0].users) == ("produce", True)
    assert found.loop is None and NOT_OUTSIDE in found.missing
    assert found.end_s > found.start_s


def test_a_job_that_ends(job: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch ends with it, long before its time."""

    def end(seconds: float) -> None:
        job.kill()
        os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOWAIT)

    clock = SimpleNamespace(**vars(time) | {"sleep": end})
    monkeypatch.setattr(job_sampler, "time", clock)
    with contextlib.closing(JobSampler(job.pid)) as sampler:
        sampler.run(1000.0)
        assert not sampler.runs
        found = sampler.evidence()
    assert any(f"{job.pid} has ended" in text for text in found.missing)
    assert found.tasks_of(TRAINER)


def test_two_watches_of_one_job(
    job: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second goes on, and says so."""
    if not pyspy.find():
        pytest.skip("the helper of py-spy shows the first")
    monkeypatch.setattr(job_sampler, "PySpy", Folded)
    seen: list[Evidence] = []
    publisher = Publisher(lambda diagnosis, written: seen.append(diagnosis.evidence))
    watch_job(job.pid, seconds=0.1, publisher=publisher)
    first = PySpy(Places(), job=job.pid)
    try:
        until(lambda: pyspy.watchers_of(job.pid), "the helper")
        watch_job(job.pid, seconds=0.1, publisher=publisher)
    finally:
        first.stop()
    told = ANOTHER_DIAGNOSIS.format(pid=job.pid)
    assert [told in evidence.missing for evidence in seen] == [False, True]
    until(lambda: not pyspy.watchers_of(job.pid), "the end of the helper")


def test_a_watch_of_a_script_under_diagnosis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--pid` beside `fastfeed diagnose -- train.py`: the second goes on, and says so."""
    if not pyspy.find():
        pytest.skip("the helper of py-spy shows the first")
    monkeypatch.setattr(job_sampler, "PySpy", Folded)
    (tmp_path / "train.py").write_text(JOB)
    words = "from fastfeed.cli import main; main()", "diagnose", "--", str(tmp_path / "train.py")
    seen: list[Evidence] = []
    publisher = Publisher(lambda diagnosis, written: seen.append(diagnosis.evidence))
    with running(sys.executable, "-c", *words) as one:
        watch_job(one.pid, seconds=0.1, publisher=publisher)
    assert ANOTHER_DIAGNOSIS.format(pid=one.pid) in seen[0].missing


@pytest.mark.slow
def test_the_command_from_end_to_end(job: subprocess.Popen[bytes], tmp_path: Path) -> None:
    told, page, kept = tmp_path / "told.json", tmp_path / "page.html", tmp_path / "kept.gz"
    files = ["--json", str(told), "--html", str(page), "--evidence", str(kept)]
    words = ["diagnose", "--pid", str(job.pid), "--seconds", "5", *files]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    found = json.loads(told.read_text())
    assert found["script"] == f"train.py (process {job.pid})"
    assert (found["verdict"], found["abstained"]) == (None, FROM_OUTSIDE)
    assert NOT_OUTSIDE in found["not_measured"]
    assert "trainer" in [stage["role"] for stage in found["stages"]]
    if not any("py-spy" in text for text in found["not_measured"]):
        assert any("train.py:" in line["place"] for line in found["hottest"]), found["hottest"]
    assert page.read_text().startswith("<!")
    assert read_evidence(kept).evidence.tasks
    assert job.poll() is None, "the job goes on"
    assert [task["role"] for task in found["tasks"]].count("trainer") == 1

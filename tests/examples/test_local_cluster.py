"""The processes that the examples of data parallelism start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT_S = 60
PROGRAM = """
import os, signal, sys, threading
from local_cluster import LocalCluster, RankDied

def fail():
    sys.exit(3)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def hang():
    threading.Event().wait()

def end():
    pass

if __name__ == "__main__":
    import local_cluster
    local_cluster.REPORT_S = 0.2
    with LocalCluster(limit_s=float(sys.argv[1])) as cluster:
        for name in sys.argv[2:]:
            cluster.start(name, globals()[name.rstrip("012")])
        print("started", *(p.pid for p in cluster.processes.values()), flush=True)
        try:
            print(cluster.wait(survivors="end" in sys.argv))
        except RankDied as error:
            print(error)
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return [sys.executable, str(file)]


def said(program: list[str], *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    done = subprocess.run(
        [*program, *arguments], env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("60", "end0", "end1"), "{'end0': 0, 'end1': 0}"),
        (("60", "hang", "die"), "die was killed by SIGKILL; hang did not notice within 0.2 s"),
        (("60", "fail", "end0"), "fail ended with code 3"),
        (("0.5", "hang"), "hang did not end within 0.5 s and was ended"),
        (("60", "end", "die"), "'die': -9"),
    ],
    ids=["all end", "one dies", "one fails", "one hangs", "one dies, and the others go on"],
)
def test_how_a_cluster_ends(program: list[str], arguments: list[str], expected: str) -> None:
    assert expected in said(program, *arguments)


def test_the_ranks_end_with_the_process_that_started_them(program: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    command = [*program, "60", "hang0", "hang1"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        ranks = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()[1:]]
        ready = [rank for rank in ranks if rank.is_running()]
        process.send_signal(signal.SIGKILL)
    assert len(ready) == 2
    assert not psutil.wait_procs(ranks, timeout=LIMIT_S)[1]


def test_a_rank_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from local_cluster import free_addresses, meet

    addresses = free_addresses(3)
    with pytest.raises(TimeoutError, match=f"one of 3 ranks.*rank 0 at {addresses[0]}, rank 2"):
        meet(addresses, 1, limit_s=0.1)
    meet(addresses[:1], 0, limit_s=0.1)

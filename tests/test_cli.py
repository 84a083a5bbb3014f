"""The commands as a user runs them: output, files, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

QUICK = ["--consumer", "sim:1ms", "--workload", "sleep:2ms", "--steps", "20", "--repeats", "1"]


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    code = "from fastfeed.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=100, cwd=cwd)


def test_bench_prints_a_table_and_advice_and_writes_its_files(tmp_path: Path) -> None:
    done = run("bench", "--threads", "1,3", *QUICK, "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "starvation" in done.stdout and "sleep:2ms into sim:1ms" in done.stdout
    assert "thread" in done.stdout.strip().splitlines()[-1]
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [s["threads"] for s in found["settings"]] == [1, 3]
    assert {p.suffix for p in (tmp_path / "out").iterdir()} == {".json", ".png", ".svg"}


def test_the_users_own_iterator_is_found_where_the_user_stands(tmp_path: Path) -> None:
    lines = ["import numpy as np", "def batches():", "    while True: yield {'a': np.zeros((3, 2))}"]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    done = run("bench", "--threads", "2", "--workload", "mine:batches", *QUICK[:2], *QUICK[4:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--threads", "none"], "1,4,8"),
        (["--processes", "-1"], "0,1,2"),
        (["--workload", "sleep:often"], "50ms"),
        (["--workload", "no.such.module:f"], "no.such"),
        (["--consumer", "tpu"], "mnist-keras"),
        (["--data", "/does/not/exist"], "does not exist"),
        (["--threads", "1", "--workload", "string:capwords"], "needs s"),
        (["--baseline", "--consumer", "none"], "--consumer mnist"),
        (["--baseline", "--processes", "1,2"], "with 0 among"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(args: list[str], says: str) -> None:
    done = run("bench", *args)
    assert done.returncode == 2
    assert says in done.stderr and "Traceback" not in done.stderr


def test_version_and_help() -> None:
    assert "fastfeed, version" in run("--version").stdout
    assert "bench" in run("--help").stdout
    assert "--processes" in run("bench", "--help").stdout

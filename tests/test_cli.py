"""The commands as a user runs them: output, files, exit codes."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fastfeed import __version__
from fastfeed.cli import main
from fastfeed.jobs import doctor

QUICK = ["--consumer", "sim:1ms", "--workload", "sleep:2ms", "--steps", "20", "--repeats", "1"]


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fastfeed", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=cwd)


@pytest.mark.slow
def test_bench_prints_a_table_and_advice_and_writes_its_files(tmp_path: Path) -> None:
    done = run("bench", "--threads", "1,3", *QUICK, "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "starvation" in done.stdout and "sleep:2ms into sim:1ms" in done.stdout
    assert "thread" in done.stdout.strip().splitlines()[-1]
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [s["threads"] for s in found["settings"]] == [1, 3]
    assert {p.suffix for p in (tmp_path / "out").iterdir()} == {".json", ".png", ".svg"}


@pytest.mark.slow
def test_the_users_own_iterator_is_found_where_the_user_stands(tmp_path: Path) -> None:
    lines = [
        "import numpy as np",
        "def batches():",
        "    while True: yield {'a': np.zeros((3, 2))}",
    ]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    done = run(
        "bench",
        "--threads",
        "2",
        "--workload",
        "mine:batches",
        *QUICK[:2],
        *QUICK[4:],
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr


BAD_INPUT = (
    (["--threads", "none"], "1,4,8"),
    (["--processes", "-1"], "0,1,2"),
    (["--workload", "sleep:often"], "50ms"),
    (["--workload", "no.such.module:f"], "no.such"),
    (["--consumer", "tpu"], "mnist-keras"),
    (["--data", "/does/not/exist"], "does not exist"),
    (["--threads", "1", *QUICK[:2], "--workload", "string:capwords"], "it requires s."),
    (["--nonsense"], "--nonsense"),
    (["--workload", "train.py"], "fastfeed diagnose -- train.py"),
    (["--workload", "sleep:0.05"], "write 50ms, 0.05s"),
    (["--augment-on", "producers"], "--augment-on alone would be ignored"),
    (["--steps", "5", "--seconds", "1"], "--seconds beside --steps would be ignored"),
    (["--data", "x", "--workload", "string:capwords"], "--data names the MNIST of"),
    (["--augment", "standard", "--data", "x"], "--data beside --augment would be ignored"),
)


def test_a_workload_without_a_unit_is_milliseconds_and_the_table_explains_itself() -> None:
    words = "bench --threads 1 --workload sleep:2 --consumer sim:1 --steps 20 --repeats 1"
    done = run(*words.split())
    assert done.returncode == 0, done.stderr
    for text in (
        "sleep:2ms into sim:1",
        "AU: accelerator utilisation",
        "(the ceiling)",
        "slow-down",
    ):
        assert text in done.stdout


# What an installation of the core alone has not.
WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in "tensorflow keras torch jax sklearn matplotlib".split():
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
from fastfeed.cli import main
main()
"""


@pytest.mark.parametrize(
    ("workload", "consumer"),
    [
        ("python:1ms", "sim:1ms"),
        pytest.param("sleep:1ms", "none", marks=pytest.mark.slow),
        pytest.param("sleep:1ms", "sim:1ms", marks=pytest.mark.slow),
        pytest.param("python:1ms", "none", marks=pytest.mark.slow),
    ],
)
def test_a_build_service_needs_the_core_alone(workload: str, consumer: str, tmp_path: Path) -> None:
    words = f"--threads 1,2 --steps 5 --repeats 1 --workload {workload} --consumer {consumer}"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, "bench", *words.split(), "--output", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "FASTFEED_DATA": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bench.json").exists()
    assert "no plots" in done.stdout and "pip install 'fastfeed[plot]'" in done.stdout


def test_the_bench_has_a_command_of_its_own() -> None:
    def told(*words: str) -> subprocess.CompletedProcess[str]:
        code = "from fastfeed.cli import bench; bench(prog_name='fastfeed-bench')"
        command = [sys.executable, "-c", code, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=100)

    assert told("--version").stdout == f"fastfeed-bench, version {__version__}\n"
    wrong = told("--threads", "none")
    assert wrong.returncode == 2 and "Traceback" not in wrong.stderr
    assert "must be counts >= 1" in wrong.stderr


def test_the_doctor_names_what_is_missing_and_how_to_get_it() -> None:
    done = run("doctor")
    assert done.returncode == 0, done.stderr
    for name in ("Python", "kernel", "cores", "memory", "worker processes", "NVML", "TensorFlow"):
        assert name in done.stdout
    found = {one["name"]: one for one in json.loads(run("doctor", "--json").stdout)}
    assert found["fastfeed"]["found"] == __version__
    for one in found.values():
        assert one["fit"] or one["remedy"]


def test_the_doctor_prints_commands_as_they_are_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ("Nothing", ("no-such-distribution",), "nothing", "tests")
    monkeypatch.setattr(doctor, "PACKAGES", (package,))
    done = CliRunner().invoke(main, ["doctor"])
    assert "'fastfeed[nothing]'" in done.stdout


@pytest.mark.parametrize("name", ["threads", "processes"])
def test_producers_that_do_not_fit_are_refused_before_the_first_measurement(name: str) -> None:
    done = CliRunner().invoke(main, ["bench", f"--{name}", "1,1000000", *QUICK[2:]])
    assert done.exit_code and f"{name}=1000000 do not fit" in done.output


@pytest.mark.slow
def test_nothing_of_the_start_of_tensorflow_is_shown() -> None:
    pytest.importorskip("tensorflow")
    done = run("bench", "--threads", "1", "--consumer", "mnist", *QUICK[2:])
    assert done.returncode == 0, done.stderr
    # where oneDNN is on by default, for its processor, TensorFlow 2.21 says so at every level
    assert "cpu_feature_guard" not in done.stderr and "rebuild TensorFlow" not in done.stderr


# All in one interpreter, because its start takes most of the time of a refusal.
IN_TURN = """
import contextlib, io, json, sys
from fastfeed.cli import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["fastfeed", "bench", *words]
    with contextlib.redirect_stderr(io.StringIO()) as captured:
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, captured.getvalue()]))
"""


@pytest.mark.slow
def test_bad_input_is_one_message_and_exit_code_2() -> None:
    words = json.dumps([args for args, _ in BAD_INPUT])
    command = [sys.executable, "-c", IN_TURN, words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    for (args, says), line in zip(BAD_INPUT, done.stdout.splitlines(), strict=True):
        code, err = json.loads(line)
        assert code == 2, args
        assert says in err and "Traceback" not in err, (args, err)


def test_there_is_one_version() -> None:
    root = Path(__file__).parents[1]
    changes = (root / "CHANGELOG.md").read_text().splitlines()
    assert next(line for line in changes if line.startswith("## ")).split()[1] == __version__
    assert f"version: {__version__}" in (root / "CITATION.cff").read_text().splitlines()


def test_version_and_help() -> None:
    first, python, *others = run("--version").stdout.splitlines()
    assert first == f"fastfeed, version {__version__}"
    assert python == f"{platform.python_implementation()} {platform.python_version()}"
    assert f"numpy {np.__version__}" in others
    assert "bench" in run("--help").stdout
    assert "--processes" in run("bench", "--help").stdout

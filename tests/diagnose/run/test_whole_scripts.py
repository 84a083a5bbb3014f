"""Scripts without a step that could be seen: epochs in one call, children that train, no loop."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fastfeed.probes.interpreter import CAN_TRACE_LINES

WHOLE = Path(__file__).parent / "whole"
FASTFEED = "from fastfeed.cli import main; main()"
# where there is no loop, it is searched for a few seconds in place of half a minute
SOON = f"from fastfeed.diagnose.run import lifecycle; lifecycle.GRACE_S = 8.0; {FASTFEED}"

traces = pytest.mark.skipif(not CAN_TRACE_LINES, reason="sys.monitoring came with Python 3.12")


def line_of(name: str, text: str) -> int:
    """Return the number of the first line with a text."""
    lines = (WHOLE / name).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


def diagnosed(
    name: str, folder: Path, *, needs: str = "", code: str = FASTFEED
) -> tuple[dict[str, Any], str]:
    """Return the report of a script that would run for ever, as JSON and on the terminal.

    The script ends with its report, and leaves nothing behind.
    """
    if needs:
        pytest.importorskip(needs)
    told = folder / "told.json"
    words = ["--seconds", "4", "--warmup", "1", "--stop", "--json", str(told)]
    command = [sys.executable, "-c", code, "diagnose", *words, "--", str(WHOLE / name)]
    with tempfile.TemporaryDirectory(prefix="whole-") as own:  # other tests diagnose, too
        env = {**os.environ, "TMPDIR": own}
        done = subprocess.run(command, capture_output=True, text=True, timeout=170, env=env)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert not list(Path(own).glob("fastfeed-diagnose-*"))
    return json.loads(told.read_text()), " ".join(done.stderr.split())


@traces
@pytest.mark.slow
def test_epochs_that_are_one_compiled_call(tmp_path: Path) -> None:
    found, text = diagnosed("scan_epoch.py", tmp_path, needs="jax")
    assert found["loop"]["kind"] == "sampled" and found["loop"]["waits"] == "hidden"
    line = line_of("scan_epoch.py", "for epoch in")
    assert f"scan_epoch.py:{line}" in found["loop"]["where"]
    if found["verdict"] == "external.noise":
        return  # the machine is busy, which twenty calls show
    assert found["verdict"] is None
    assert "hidden in them; take the batches outside of the call" in found["abstained"]
    assert any("Calls or iterations of the loop in `main`" in one for one in found["activity"])
    assert found["mark"]["loop"] and f"scan_epoch.py:{line}" in found["mark"]["place"]
    assert "has a call that takes its batches itself. Let it do fewer steps a call" in text
    assert "Causes" not in text and "starvation" not in text


@pytest.mark.slow
def test_steps_between_two_samples(tmp_path: Path) -> None:
    """There are 50 samples a second at most, and hardly one meets a step."""
    found, _ = diagnosed("short_steps.py", tmp_path)
    assert found["loop"]["kind"] == "sampled"
    assert found["figures"]["steps"] > 100
    assert found["starvation"] > 0.7


@pytest.mark.slow
def test_epochs_that_are_one_function(tmp_path: Path) -> None:
    found, text = diagnosed("function_epoch.py", tmp_path, needs="tensorflow")
    assert (found["loop"]["name"], found["loop"]["waits"]) == ("train_epoch()", "hidden")
    if found["verdict"] == "external.noise":
        return
    assert found["verdict"] is None
    assert any("Calls or iterations of train_epoch()" in one for one in found["activity"])
    assert "Causes" not in text and "starvation" not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "needs"),
    [
        ("hogwild.py", "torch", "torch"),
        ("forked_watch.py", "watch", ""),
        pytest.param("forked_numpy.py", "sampled", "", marks=traces),
        pytest.param("results_queue.py", "sampled", "", marks=traces),
    ],
)
def test_children_that_train(tmp_path: Path, name: str, kind: str, needs: str) -> None:
    """The children of the first are started, the others forked; the last script takes results."""
    found, text = diagnosed(name, tmp_path, needs=needs)
    assert found["loop"]["kind"] == kind
    assert len(found["children"]) == 2
    assert all(child["steps"] >= 20 for child in found["children"])
    assert found["figures"]["steps"] in [child["steps"] for child in found["children"]]
    assert "2 child processes train" in text and "of one of them, of median speed" in text


@pytest.mark.slow
def test_a_call_without_any_loop(tmp_path: Path) -> None:
    found, text = diagnosed("no_loop.py", tmp_path, needs="jax", code=SOON)
    assert found["verdict"] is found["loop"] is found["figures"] is None
    line = line_of("no_loop.py", "jax.jit")
    assert not found["mark"]["loop"] and f"no_loop.py:{line}" in found["mark"]["place"]
    assert "No loop of the script's own was running" in text
    assert "waits for a lock or other threads" in text


@pytest.mark.slow
def test_a_script_that_only_sleeps(tmp_path: Path) -> None:
    found, text = diagnosed("asleep.py", tmp_path, code=SOON)
    assert found["verdict"] is found["figures"] is None
    assert f"asleep.py:{line_of('asleep.py', 'while True')}" in found["mark"]["place"]
    assert re.search(r"trainer 1 0\.\d+ sleeps (99|100)", text)

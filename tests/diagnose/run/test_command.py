"""`fastfeed diagnose` as a user runs it: the script's output and exit code, and a report beside
them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from fastfeed.cli import main

FASTFEED = [sys.executable, "-c", "from fastfeed.cli import main; main()", "diagnose"]
SCRIPT = """
import queue, sys, threading, time
batches = queue.Queue(maxsize=4)

def fetch():
    time.sleep(0.02)
    return bytes(8)

def produce():
    for _ in range(90):
        batches.put(fetch())

threading.Thread(target=produce, daemon=True).start()
for _ in range(90):
    batch = batches.get()
    time.sleep(0.002)
print("own words", sys.argv[1:])
sys.exit(7)
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FASTFEED, *words], capture_output=True, text=True, timeout=200)


def command(*words: str) -> Result:
    """Run a command that starts no script, in this process."""
    return CliRunner().invoke(main, ["diagnose", *words])


def test_a_script_from_end_to_end(tmp_path: Path) -> None:
    script, told, page = tmp_path / "train.py", tmp_path / "told.json", tmp_path / "told.html"
    script.write_text(SCRIPT)
    evidence, again = tmp_path / "evidence.gz", tmp_path / "again.json"
    files = ["--json", str(told), "--html", str(page), "--evidence", str(evidence)]
    done = run("--seconds", "20", "--warmup", "0.1", *files, "--", str(script), "--seconds", "5")
    assert done.returncode == 7, done.stderr
    assert done.stdout == "own words ['--seconds', '5']\n"
    found = json.loads(told.read_text())
    assert found["loop"]["kind"] == "queue"
    assert found["figures"]["steps"] >= 20
    assert found["starvation"] > 0.5
    assert "steps/s" in done.stderr and "train.py" in done.stderr
    assert page.read_text().startswith("<!")
    replayed = command("--replay", str(evidence), "--json", str(again))
    assert replayed.exit_code == 0, replayed.output
    assert json.loads(again.read_text()) == found
    assert "train.py" in replayed.output
    other = tmp_path / "other.gz"
    hidden = command("--replay", str(evidence), "--anonymous", "--evidence", str(other))
    assert hidden.exit_code == 0, hidden.output
    assert "train.py" not in gzip.decompress(other.read_bytes()).decode()
    assert "train.py" not in hidden.output and "file1.py" in hidden.output


def test_bad_input(tmp_path: Path) -> None:
    for words, text in (
        (("--warmup", "30", "--", "x.py"), "warm-up is a part of the"),
        (("--", str(tmp_path / "none.py")), "none.py"),
        ((), "SCRIPT"),
        (("--replay", __file__, "--", "x.py"), "got more than one of them"),
        (("--replay", __file__), "is no evidence"),
        (("--anonymous", "--", "x.py"), "give --evidence FILE"),
        (("--replay", str(tmp_path / "none.gz")), "none.gz"),
    ):
        done = command(*words)
        assert done.exit_code == 2, done.output
        assert text in done.output

"""What a training loop sees when the input fails, and what is left: `python -m bench.faults`.

    python -m bench.faults [--output FOLDER] [NAME ...]

Two workers make batches of 5 ms. In the batch number AT one raises ValueError, or is killed by
SIGKILL; or the loop is left after a few batches, as by `break`, and goes on with something else.
Each has a process of its own, and LIMIT_S to show something.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from bench import libraries  # noqa: F401  # they register themselves
from bench.peers import PEERS, Peer
from bench.results import SCHEMA, machine, write
from bench.rounds import started
from bench.workloads import Faulty, from_json, read_stamp, to_json

NAMES = ("fastfeed", "torch", "grain", "spdl", "tf.data", "tensorpack", "keras", "mp.Queue")
FAULTS = ("raises", "killed", "left")
IN_PROCESS = ("tf.data",)  # has no worker processes to kill
AT, MOST, BATCHES_LEFT = 40, 240, 10
LIMIT_S, SETTLED_S = 40.0, 2.0


def fault(cell: dict[str, Any]) -> dict[str, Any]:
    """Take batches until one fails, or the loop is left; return what was seen."""
    work, peer = from_json(cell["work"]), PEERS[cell["peer"]]
    assert isinstance(work, Faulty)
    seen: list[int] = []
    found = _opened(peer, work, seen)
    gc.collect()  # nothing refers to the iterator any more
    ended_s, mark = time.time(), Path(work.mark)
    began_s = float(mark.read_text()) if mark.exists() else found["at_s"]
    time.sleep(SETTLED_S)
    return {
        **found,
        "value": found["at_s"] - began_s,
        "ends_s": ended_s - found["at_s"],
        "batches": len(seen),
        "left": sum(_works(one) for one in psutil.Process().children(recursive=True)),
    }


def _opened(peer: Peer, work: Faulty, seen: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"error": "", "at_s": time.time()}
    with contextlib.suppress(Exception), peer.open(work, 2) as batches:
        found |= _taken(batches, seen, most=BATCHES_LEFT if work.fault == "left" else MOST)
    return found


def _taken(batches: Iterator[Any], seen: list[int], *, most: int) -> dict[str, Any]:
    """Take batches until there are enough, or one fails; return what was seen then."""
    text = error = ""
    try:
        for batch in batches:
            seen.append(read_stamp(batch))
            if len(seen) >= most:
                break
    except Exception as found:
        text = traceback.format_exc()
        error = next(iter(traceback.format_exception_only(found)), "").partition("\n")[0][:120]
    return {"error": error, "shows_line": "raise ValueError" in text, "at_s": time.time()}


def _works(process: psutil.Process) -> bool:
    """Return True for a process that is no helper of multiprocessing, and has not ended."""
    with contextlib.suppress(psutil.Error):
        helper = {"resource_tracker", "forkserver"} & set(" ".join(process.cmdline()).split("."))
        return process.status() != psutil.STATUS_ZOMBIE and not helper
    return False


def measured(name: str, kind: str) -> dict[str, Any]:
    """Return what a process of its own saw."""
    with TemporaryDirectory() as folder:
        work = Faulty((64, 64), fault=kind, at=AT, mark=f"{folder}/mark")
        spec = {"measure": "fault", "work": to_json(work), "peer": name}
        with started(spec) as run:
            end_s = time.monotonic() + LIMIT_S
            while run.result() is None and run.process.poll() is None:
                if time.monotonic() > end_s:
                    return {"error": "", "hangs": True}
                time.sleep(0.05)
            return run.result() or {"error": run.last_words(), "ended": run.process.poll()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), metavar="FOLDER")
    given = parser.parse_args()
    rows = []
    for name in given.names or [one for one in NAMES if PEERS[one].installed]:
        for kind in FAULTS:
            if kind == "killed" and name in IN_PROCESS:
                continue
            found = {"tool": name, "fault": kind, **measured(name, kind)}
            rows.append(found)
            print(found, flush=True)
    versions = {name: PEERS[name].version for name in {row["tool"] for row in rows}}
    write(
        {
            "schema": SCHEMA,
            "kind": "faults",
            "machine": machine(),
            "limit_s": LIMIT_S,
            "versions": versions,
            "rows": rows,
        },
        given.output,
    )


if __name__ == "__main__":
    main()

"""Runs py-spy for a sampler, in a process that is not a child of the script.

A script may count and await its own children. The helper reads requests from its standard input
and writes answers, each a line of JSON with the keys of `answer`. It limits its share of a core,
ends at the end of its input or of the script, and imports nothing of fastfeed.
"""

import contextlib
import json
import os
import resource
import select
import subprocess
import sys
import time

PAUSE_S = 10.0
MAX_COMMAND_S = 30.0
MAX_BURST_CPU_S = 0.1
NO_STACKS = "No stack counts"  # message of py-spy if no thread held the lock


def answer(request: dict) -> dict:  # type: ignore[type-arg]
    """Return folded stacks of process `request["pid"]`, or the error, and the CPU seconds used."""
    command = [
        request["program"],
        "record",
        f"--pid={request['pid']}",
        f"--rate={request['rate']}",
        f"--duration={request['seconds']}",
        "--format=raw",
        "--nonblocking",
        "--threads",
        "--full-filenames",
        "--output=/dev/stdout",
        "--gil" if request["gil"] else "--idle",
    ]
    before = used_s()
    try:
        raw, error = run(command)
    except (OSError, subprocess.SubprocessError) as failure:
        raw, error = "", str(failure)
    return {
        "pid": request["pid"],
        "gil": request["gil"],
        "raw": raw,
        "error": error,
        "cpu_s": used_s() - before,
    }


def run(command: list[str]) -> tuple[str, str]:
    """Return the output of a command, and its error. The command ends by itself."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=MAX_COMMAND_S,
        check=False,
    )
    text = done.stdout.decode(errors="replace")
    return ("", text) if done.returncode and NO_STACKS not in text else (text, "")


def used_s() -> float:
    """Return the CPU seconds of this process and of the commands that it has run."""
    kinds = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in kinds)


def main(script: int, share: float) -> None:
    """Answer until process `script` ends, with at most `share` of a core."""
    rest, begun_s = b"", time.monotonic()
    over = select.poll()
    over.register(0, 0)  # reports only that the other end was closed
    while os.path.exists(f"/proc/{script}"):
        if not select.select([0], [], [], 1.0)[0]:
            continue
        got = os.read(0, 65536)
        if not got:
            return
        *lines, rest = (rest + got).split(b"\n")
        for line in lines:
            os.write(1, json.dumps(answer(json.loads(line))).encode() + b"\n")
            # The first samples follow each other directly.
            rest_s = (used_s() - MAX_BURST_CPU_S) / share - (time.monotonic() - begun_s)
            over.poll(min(max(rest_s, 0.0), PAUSE_S) * 1000)


if __name__ == "__main__":
    # The child of this process is no child of the script.
    if os.fork() == 0:
        os.setsid()
        with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
            main(int(sys.argv[1]), float(sys.argv[2]))
        os._exit(0)

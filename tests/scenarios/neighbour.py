"""Another user of the machine: three processes that compute until `pid` has ended."""

import os
import subprocess
import sys

BURN = """
import os, sys, time
end = time.monotonic() + 240
while time.monotonic() < end:
    try:
        os.kill(int(sys.argv[1]), 0)
    except OSError:
        break
    stop = time.monotonic() + 0.25
    while time.monotonic() < stop:
        sum(range(1000))
"""


def moves_in(pid: int, count: int = 3) -> None:
    """Starts them in sessions of their own, as children of init."""
    for _ in range(count):
        command = 'setsid "$@" </dev/null >/dev/null 2>&1 &'
        subprocess.run(
            ["sh", "-c", command, "sh", sys.executable, "-c", BURN, str(pid)], check=True
        )


if __name__ == "__main__":
    moves_in(os.getppid())

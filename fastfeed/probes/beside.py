"""Start of a program beside the script, as no child of it: a script may count and await its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

START_S = 30.0  # for a program to fork


def start_beside(program: Path, *arguments: str, stdin: Any, stdout: Any = None) -> bool:
    """Start a Python program that forks, and whose child goes on; its first argument is the pid of
    the script. Return False if that is not possible."""
    command = [sys.executable, "-I", "-S", str(program), str(os.getpid()), *arguments]
    null = subprocess.DEVNULL
    try:
        subprocess.run(
            command,
            stdin=stdin,
            stdout=null if stdout is None else stdout,
            stderr=null,
            check=True,
            timeout=START_S,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True

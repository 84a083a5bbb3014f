"""Ends of a process that do not wait for its interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.diagnose.observing import ROOT, ended

PREFIX = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
STUCK = """
import ctypes
from fastfeed.diagnose.run.endings import arm_exit
assert arm_exit(0.1, 7)
ctypes.PyDLL(None).pause()  # with the interpreter lock
"""
WRITES = """
import os
from fastfeed.diagnose.run.endings import prepare_hard_exit
text, binary = open(sys.argv[1] + "/text", "w"), open(sys.argv[1] + "/binary", "wb")
text.write("steps"), binary.write(b"weights"), open(sys.argv[1] + "/text").close()
prepare_hard_exit()
os._exit(3)
"""


def test_a_process_ends_although_its_interpreter_is_stuck() -> None:
    assert ended(sys.executable, "-c", PREFIX + STUCK) == (7, "", "")


def test_open_files_are_written(tmp_path: Path) -> None:
    assert ended(sys.executable, "-c", PREFIX + WRITES, str(tmp_path)) == (3, "", "")
    assert (tmp_path / "text").read_text() == "steps"
    assert (tmp_path / "binary").read_bytes() == b"weights"

"""The processes that descend from the script."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from fastfeed import FeedRunner
from fastfeed.probes.family import FORKSERVER, descendants
from fastfeed.producers.process import forkserver


def test_a_fork_server_is_no_worker() -> None:
    """The fork server only starts workers; they have its command line, and are shown."""

    def batches() -> Iterator[np.ndarray]:
        while True:
            yield np.full(4, os.getpid())

    assert FORKSERVER.search(forkserver.__name__)
    with FeedRunner(batches, processes=2) as runner:
        stream = iter(runner)
        workers = {int(next(stream)[0]) for _ in range(20)}
        found = {kin.pid for kin in descendants(os.getpid())}
        parents = {kin.parent for kin in descendants(os.getpid())}
    assert workers <= found
    assert not parents & found, "the parent of the workers is not among them"


def test_a_process_whose_program_begins_is_there() -> None:
    """`Popen` returns before the kernel knows the command line of the new program."""
    for _ in range(20):
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            found = [one.command for one in descendants(os.getpid()) if one.pid == process.pid]
            process.communicate(b"\n", timeout=60)
        assert len(found) == 1 and found[0].endswith("-c input()")

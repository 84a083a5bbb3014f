"""Faults for the examples of data parallelism: a rank that dies, and one that is slow."""

from __future__ import annotations

import argparse
import os
import signal
import time

SLOW_RANK = 1


def die() -> None:
    """End this process as the kernel or a scheduler would, without any last word."""
    os.kill(os.getpid(), signal.SIGKILL)


def pretend_work(rank: int, args: argparse.Namespace) -> None:
    """Take the time of a larger model on an accelerator of its own, which needs no core: `work_ms`,
    and `slow` times as long on the slow rank."""
    if args.work_ms:
        time.sleep(args.work_ms / 1000 * (args.slow if rank == SLOW_RANK else 1))

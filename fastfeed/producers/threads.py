"""Producers as threads of the trainer: for work that waits or releases the interpreter lock."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Sequence

from fastfeed.producers.loop import Producer


class ThreadProducers:
    """Runs each producer in a daemon thread."""

    def __init__(self, producers: Sequence[Producer]) -> None:
        self._threads = [
            threading.Thread(target=p.run, name=f"fastfeed-producer-{p.worker.index}", daemon=True) for p in producers
        ]

    def start(self) -> None:
        """Starts every thread."""
        for thread in self._threads:
            thread.start()

    def join(self, timeout_s: float) -> bool:
        """Waits for the threads, which must have been told to end; whether all have, within the limit."""
        deadline = time.perf_counter() + timeout_s
        others = [t for t in self._threads if t is not threading.current_thread() and t.ident is not None]
        for thread in others:
            thread.join(max(0.0, deadline - time.perf_counter()))
        return not any(t.is_alive() for t in others)

    def stacks(self) -> str:
        """What every living producer is doing, as Python stacks."""
        frames = sys._current_frames()
        texts = []
        for thread in self._threads:
            frame = frames.get(thread.ident or -1)
            if thread.is_alive() and frame is not None:
                texts.append(f"{thread.name}:\n{''.join(traceback.format_stack(frame)[-4:]).rstrip()}")
        return "\n".join(texts) or "no producer is alive"

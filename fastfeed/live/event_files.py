"""Figures as event files of TensorBoard, in a folder for each runner, without TensorFlow."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastfeed.errors import MissingExtra

try:
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter
except ImportError as error:
    raise MissingExtra("TensorBoard", "tensorboard") from error

RECENT_SCALARS = ("steps_per_second", "starvation", "wait_ms", "bytes_per_second")


class EventFiles:
    """Writes scalars `fastfeed/...` over the number of steps into FOLDER/runner-0 and so on.

    Raise OSError if the folder cannot be written to.
    """

    def __init__(self, folder: str) -> None:
        self.address = folder
        self._folder = Path(folder).expanduser()
        self._writers: dict[int, Any] = {}
        self._folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} cannot be written to")

    def write(self, figures: Sequence[dict[str, Any]]) -> None:
        """Write the present figures of each runner."""
        for runner in figures:
            writer = self._writers.get(runner["runner"]) or self._open(runner["runner"])
            event = event_pb2.Event(wall_time=time.time(), step=runner["steps"])
            recent = runner["recent"]
            values = {name: recent[name] for name in RECENT_SCALARS} | {
                "queue_depth": runner["depth"]
            }
            if recent["starvation"] is not None:
                values["accelerator_utilisation"] = 1 - recent["starvation"]
            event.summary.value.extend(
                summary_pb2.Summary.Value(tag=f"fastfeed/{name}", simple_value=value)
                for name, value in values.items()
                if value is not None
            )
            writer.write(event.SerializeToString())
            writer.flush()

    def close(self) -> None:
        """Close every file."""
        for writer in self._writers.values():
            writer.close()

    def _open(self, runner: int) -> Any:
        folder = self._folder / f"runner-{runner}"
        folder.mkdir(exist_ok=True)
        now_ns = time.time_ns()
        suffix = f"{socket.gethostname()}.{os.getpid()}.{now_ns % 10**9}"
        name = f"events.out.tfevents.{now_ns / 1e9:.0f}.{suffix}"
        writer = self._writers[runner] = RecordWriter((folder / name).open("wb"))
        writer.write(
            event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString()
        )
        return writer

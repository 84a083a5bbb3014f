"""The true cause of each script's slowness, with which diagnoses are compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Label:
    """The truth about one script.

    `code`: the right verdict. `also`: codes that are as right, because both are true or cannot be
    told apart. `second`: the next limit. `knob`: families of the right change. `cost`: activity
    that takes the lost time. `dies`: the slow variant has no end. `seen`: a variant of the slow
    script requests its batches outside of its steps, so that its waits are visible.
    """

    code: str
    framework: str
    knob: tuple[str, ...]
    cost: str
    also: tuple[str, ...] = ()
    second: tuple[str, ...] = ()
    dies: bool = False
    seen: bool = False

    @property
    def variants(self) -> tuple[str, ...]:
        """Scripts that end by themselves."""
        return (
            *(() if self.dies else ("slow",)),
            "fixed",
            "free",
            *(("seen",) if self.seen else ()),
        )


MORE = ("threads", "processes", "num_parallel_calls")
LESS = ("work",)
POOLS = ("OMP_NUM_THREADS", "cv2.setNumThreads")
LABELS = {
    "digits_queue": Label("step.bound", "tf1", (), "cpu step"),
    "signals_thread": Label("step.bound", "numpy", (), "hidden waits"),
    "tiles_fit": Label("step.bound", "keras", (), "cpu step"),
    "crops_thread": Label("step.bound", "numpy", (), "hidden native work"),
    "pairs_loader": Label("step.bound", "torch", (), "hidden waits"),
    "depth_runner": Label("step.bound", "runner", (), "hidden waits"),
    "clicks_tape": Label("step.host", "tf2", ("compile",), "eager operations", seen=True),
    "ratings_fit": Label("step.host", "keras", ("every",), "callback"),
    "poses_metrics": Label("step.host", "numpy", ("every",), "Python in the loop"),
    "volumes_inline": Label("input.serial", "numpy", MORE, "native work", second=("input.cpu",)),
    "weather_feed": Label("input.serial", "tf1", MORE, "sleep", second=("input.latency",)),
    "reviews_loader": Label(
        "input.serial", "torch", ("processes",), "Python", second=("input.gil",)
    ),
    "birds_watch": Label("input.serial", "watch", MORE, "sleep", second=("input.latency",)),
    "frames_threads": Label("input.latency", "numpy", ("threads",), "sleep"),
    "orders_queue": Label("input.latency", "tf1", ("threads",), "socket", seen=True),
    "plants_fit": Label("input.latency", "keras", ("threads",), "sleep", seen=True),
    "maps_runner": Label("input.latency", "runner", ("threads",), "sleep"),
    "audio_loader": Label("input.latency", "torch", ("processes", "threads"), "sleep"),
    "cells_pydataset": Label(
        "input.latency", "keras", ("threads", "processes"), "sleep", seen=True
    ),
    "lidar_shards": Label("input.disk", "numpy", ("threads", "processes", "cache"), "O_DIRECT"),
    "genome_loader": Label("input.disk", "torch", ("processes", "cache"), "cold reads"),
    "logs_threads": Label("input.gil", "numpy", ("processes",), "Python"),
    "chess_queue": Label("input.gil", "tf1", ("processes",), "Python", seen=True),
    "molecules_pydataset": Label("input.gil", "keras", ("processes",), "Python", seen=True),
    "games_runner": Label("input.gil", "runner", ("processes",), "Python"),
    "archive_threads": Label("input.cpu", "numpy", LESS, "zlib"),
    "faces_dataset": Label("input.cpu", "tf2", LESS, "JPEG", seen=True),
    "fields_loader": Label("input.cpu", "torch", LESS, "OpenCV", seen=True),
    "spectra_processes": Label("input.oversubscribed", "numpy", ("processes", *POOLS), "BLAS"),
    "videos_loader": Label(
        "input.oversubscribed", "torch", ("processes", "threads", *POOLS), "OpenMP", seen=True
    ),
    "scans_processes": Label("input.ipc", "numpy", ("transport",), "pickled arrays"),
    "graphs_loader": Label("input.ipc", "torch", ("transport",), "pickled objects", seen=True),
    "flows_feed": Label(
        "input.copy", "tf1", ("dtypes",), "float64", also=(), second=("input.serial",), seen=True
    ),
    "segments_tape": Label("input.copy", "tf2", ("dataset",), "memory given back", seen=True),
    "stocks_threads": Label(
        "input.copy", "numpy", ("dtypes",), "lists to arrays", also=("input.gil",)
    ),
    "climate_threads": Label("input.copy", "numpy", ("dtypes",), "stack, cast, page faults"),
    "papers_futures": Label("input.straggler", "numpy", ("order",), "tail of sleep"),
    "sounds_loader": Label("input.straggler", "torch", ("order",), "tail of sleep"),
    "letters_loader": Label("input.epoch_gap", "torch", ("epochs",), "start of workers"),
    "wells_fit": Label("input.epoch_gap", "keras", ("epochs",), "fill of the shuffle", seen=True),
    "waves_threads": Label("input.epoch_gap", "numpy", ("epochs",), "sleep"),
    "robots_save": Label("pause.periodic", "numpy", ("every",), "files"),
    "leaves_fit": Label("pause.periodic", "keras", ("every",), "evaluation"),
    "coasts_session": Label("pause.periodic", "tf1", ("every",), "checkpoint"),
    "trees_fit": Label("external.noise", "keras", ("cores",), "other processes"),
    "ponds_threads": Label("external.noise", "numpy", ("cores",), "other processes"),
    "trips_queue": Label("feed.dead", "tf1", ("feed",), "thread raised", dies=True),
    "knots_processes": Label("feed.dead", "numpy", ("feed",), "worker killed", dies=True),
    "tides_threads": Label("feed.dead", "numpy", ("feed",), "deadlock", dies=True),
}

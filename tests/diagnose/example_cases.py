"""Cases of all codes, for diagnoses to show."""

from __future__ import annotations

# By code: the share of step, wait, host and pause; the headline; the second cause.
CASES: dict[str, tuple[tuple[float, float, float, float], str, str]] = {
    "step.bound": (
        (0.97, 0.01, 0.02, 0.0),
        "Input keeps up: the step itself is the limit, 98 % of the time.",
        "",
    ),
    "step.host": ((0.30, 0.02, 0.68, 0.0), "The loop's own Python takes 68 % of the time.", ""),
    "input.serial": (
        (0.28, 0.71, 0.01, 0.0),
        "Training waits for input 71 % of the time: batches are made on the training thread.",
        "input.latency",
    ),
    "input.latency": (
        (0.25, 0.74, 0.01, 0.0),
        "Two producers that mostly wait are too few.",
        "input.cpu",
    ),
    "input.disk": (
        (0.40, 0.58, 0.02, 0.0),
        "Producers wait for the disk, which gives 92 MB/s.",
        "",
    ),
    "input.gil": (
        (0.35, 0.60, 0.05, 0.0),
        "Producer threads hold the interpreter lock.",
        "step.host",
    ),
    "input.cpu": (
        (0.45, 0.53, 0.02, 0.0),
        "Native work of the producers saturates the cores.",
        "external.noise",
    ),
    "input.oversubscribed": (
        (0.50, 0.45, 0.05, 0.0),
        "41 threads want to run on 8 cores.",
        "input.cpu",
    ),
    "input.ipc": (
        (0.50, 0.48, 0.02, 0.0),
        "Workers spend half of their time on pickling.",
        "input.copy",
    ),
    "input.copy": ((0.55, 0.43, 0.02, 0.0), "float64 batches are cast to float32 on the way.", ""),
    "input.straggler": ((0.70, 0.29, 0.01, 0.0), "One batch in fifty takes ten times as long.", ""),
    "input.epoch_gap": ((0.66, 0.03, 0.01, 0.30), "30 % of the time goes by between epochs.", ""),
    "pause.periodic": (
        (0.72, 0.01, 0.01, 0.26),
        "Checkpoints take 26 % of the time.",
        "input.latency",
    ),
    "external.noise": ((0.60, 0.38, 0.02, 0.0), "Another process takes 6 of the 8 cores.", ""),
    "feed.dead": (
        (0.05, 0.95, 0.0, 0.0),
        "No batch has come for 14 s: the producer thread ended.",
        "",
    ),
}

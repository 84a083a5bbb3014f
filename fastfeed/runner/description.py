"""Short descriptions of a runner, for terminals and notebooks."""

from __future__ import annotations

import math
from html import escape

from fastfeed.core.stats import Snapshot
from fastfeed.runner.stream import Stream


def text_of(stream: Stream) -> str:
    """Return the source, the producers, the batch size, the state and the rate in one line."""
    now = stream.snapshot()
    parts = [stream.source_name, *_options(stream), stream.activity]
    if not math.isnan(now.batches_per_second):
        parts.append(f"{now.batches_per_second:.1f} steps/s")
    return f"<FeedRunner {', '.join(parts)}>"


def html_of(stream: Stream) -> str:
    """Return a small table with the state, the rates and the starvation."""
    now = stream.snapshot()
    rows = [
        ("source", stream.source_name),
        ("producers", ", ".join(_options(stream))),
        ("state", stream.activity),
        *_figures(now),
    ]
    cells = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rows)
    return f"<table><caption>FeedRunner</caption>{cells}</table>"


def _options(stream: Stream) -> list[str]:
    options = stream.options
    parts = [f"threads={options.threads}"]
    if options.processes:
        parts.append(f"processes={options.processes}")
    if options.remote is not None:
        parts.append(f"remote={options.remote!r}, producers={options.remote_producers}")
    if options.batch_size is not None:
        parts.append(f"batch_size={options.batch_size}")
    return parts


def _figures(now: Snapshot) -> list[tuple[str, str]]:
    def known(value: float, form: str) -> str:
        return "-" if math.isnan(value) else form.format(value)

    return [
        ("steps/s", known(now.batches_per_second, "{:.1f}")),
        ("starvation", known(now.starvation, "{:.1%}")),
        ("batches consumed", str(now.consumed.batches)),
        ("batches ready", str(now.depth)),
    ]

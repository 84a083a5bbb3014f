"""The figures of runners for Prometheus, which requests them, and TensorBoard, which reads files.

The Prometheus text is a few lines, and the server already exists for the socket. A client library
would be a dependency of every training job, and adds a thread for each client.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fastfeed.core.status import STATES
from fastfeed.errors import OptionError
from fastfeed.options import MetricsTarget

Figures = dict[str, Any]
PLAIN_TEXT = "text/plain; charset=utf-8"
EXPOSITION_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# name, key in the values of a runner, description; a name with _total is a counter
FAMILIES = (
    ("fastfeed_batches_total", "steps", "Batches that the training loop took."),
    ("fastfeed_records_total", "records", "Records that the training loop took."),
    ("fastfeed_bytes_total", "nbytes", "Bytes that the training loop took."),
    ("fastfeed_wait_seconds_total", "wait_s", "Time the training loop waited for input."),
    ("fastfeed_elapsed_seconds_total", "elapsed_s", "Time since the first batch."),
    ("fastfeed_errors_total", "errors", "Errors that on_error='skip' passed over."),
    (
        "fastfeed_starvation_ratio",
        "recent_starvation",
        "Share of the last seconds spent waiting for input, 0 to 1.",
    ),
    (
        "fastfeed_steps_per_second",
        "recent_steps_per_second",
        "Batches taken per second, of the last seconds.",
    ),
    ("fastfeed_queue_depth", "depth", "Batches made and not yet taken."),
    ("fastfeed_queue_bytes", "depth_nbytes", "Bytes of the batches made and not yet taken."),
    ("fastfeed_failed", "failed", "1 where the feed has failed."),
)
FAMILIES_BY_STATE = (
    ("fastfeed_slots", "slots", "Slots of shared memory, by state."),
    ("fastfeed_producers", "producer_states", "Producers, by what they do."),
)


class Exporter(Protocol):
    """Publishes the figures of some runners."""

    address: str

    def write(self, figures: Sequence[Figures]) -> None:
        """Write the present figures, every few seconds and at the end."""

    def close(self) -> None:
        """End the publication."""


def exposition(runners: Sequence[Figures]) -> str:
    """Return the figures in the text format 0.0.4 of Prometheus, without unknown values."""
    lines = []
    all_values = [_values(runner) for runner in runners]
    for name, key, description in FAMILIES:
        lines += [
            f"# HELP {name} {description}",
            f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}",
        ]
        lines += [
            f'{name}{{runner="{values["runner"]}"}} {values[key]}'
            for values in all_values
            if values[key] is not None
        ]
    for name, key, description in FAMILIES_BY_STATE:
        lines += [f"# HELP {name} {description}", f"# TYPE {name} gauge"]
        lines += [
            f'{name}{{runner="{values["runner"]}",state="{state}"}} {count}'
            for values in all_values
            for state, count in values[key].items()
        ]
    return "\n".join(lines) + "\n"


def _values(figures: Figures) -> Figures:
    """Return the figures of a runner with those of the last seconds beside the others."""
    counts = Counter(producer["state"] for producer in figures["producers"])
    return {
        **figures,
        **{f"recent_{name}": value for name, value in figures["recent"].items()},
        "failed": int(figures["state"] == "failed"),
        "producer_states": {state: counts[state] for state in STATES},
    }


def http_response(request: bytes, text: Callable[[], str]) -> bytes | None:
    """Return the response to an HTTP/1 request for /metrics, or None if it is incomplete."""
    if b"\r\n\r\n" not in request and b"\n\n" not in request:
        return None
    method, _, rest = request.split(b"\n", 1)[0].strip().partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method not in (b"GET", b"HEAD"):
        return _http("405 Method Not Allowed", "only GET is supported\n")
    if path != b"/metrics":
        return _http("404 Not Found", "only /metrics exists\n")
    response = _http("200 OK", text(), content_type=EXPOSITION_TYPE)
    return response if method == b"GET" else response.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def _http(status: str, text: str, *, content_type: str = PLAIN_TEXT) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + body


class Prometheus:
    """A listening socket that serves the figures of runners."""

    def __init__(self, target: MetricsTarget) -> None:
        self.listener = _listen(target)
        host, port = self.listener.getsockname()[:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def write(self, figures: Any) -> None:
        """Do nothing: the figures are sent on request."""

    def close(self) -> None:
        """Stop listening."""
        self.listener.close()


def _listen(target: MetricsTarget) -> socket.socket:
    """Return a socket that listens at the address. Raise OptionError if it cannot."""
    family = socket.AF_INET6 if ":" in target.place else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((target.place, target.port))
        listener.listen(16)
    except OSError as error:
        listener.close()
        raise OptionError(
            f"metrics={str(target)!r}: cannot listen there ({error.strerror or error}): must be an "
            "address of this machine and a free port; port 0 takes any free one"
        ) from error
    return listener


def create_exporter(target: MetricsTarget) -> Exporter:
    """Return the exporter for a target. Raise OptionError or MissingExtra if it cannot work."""
    if target.kind == "prometheus":
        return Prometheus(target)
    from fastfeed.live.event_files import EventFiles

    try:
        return EventFiles(target.place)
    except OSError as error:
        raise OptionError(
            f"metrics={str(target)!r}: {error}: must be a folder that can be written to"
        ) from error

"""A runner's figures for others: Prometheus requests them, TensorBoard reads them in its folder.

The text that Prometheus reads is a few lines, and the server exists already for the socket: a
client library would have to be installed beside every training job, and adds a thread for each
client.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from fastfeed.core.status import STATES
from fastfeed.errors import OptionError
from fastfeed.options import MetricsTarget

Figures = dict[str, Any]
TEXT = "text/plain; version=0.0.4; charset=utf-8"
# name, kind, help, and the value from a runner's figures
FAMILIES: tuple[tuple[str, str, str, Callable[[Figures], Any]], ...] = (
    ("fastfeed_batches_total", "counter", "Batches that the training loop took.", lambda f: f["steps"]),
    ("fastfeed_records_total", "counter", "Records that the training loop took.", lambda f: f["records"]),
    ("fastfeed_bytes_total", "counter", "Bytes that the training loop took.", lambda f: f["nbytes"]),
    ("fastfeed_wait_seconds_total", "counter", "Time the training loop waited for input.", lambda f: f["wait_s"]),
    ("fastfeed_elapsed_seconds_total", "counter", "Time since the first batch.", lambda f: f["elapsed_s"]),
    ("fastfeed_errors_total", "counter", "Errors that on_error='skip' passed over.", lambda f: f["errors"]),
    ("fastfeed_starvation_ratio", "gauge", "Share of the last seconds spent waiting for input, 0 to 1.",
     lambda f: f["recent"]["starvation"]),
    ("fastfeed_steps_per_second", "gauge", "Batches taken per second, of the last seconds.",
     lambda f: f["recent"]["steps_per_second"]),
    ("fastfeed_queue_depth", "gauge", "Batches made and not yet taken.", lambda f: f["depth"]),
    ("fastfeed_queue_bytes", "gauge", "Bytes of the batches made and not yet taken.", lambda f: f["depth_nbytes"]),
    ("fastfeed_failed", "gauge", "1 where the feed has failed.", lambda f: int(f["state"] == "failed")),
)  # fmt: skip


class Exporter(Protocol):
    """Publishes the figures of some runners."""

    where: str

    def write(self, figures: Sequence[Figures]) -> None:
        """Write the present figures, every few seconds and at the end."""

    def close(self) -> None:
        """End the publication."""


def exposition(runners: Sequence[Figures]) -> str:
    """Return the figures as text of Prometheus, version 0.0.4; what is not known yet is left
    out."""
    lines = []
    for name, kind, said, figure in FAMILIES:
        lines += [f"# HELP {name} {said}", f"# TYPE {name} {kind}"]
        values = ((f["runner"], figure(f)) for f in runners)
        lines += [
            f'{name}{{runner="{runner}"}} {value}' for runner, value in values if value is not None
        ]
    for name, said, counts in (
        ("fastfeed_slots", "Slots of shared memory, by state.", _slots),
        ("fastfeed_producers", "Producers, by what they do.", _states),
    ):
        lines += [f"# HELP {name} {said}", f"# TYPE {name} gauge"]
        lines += [
            f'{name}{{runner="{f["runner"]}",state="{s}"}} {n}'
            for f in runners
            for s, n in counts(f)
        ]
    return "\n".join(lines) + "\n"


def http_answer(question: bytes, text: Callable[[], str]) -> bytes | None:
    """Return the answer to a request of HTTP/1: GET /metrics; None if the request is incomplete."""
    if b"\r\n\r\n" not in question and b"\n\n" not in question:
        return None
    method, _, rest = question.split(b"\n", 1)[0].strip().partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method not in (b"GET", b"HEAD"):
        return _http("405 Method Not Allowed", "needed GET\n")
    if path != b"/metrics":
        return _http("404 Not Found", "needed /metrics\n")
    return _http("200 OK", text(), kind=TEXT, body=method == b"GET")


def listen(target: MetricsTarget) -> socket.socket:
    """Return a socket that listens at the address. Raise OptionError if it cannot."""
    family = socket.AF_INET6 if ":" in target.place else socket.AF_INET
    door = socket.socket(family, socket.SOCK_STREAM)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((target.place, target.port))
        door.listen(16)
    except OSError as error:
        door.close()
        raise OptionError(
            f"metrics={str(target)!r}: nothing can listen there ({error.strerror or error}): "
            "needed an address of this machine and a port that no other process has; port 0 takes "
            "any that is free"
        ) from error
    return door


def address_of(door: socket.socket) -> str:
    """Return the address for Prometheus."""
    host, port = door.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


def _http(
    status: str, text: str, *, kind: str = "text/plain; charset=utf-8", body: bool = True
) -> bytes:
    data = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (data if body else b"")


def _slots(figures: Figures) -> Iterator[tuple[str, int]]:
    yield from figures["slots"].items()


def _states(figures: Figures) -> Iterator[tuple[str, int]]:
    found = [p["state"] for p in figures["producers"]]
    for state in STATES:
        yield state, found.count(state)


class Prometheus:
    """A listening socket, and the runners whose figures it serves."""

    def __init__(self, target: MetricsTarget) -> None:
        self.door = listen(target)
        self.where = address_of(self.door)

    def write(self, figures: Any) -> None:
        """Do nothing: the figures are sent on request."""

    def close(self) -> None:
        """Stop answering."""
        self.door.close()


def publisher(target: MetricsTarget) -> Exporter:
    """Return what publishes figures there. Raise OptionError and MissingExtra if it cannot."""
    if target.kind == "prometheus":
        return Prometheus(target)
    from fastfeed.live.event_files import EventFiles

    with _named(target):
        return EventFiles(target.place)


@contextlib.contextmanager
def _named(target: MetricsTarget) -> Iterator[None]:
    """Name the option in a failure of the file system."""
    try:
        yield
    except OSError as error:
        raise OptionError(
            f"metrics={str(target)!r}: {error}: must be a folder that can be written to"
        ) from error

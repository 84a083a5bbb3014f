"""The figures of runners for Prometheus, which requests them, and TensorBoard, which reads files.

Each of the two needs its extra, which is imported only for such a target.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, TypeAlias

from fastfeed.core.status import FEED_FAILED, FEED_STATES, STATES
from fastfeed.errors import OptionError, required
from fastfeed.options import MetricsTarget

LOG = logging.getLogger("fastfeed")
Figures = dict[str, Any]
CLIENT_TIMEOUT_S = 2.0  # of a client of the port, each time it is waited for
MAX_CLIENTS = 16
REST_S = 0.5
# name, key in the figures of a runner, description; a name with _total is a counter
FAMILIES = (
    ("fastfeed_batches_total", "batches", "Batches that the training loop took."),
    ("fastfeed_records_total", "records", "Records that the training loop took."),
    ("fastfeed_bytes_total", "nbytes", "Bytes that the training loop took."),
    ("fastfeed_wait_seconds_total", "wait_s", "Time the training loop waited for input."),
    ("fastfeed_elapsed_seconds_total", "elapsed_s", "Time since the first batch."),
    ("fastfeed_errors_total", "errors", "Errors that on_error='skip' passed over."),
    ("fastfeed_starvation_ratio", "starvation", "Share of the last seconds waited for input."),
    ("fastfeed_steps_per_second", "steps_per_second", "Batches taken, of the last seconds."),
    ("fastfeed_queue_depth", "depth", "Batches made and not yet taken."),
    ("fastfeed_queue_bytes", "depth_nbytes", "Bytes of the batches made and not yet taken."),
    ("fastfeed_failed", "failed", "1 where the feed has failed."),
)
FAMILIES_BY_STATE = (
    ("fastfeed_slots", "slots", "Slots of shared memory, by state."),
    ("fastfeed_producers", "producer_states", "Producers, by what they do."),
)
TENSORBOARD_SCALARS = (
    "steps_per_second",
    "starvation",
    "wait_ms",
    "bytes_per_second",
)  # of TensorBoard


def exporter_for(target: MetricsTarget, figures: Callable[[], list[Figures]]) -> Exporter:
    """Return the exporter for a target. Raise OptionError or MissingExtra if it cannot work."""
    is_server = target.kind == "prometheus"
    try:
        return PrometheusServer(target, figures) if is_server else EventFiles(target.place)
    except OSError as error:
        must = "must be a folder that can be written to"
        if is_server:
            must = "must be an address of this machine and a free port; port 0 takes any free one"
        raise OptionError(f"metrics={str(target)!r}: {error.strerror or error}: {must}") from error


class PrometheusServer(ThreadingMixIn, TCPServer):
    """A thread that listens, and one for each of a few clients, which get the present figures."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, target: MetricsTarget, figures: Callable[[], list[Figures]]) -> None:
        with required("prometheus_client", "metrics"):
            from prometheus_client import CollectorRegistry, MetricsHandler
        self._figures = figures
        registry: Any = CollectorRegistry()
        registry.register(self)
        handler: Any = MetricsHandler.factory(registry)
        handler.timeout = CLIENT_TIMEOUT_S
        self._clients: dict[Any, None] = {}  # the oldest first
        self._ended = threading.Event()
        self.address_family = socket.AF_INET6 if ":" in target.place else socket.AF_INET
        super().__init__((target.place, target.port), handler)
        host, port = self.socket.getsockname()[:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        self._thread = threading.Thread(target=self._listen, name="fastfeed-metrics", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self.server_close()
            raise

    def write(self, figures: Sequence[Figures]) -> None:
        """Do nothing: the figures are sent on request."""

    def collect(self) -> Iterator[Any]:
        """Yield every family of metrics, without unknown values."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        runners = [(str(one["runner"]), _values(one)) for one in self._figures()]
        for name, key, description in FAMILIES:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family: Any = kind(name, description, labels=["runner"])
            for runner, values in runners:
                if values[key] is not None:
                    family.add_metric([runner], values[key])
            yield family
        for name, key, description in FAMILIES_BY_STATE:
            family = GaugeMetricFamily(name, description, labels=["runner", "state"])
            for runner, values in runners:
                for state, count in values[key].items():
                    family.add_metric([runner, state], count)
            yield family

    def _listen(self) -> None:
        while not self._ended.is_set():
            self.handle_request()

    def get_request(self) -> Any:
        """Accept a client."""
        try:
            return super().get_request()
        except OSError:
            # No descriptor is free: the client would be ready again at once.
            self._ended.wait(REST_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Make room for a client: the oldest of too many has long had its answer."""
        for oldest in list(self._clients)[: 1 - MAX_CLIENTS or None]:
            _hang_up(oldest)
        return True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a client."""
        self._clients[request] = None
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._clients[request]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error of a client, which has probably gone."""
        LOG.debug("metrics at %s: a client got no answer", self.address, exc_info=True)

    def close(self) -> None:
        """Stop listening."""
        self._ended.set()
        for one in (self.socket, *list(self._clients)):
            _hang_up(one)
        self._thread.join(1.0)
        self.server_close()

    def forget(self) -> None:
        """Close the listening socket of the copy only."""
        self.socket.close()


def _hang_up(conn: socket.socket) -> None:
    """End a connection, or a wait for connections, of another thread."""
    with suppress(OSError):
        conn.shutdown(socket.SHUT_RDWR)


def _values(figures: Figures) -> Figures:
    """Return the figures of a runner, with those that Prometheus counts by state."""
    counts = Counter(producer["state"] for producer in figures["producers"])
    return {
        **figures,
        "failed": int(figures["state"] == FEED_STATES[FEED_FAILED]),
        "slots": {state: figures[state] for state in ("free", "filling", "ready", "lent")},
        "producer_states": {state: counts[state] for state in STATES},
    }


class EventFiles:
    """Writes scalars `fastfeed/...` over the number of steps into FOLDER/runner-0 and so on.

    TensorFlow is not needed. Raise OSError if the folder cannot be written to.
    """

    def __init__(self, folder: str) -> None:
        with required("TensorBoard", "tensorboard"):
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        self._event, self._value, self._writer = (
            event_pb2.Event,
            summary_pb2.Summary.Value,
            RecordWriter,
        )
        self.address = folder
        self._folder = Path(folder).expanduser()
        self._writers: dict[int, Any] = {}
        self._folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} cannot be written to")

    def write(self, figures: Sequence[Figures]) -> None:
        """Write the present figures of each runner."""
        for runner in figures:
            writer = self._writers.get(runner["runner"]) or self._open(runner["runner"])
            event = self._event(wall_time=time.time(), step=runner["batches"])
            values = {name: runner[name] for name in TENSORBOARD_SCALARS} | {
                "queue_depth": runner["depth"]
            }
            if runner["starvation"] is not None:
                values["accelerator_utilisation"] = 1 - runner["starvation"]
            event.summary.value.extend(
                self._value(tag=f"fastfeed/{name}", simple_value=value)
                for name, value in values.items()
                if value is not None
            )
            writer.write(event.SerializeToString())
            writer.flush()

    def close(self) -> None:
        """Close every file."""
        for writer in self._writers.values():
            writer.close()

    def forget(self) -> None:
        """Do nothing: every event was written."""

    def _open(self, runner: int) -> Any:
        folder = self._folder / f"runner-{runner}"
        folder.mkdir(exist_ok=True)
        now_ns = time.time_ns()
        suffix = f"{socket.gethostname()}.{os.getpid()}.{now_ns % 10**9}"
        name = f"events.out.tfevents.{now_ns / 1e9:.0f}.{suffix}"
        writer = self._writers[runner] = self._writer((folder / name).open("wb"))
        version = self._event(wall_time=time.time(), file_version="brain.Event:2")
        writer.write(version.SerializeToString())
        return writer


Exporter: TypeAlias = PrometheusServer | EventFiles

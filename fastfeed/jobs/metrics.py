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
from functools import partial
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, TypeAlias

from fastfeed.core.status import FEED_FAILED, FEED_STATES, STATES
from fastfeed.errors import OptionError, required
from fastfeed.jobs.runner_samples import Sighting, by_name
from fastfeed.options import MetricsTarget

LOG = logging.getLogger("fastfeed")
CLIENT_TIMEOUT_S = 2.0  # of a client of the port, each time it is waited for
POLL_S, REST_S = 0.05, 0.5
SLOT_STATES = ("free", "filling", "ready", "lent")
# name, field of a sample, description, labels beside the runner; a name with _total is a counter
FAMILIES = (
    ("fastfeed_batches_total", "batches", "Batches that the training loop took."),
    ("fastfeed_records_total", "records", "Records that the training loop took."),
    ("fastfeed_bytes_total", "nbytes", "Bytes that the training loop took."),
    ("fastfeed_wait_seconds_total", "wait_s", "Time the training loop waited for input."),
    ("fastfeed_elapsed_seconds_total", "elapsed_s", "Time since the first batch."),
    ("fastfeed_errors_total", "errors", "Errors that on_error='skip' passed over."),
    ("fastfeed_decisions_total", "decisions", "Decisions on a number that is auto.", "result"),
    ("fastfeed_starvation_ratio", "starvation", "Share of the last seconds waited for input."),
    ("fastfeed_steps_per_second", "steps_per_second", "Batches taken, of the last seconds."),
    ("fastfeed_queue_depth", "depth", "Batches made and not yet taken."),
    ("fastfeed_queue_bytes", "depth_nbytes", "Bytes of the batches made and not yet taken."),
    ("fastfeed_failed", "failed", "1 where the feed has failed."),
    ("fastfeed_slots", "slots", "Slots of shared memory, by state.", "state"),
    ("fastfeed_producers", "producer_states", "Producers, by what they do.", "state"),
    ("fastfeed_wait_ratio", "waits", "Parts of the starvation, by their cause.", "stage"),
    ("fastfeed_stage_ratio", "stages", "Parts of a producer's time.", "producer", "stage"),
)
TENSORBOARD_SCALARS = ("steps_per_second", "bytes_per_second", "starvation", "wait_ms", "depth")


def exporter_for(target: MetricsTarget, seen: Callable[[], list[Sighting]]) -> Exporter:
    """Return the exporter for a target. Raise OptionError or MissingExtra if it cannot work."""
    is_server = target.kind == "prometheus"
    try:
        return PrometheusServer(target, seen) if is_server else EventFiles(target.place)
    except OSError as error:
        must = "must be a folder that can be written to"
        if is_server:
            must = "must be an address of this machine and a free port; port 0 takes any free one"
        raise OptionError(f"metrics={str(target)!r}: {error.strerror or error}: {must}") from error


class RestingServer(ThreadingMixIn, TCPServer):
    """A thread that listens, and one for each client. It rests when no descriptor is free, since
    its client would be ready again at once."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, target: MetricsTarget, handler: Any) -> None:
        handler.timeout = CLIENT_TIMEOUT_S
        self.address_family = socket.AF_INET6 if ":" in target.place else socket.AF_INET
        self.ended = threading.Event()
        super().__init__((target.place, target.port), handler)
        listen = partial(self.serve_forever, poll_interval=POLL_S)
        self._thread = threading.Thread(target=listen, name="fastfeed-metrics", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self.server_close()
            raise

    def get_request(self) -> Any:
        """Accept a client."""
        try:
            return super().get_request()
        except OSError:
            self.ended.wait(REST_S)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error of a client, which has probably gone."""
        LOG.debug("metrics: a client got no answer", exc_info=True)

    def close(self) -> None:
        """Stop listening."""
        self.ended.set()
        self.shutdown()
        self.server_close()
        self._thread.join(1.0)


class PrometheusServer:
    """The handler of prometheus_client, which answers with the last sightings."""

    def __init__(self, target: MetricsTarget, seen: Callable[[], list[Sighting]]) -> None:
        with required("prometheus_client", "metrics"):
            from prometheus_client import CollectorRegistry, MetricsHandler
        self._seen = seen
        registry: Any = CollectorRegistry()
        registry.register(self)
        self._server = RestingServer(target, MetricsHandler.factory(registry))
        host, port = self._server.server_address[:2]
        self.address = f"http://{f'[{host!s}]' if ':' in str(host) else host!s}:{port}/metrics"

    def write(self, seen: Sequence[Sighting]) -> None:
        """Do nothing: the figures are sent on request."""

    def collect(self) -> Iterator[Any]:
        """Yield every family of metrics, without unknown values."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        runners = [(str(one.sample.runner), _values(one)) for one in self._seen()]
        for name, key, description, *labels in FAMILIES:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family: Any = kind(name, description, labels=["runner", *labels])
            for runner, values in runners:
                rows = values[key] if labels else {(): values[key]}
                for of, value in rows.items():
                    if value is not None:
                        family.add_metric([runner, *of], value)
            yield family

    def close(self) -> None:
        """Stop listening."""
        self._server.close()

    def forget(self) -> None:
        """Close the listening socket of the copy only."""
        self._server.socket.close()


def _values(seen: Sighting) -> dict[str, Any]:
    """Return the figures of a runner, with those that Prometheus counts by state."""
    sample, counts = seen.sample, Counter(row.state for row in seen.producers)
    return {
        **by_name(sample),
        "decisions": {(result,): count for result, count in sample.decisions.items()},
        "failed": int(sample.state == FEED_STATES[FEED_FAILED]),
        "slots": {(state,): getattr(sample, state) for state in SLOT_STATES},
        "producer_states": {(state,): counts[state] for state in STATES},
        "waits": {(stage,): share for stage, share in sample.waits.items()},
        "stages": {
            (str(r.producer), s): one for r in seen.producers for s, one in r.stages.items()
        },
    }


class EventFiles:
    """Writes scalars `fastfeed/...` over the number of steps into FOLDER/runner-0 and so on.

    TensorFlow is not needed. Raise OSError if the folder cannot be written to.
    """

    def __init__(self, folder: str) -> None:
        with required("TensorBoard", "tensorboard"):
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        self._event, self._value = event_pb2.Event, summary_pb2.Summary.Value
        self._writer = RecordWriter
        self.address = folder
        self._folder = Path(folder).expanduser()
        self._writers: dict[int, Any] = {}
        self._folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} cannot be written to")

    def write(self, seen: Sequence[Sighting]) -> None:
        """Write the present figures of each runner."""
        for sample in (one.sample for one in seen):
            writer = self._writers.get(sample.runner) or self._open(sample.runner)
            event = self._event(wall_time=time.time(), step=sample.batches)
            event.summary.value.extend(
                self._value(tag=f"fastfeed/{name}", simple_value=value)
                for name in TENSORBOARD_SCALARS
                if (value := getattr(sample, name)) is not None
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

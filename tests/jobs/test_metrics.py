"""Figures for Prometheus and TensorBoard, and the messages for targets that cannot work."""

from __future__ import annotations

import socket
import struct
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedOptions, FeedRunner, MissingExtra, OptionError
from fastfeed.core.unix import resource
from fastfeed.jobs import metrics, observer
from fastfeed.jobs.runner_samples import Sighting
from fastfeed.options import MetricsTarget
from tests.helpers.dying import until
from tests.jobs.flights import flight, observing, ones, producer, sample

FORMS = 'be "tensorboard:DIR" or "prometheus:HOST:PORT", such as "prometheus:127.0.0.1:9123", got '


def get(url: str) -> tuple[str, str]:
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read().decode(), response.headers["Content-Type"]


def url_of() -> str:
    """Return the address of the metrics, as the black box tells it."""

    def found() -> str:
        texts = [event.text for event in flight().events if event.text.startswith("metrics at ")]
        return texts[-1].removeprefix("metrics at ") if texts else ""

    url: str = until(found, "an address")
    return url


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def scraped(url: str, key: str, value: float) -> dict[str, float]:
    """Return all values once one of them has this value."""

    def found() -> dict[str, float] | None:
        current = values(get(url)[0])
        return current if current.get(key) == value else None

    complete: dict[str, float] = until(found, f"{key} {value}")
    return complete


def values(text: str) -> dict[str, float]:
    """Return the values, and check that every family is described before its first one."""
    found: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            key, _, value = line.rpartition(" ")
            name = key.partition("{")[0]
            assert kinds[name] == ("counter" if name.endswith("_total") else "gauge")
            found[key] = float(value)
    return found


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ("prometheus:9123", MetricsTarget("prometheus", "127.0.0.1", 9123)),
        ("prometheus:0.0.0.0:0", MetricsTarget("prometheus", "0.0.0.0", 0)),
        ("prometheus:[::1]:80", MetricsTarget("prometheus", "::1", 80)),
        ("tensorboard:runs/1:2", MetricsTarget("tensorboard", "runs/1:2")),
    ],
)
def test_targets(given: str, target: MetricsTarget) -> None:
    found = FeedOptions(metrics=given).metrics_target
    assert found == target
    assert FeedOptions(metrics=str(found)).metrics_target == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("promethus:127.0.0.1:9123", "did you mean prometheus:?"),
        ("tensorbord:runs", "did you mean tensorboard:?"),
        ("statsd:1", f"{FORMS}'statsd:1'(?m:$)"),
        ("prometheus", f"{FORMS}'prometheus': it needs an IPv4 address, .* and a port"),
        ("prometheus:localhost", "it needs an IPv4 address, host name .* and a port"),
        ("prometheus:127.0.0.1:70000", "a port of 0 .any free port. to 65535(?m:$)"),
        ("prometheus::1:80", r"it needs an IPv4 address, host name or \[IPv6 address\]"),
        ("tensorboard:", "name a local folder, as in tensorboard:runs, got 'tensorboard:'(?m:$)"),
        (
            "tensorboard:gs://bucket/runs",
            "name a local folder, .*got 'tensorboard:gs://bucket/runs'(?m:$)",
        ),
        (9123, f"{FORMS}9123(?m:$)"),
    ],
)
def test_targets_that_cannot_work(given: Any, said: str) -> None:
    with pytest.raises(OptionError, match=f"^metrics must .*{said}"):
        FeedRunner(ones, metrics=given)


@pytest.fixture
def prometheus(folder: Path) -> str:
    """Return the target of any free port."""
    pytest.importorskip("prometheus_client")
    return "prometheus:0"


def test_prometheus(prometheus: str) -> None:
    records = [np.ones((4, 3), np.float32)] * 60
    with FeedRunner(records, records=False, threads=2, metrics=prometheus) as runner:
        check = runner.also([np.ones((2, 3))] * 3, records=False)
        stream = iter(runner)
        for _ in range(11):
            next(stream)
        assert len(list(check)) == 3
        url = url_of()
        assert url.startswith("http://127.0.0.1:") and url.endswith("/metrics")
        assert get(url)[1].startswith("text/plain; version=")
        found = scraped(url, 'fastfeed_batches_total{runner="0"}', 10)
        assert found['fastfeed_bytes_total{runner="0"}'] == 10 * 48
        assert scraped(url, 'fastfeed_batches_total{runner="1"}', 2)
        making = [v for k, v in found.items() if k.startswith('fastfeed_producers{runner="0"')]
        assert sum(making) == 2
        with (
            pytest.raises(OptionError, match=r"in use: must be an address of this machine.*port 0"),
            FeedRunner(ones, metrics=f"prometheus:{port_of(url)}") as second,
        ):
            next(iter(second))
        # A runner with the same address is on the same page.
        with FeedRunner(ones, metrics=prometheus) as third:
            next(iter(third))
            scraped(url, 'fastfeed_failed{runner="2"}', 0)
        with FeedRunner(ones) as private:
            next(iter(private))
            flight(runner=2)
            assert 'fastfeed_failed{runner="2"}' not in values(get(url)[0])
    until(lambda: not observing(), "the end of the thread")
    with pytest.raises(urllib.error.URLError):
        get(url)


def test_stages(prometheus: str) -> None:
    seen = [Sighting(sample(60), [producer(0), producer(1, stages={})], [], over=False)]
    server = metrics.PrometheusServer(MetricsTarget("prometheus", "127.0.0.1", 0), lambda: seen)
    try:
        found = values(get(server.address)[0])
    finally:
        server.close()
    told = {key: one for key, one in found.items() if "stage=" in key}
    assert told == {
        'fastfeed_wait_ratio{runner="0",stage="read"}': 0.4,
        'fastfeed_wait_ratio{runner="0",stage="collate"}': 0.1,
        'fastfeed_stage_ratio{producer="0",runner="0",stage="read"}': 0.4,
        'fastfeed_stage_ratio{producer="0",runner="0",stage="collate"}': 0.1,
    }


def test_a_port_is_free_again_and_needs_no_black_box(
    prometheus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTFEED_BLACKBOX", "0")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for _ in range(3):
        with FeedRunner(ones, metrics=f"prometheus:{port}") as runner:
            next(iter(runner))
            scraped(f"http://127.0.0.1:{port}/metrics", 'fastfeed_failed{runner="0"}', 0)


def test_a_silent_client_delays_no_other(prometheus: str) -> None:
    with FeedRunner(ones, metrics=prometheus) as runner:
        next(iter(runner))
        url = url_of()
        with socket.create_connection(("127.0.0.1", port_of(url)), timeout=60) as silent:
            silent.sendall(b"GET /metrics HTTP/1.1\r\nA: b")
            scraped(url, 'fastfeed_failed{runner="0"}', 0)


def test_without_descriptors_a_server_rests(
    prometheus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting client makes its listener ready again and again, while none can be accepted."""
    pytest.importorskip("prometheus_client")
    server = metrics.PrometheusServer(MetricsTarget("prometheus", "127.0.0.1", 0), list)
    listener = server._server
    rests: list[float] = []
    wait = listener.ended.wait
    monkeypatch.setattr(
        listener.ended, "wait", lambda seconds: rests.append(seconds) or wait(0.001)
    )
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with socket.socket() as client:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            try:
                client.connect(listener.server_address[:2])
                until(lambda: len(rests) > 2, "some attempts")
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert set(rests) == {metrics.REST_S}
            client.settimeout(60)
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert client.recv(4) == b"HTTP"
    finally:
        server.close()


def events(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Return the steps and the scalars of each, as TensorBoard reads them."""
    from tensorboard.compat.proto import event_pb2

    (file,) = folder.iterdir()
    data, found = file.read_bytes(), []
    while data:
        (length,) = struct.unpack_from("<Q", data)
        event = event_pb2.Event.FromString(data[12 : 12 + length])
        found.append((event.step, {v.tag: v.simple_value for v in event.summary.value}))
        data = data[16 + length :]
    return found


def test_tensorboard(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(observer, "EXPORT_EVERY_SAMPLES", 1)
    with FeedRunner(ones, metrics=f"tensorboard:{tmp_path}/runs") as runner:
        stream = iter(runner)
        for _ in range(5):
            next(stream)
        until(lambda: list(tmp_path.glob("runs/runner-0/*")), "its file")
        until(lambda: len(events(tmp_path / "runs" / "runner-0")) > 3, "some events")
    found = events(tmp_path / "runs" / "runner-0")
    assert found[0] == (0, {})  # the version
    assert found[-1][0] == 4 and "fastfeed/depth" in found[-1][1]
    assert not observing()


def test_a_folder_that_cannot_be_written_to(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="metrics='tensorboard:.*a folder that can be written"):
        next(iter(FeedRunner(ones, metrics=f"tensorboard:{tmp_path}/file")))


@pytest.mark.parametrize(
    ("package", "extra", "target"),
    [
        ("prometheus_client", "metrics", "prometheus:0"),
        ("tensorboard.compat.proto", "tensorboard", "tensorboard:runs"),
    ],
)
def test_a_package_that_is_not_installed(
    package: str, extra: str, target: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'fastfeed\[{extra}\]'"):
        next(iter(FeedRunner(ones, metrics=target)))
    assert not observing()

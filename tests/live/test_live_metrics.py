"""Figures for Prometheus and TensorBoard, and the messages for targets that cannot work."""

from __future__ import annotations

import builtins
import os
import socket
import struct
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedOptions, FeedRunner, MissingExtra, OptionError
from fastfeed.live import server, service
from fastfeed.live.metrics import http_response
from fastfeed.live.socket import ask
from fastfeed.options import MetricsTarget
from tests.helpers.dying import until
from tests.live.places import Folders, answer, live_threads, ones

FORMS = 'be "tensorboard:DIR" or "prometheus:HOST:PORT", such as "prometheus:127.0.0.1:9123", got '


def get(url: str) -> tuple[str, str]:
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read().decode(), response.headers["Content-Type"]


def url_of() -> str:
    (url,) = until(lambda: ask(os.getpid()), "an answer")["metrics"]
    assert isinstance(url, str)
    return url


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
        ("statsd:1", f"{FORMS}'statsd:1'$"),
        ("prometheus", f"{FORMS}'prometheus': it needs an IPv4 address, .* and a port"),
        ("prometheus:localhost", "it needs an IPv4 address, host name .* and a port"),
        ("prometheus:127.0.0.1:70000", "a port of 0 .any free port. to 65535$"),
        ("prometheus::1:80", r"it needs an IPv4 address, host name or \[IPv6 address\]"),
        ("tensorboard:", "name a local folder, as in tensorboard:runs, got 'tensorboard:'$"),
        (
            "tensorboard:gs://bucket/runs",
            "name a local folder, .*got 'tensorboard:gs://bucket/runs'$",
        ),
        (9123, f"{FORMS}9123$"),
    ],
)
def test_targets_that_cannot_work(given: Any, said: str) -> None:
    with pytest.raises(OptionError, match=f"^metrics must .*{said}"):
        FeedRunner(ones, metrics=given)


def test_prometheus(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    for switch in ("FASTFEED_BLACKBOX", "FASTFEED_SOCKET"):
        monkeypatch.setenv(switch, "0" if switch.endswith("BOX") else "")
    with FeedRunner(
        [np.ones((4, 3), np.float32)] * 60, records=False, threads=2, metrics="prometheus:0"
    ) as runner:
        check = runner.also([np.ones((2, 3))] * 3, records=False)
        stream = iter(runner)
        for _ in range(11):
            next(stream)
        assert len(list(check)) == 3
        url = url_of()
        assert url.startswith("http://127.0.0.1:")
        text, kind = get(url)
        assert kind.startswith("text/plain; version=0.0.4")
        found = values(text)
        assert found['fastfeed_batches_total{runner="0"}'] == 10
        assert found['fastfeed_bytes_total{runner="0"}'] == 10 * 48
        assert found['fastfeed_batches_total{runner="1"}'] == 2
        assert (
            sum(v for k, v in found.items() if k.startswith('fastfeed_producers{runner="0"')) == 2
        )
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(url.replace("metrics", "etc/passwd"))
        with (
            pytest.raises(OptionError, match=r"cannot listen there.*port 0"),
            FeedRunner(ones, metrics=f"prometheus:{url.split(':')[2].split('/')[0]}") as second,
        ):
            next(iter(second))
        # A runner with the same address is on the same page.
        with FeedRunner(ones, metrics="prometheus:0") as third:
            next(iter(third))
            assert 'fastfeed_failed{runner="2"}' in values(get(url_of())[0])
        with FeedRunner(ones) as private:
            next(iter(private))
            answer(runner=2)
            assert 'fastfeed_failed{runner="2"}' not in values(get(url_of())[0])
    assert not live_threads()
    with pytest.raises(urllib.error.URLError):
        get(url)


def test_the_port_is_free_again(folders: Folders) -> None:
    with FeedRunner(ones, metrics="prometheus:0") as first:
        next(iter(first))
        port = url_of().split(":")[2].split("/")[0]
    for _ in range(3):
        with FeedRunner(ones, metrics=f"prometheus:{port}") as runner:
            next(iter(runner))
            assert values(get(url_of())[0])


def test_a_silent_client_delays_no_other(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CLIENT_TIMEOUT_S", 0.05)
    with FeedRunner(ones, metrics="prometheus:0") as runner:
        next(iter(runner))
        url = url_of()
        port = int(url.split(":")[2].split("/")[0])
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        silent[0].sendall(b"GET /metrics HTTP/1.1\r\nA: b")
        assert values(get(url)[0])
        assert silent[0].recv(1) == b""  # after its timeout
        for one in silent:
            one.close()


@pytest.mark.parametrize(
    ("question", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", b"200"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\x16\x03\x01\r\n\r\n", b"405"),
        (b"GET\r\n\r\n", b"404"),
        (b"GET /metrics HTTP/1.1\r\n", None),
    ],
)
def test_http(question: bytes, status: bytes | None) -> None:
    found = http_response(question, lambda: "x 1\n")
    assert (found is None) if status is None else (found is not None and found.split()[1] == status)
    if found is not None and status == b"200":
        assert found.endswith(b"\r\n\r\n") == question.startswith(b"HEAD")


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


def test_tensorboard(folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(service, "EXPORT_EVERY_SAMPLES", 1)
    with FeedRunner(ones, metrics=f"tensorboard:{tmp_path}/runs") as runner:
        stream = iter(runner)
        for _ in range(5):
            next(stream)
        until(lambda: list(tmp_path.glob("runs/runner-0/*")), "its file")
        until(lambda: len(events(tmp_path / "runs" / "runner-0")) > 3, "some events")
    found = events(tmp_path / "runs" / "runner-0")
    assert found[0] == (0, {})  # the version
    assert found[-1][0] == 4 and "fastfeed/queue_depth" in found[-1][1]
    assert not live_threads()


def test_requirements_of_tensorboard(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    if "tensorboard" in sys.modules or pytest.importorskip("tensorboard"):
        with pytest.raises(
            OptionError, match="metrics='tensorboard:.*a folder that can be written"
        ):
            next(iter(FeedRunner(ones, metrics=f"tensorboard:{tmp_path}/file")))
    real: Callable[..., Any] = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("tensorboard"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "fastfeed.live.event_files", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"fastfeed\[tensorboard\]"):
        next(iter(FeedRunner(ones, metrics=f"tensorboard:{tmp_path}/runs")))
    monkeypatch.setattr(builtins, "__import__", real)
    assert not live_threads()

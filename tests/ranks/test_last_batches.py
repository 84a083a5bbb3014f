"""Ranks that have no batch left and wait for the last ones of others. JobClaims plays the other."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fastfeed import FeedRunner, FeedTimeout
from fastfeed.core.shard_address import ShardAddress
from fastfeed.engine.claimed_position import ClaimedPosition
from fastfeed.ranks import ShardServer, shard_server
from fastfeed.ranks.job_claims import JobClaims
from fastfeed.ranks.job_messages import decode, encode, token_line

JOB = {"batches": 10, "records": 20, "batch_size": 2, "shuffle": False, "sampler": "NoneType"}


@pytest.fixture
def server() -> Iterator[ShardServer]:
    with ShardServer() as server:
        yield server


def rank(server: ShardServer, **options: Any) -> FeedRunner:
    return FeedRunner(range(20), batch_size=2, seed=1, shard=server.address, **options)


@pytest.fixture
def other(server: ShardServer) -> Iterator[JobClaims]:
    address = ShardAddress.parse(server.address)
    other = JobClaims(address, {**JOB, "seed": 1, "run": 1})
    yield other
    other.close()


def test_a_wait_for_them_is_no_stall(
    server: ShardServer, other: JobClaims, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, stalls = ClaimedPosition.waits_for_others.fget, iter(range(3))
    waited = threading.Event()

    def waits_for_others(position: ClaimedPosition) -> bool:
        found = waits(position)
        if found and next(stalls, None) is None:
            waited.set()
        return found

    monkeypatch.setattr(ClaimedPosition, "waits_for_others", property(waits_for_others))
    held, found = other.next(0), []
    with rank(server, stall_timeout_s=0.02) as runner:
        thread = threading.Thread(target=lambda: found.extend(runner))
        thread.start()
        assert waited.wait(10)
        other.report([held])
        thread.join(10)
    assert len(found) == 9


def test_a_stalled_producer_beside_the_wait_is_one(server: ShardServer, other: JobClaims) -> None:
    go_on = threading.Event()

    def read(n: int) -> int:
        if n == 19:
            go_on.wait(10)
        return n

    assert other.next(0) == 0
    options = {"transform": read, "threads": 2, "stall_timeout_s": 0.5}
    with (
        rank(server, **options) as runner,
        pytest.raises(FeedTimeout, match="no batch arrived"),
    ):
        try:
            list(runner)
        finally:
            go_on.set()


def test_batches_without_records_are_reported(server: ShardServer, other: JobClaims) -> None:
    """Or both ranks would wait for each other."""
    held, answers, all_claimed = other.next(0), [], threading.Event()

    def chosen(n: int) -> bool:
        if n == 19:
            all_claimed.set()
        return n == 2

    with rank(server, filter=chosen) as runner:
        batches = iter(runner)
        found = next(batches).tolist()
        rest = threading.Thread(target=lambda: found.extend(batches))
        asking = threading.Thread(target=lambda: answers.append(other.next(0)))
        rest.start()
        assert all_claimed.wait(10)
        asking.start()
        asking.join(10)
        other.report([held])
        rest.join(10)
    assert (found, answers) == ([2], [None])


def test_a_server_shows_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_server, "HEARTBEAT_S", 0.001)
    with ShardServer() as quick:
        holder = JobClaims(where := ShardAddress.parse(quick.address), job := {**JOB, "run": 1})
        assert [holder.next(0) for _ in range(10)] == list(range(10))
        with socket.create_connection((where.host, where.port), 10) as waiting:
            hello = {"name": "", "job": job, "state": None}
            waiting.sendall(token_line(where.token) + encode(hello) + encode({"claim": 0}))
            with waiting.makefile("rb") as lines:
                answers = [decode(lines.readline()) for _ in range(4)]
        holder.close()
    assert answers == [{"rank": 1}, *[{"wait": True}] * 3]


def test_a_server_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = ShardAddress("127.0.0.1", listener.getsockname()[1], "x")

        def serve() -> None:
            connection = listener.accept()[0]
            connections.append(connection)
            lines = connection.makefile("rb")
            for answer in ({"rank": 0}, {"wait": True}):
                lines.readline()
                connection.sendall(encode(answer))

        connections: list[socket.socket] = []
        thread = threading.Thread(target=serve)
        thread.start()
        claims = JobClaims(address, {}, timeout_s=0.5)
        with pytest.raises(FeedTimeout, match="has not answered for 0.5 s"):
            claims.next(0)
        thread.join(10)
        claims.close()
        connections[0].close()

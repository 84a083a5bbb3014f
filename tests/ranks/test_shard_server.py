"""Ranks that share out the batches of a job as they go, in threads and in processes."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import (
    FeedRunner,
    FeedStopped,
    FeedTimeout,
    OptionError,
    ProducerFailed,
    Shuffle,
    StateError,
)
from fastfeed.core.shard_address import ShardAddress
from fastfeed.jobs.blackbox import read
from fastfeed.ranks import ShardServer, shard_server
from fastfeed.ranks.job_claims import JobClaims

RANK = Path(__file__).parent / "stealing_rank.py"


@pytest.fixture
def server() -> Iterator[ShardServer]:
    with ShardServer() as server:
        yield server


def rank(server: ShardServer, length: int = 20, **options: Any) -> FeedRunner:
    return FeedRunner(range(length), **{"batch_size": 2, "shard": server.address, **options})


def seen(*runs: list[Any]) -> Counter[int]:
    return Counter(int(n) for run in runs for batch in run for n in batch)


class TestOneEpochAfterTheOther:
    @pytest.mark.parametrize("producers", [{}, {"threads": 3}, {"processes": 1}])
    def test_every_record_once_an_epoch_over_all_ranks(
        self, server: ShardServer, producers: Any
    ) -> None:
        options = {"epochs": 3, "shuffle": True, **producers}
        found: list[list[Any]] = [[], []]
        joined = threading.Barrier(2)

        def run(number: int) -> None:
            with rank(server, **options) as runner:
                runner.start()
                joined.wait(10)
                found[number] += list(runner)

        threads = [threading.Thread(target=run, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen(*found) == Counter(dict.fromkeys(range(20), 3))
        assert server.wait(10)
        assert server.report().consumed == {0: 10, 1: 10, 2: 10}
        assert {one.state for one in server.report().ranks} == {"left"}

    def test_a_slow_rank_holds_no_other_up(self, server: ShardServer) -> None:
        with rank(server, epochs=2) as slow, rank(server, epochs=2) as fast:
            first, rest = next(iter(slow)), iter(fast)
            # of 20 batches the slow one holds its own and 3 to come
            found = [next(rest) for _ in range(16)]
            slow.stop()
            found += list(rest)
        assert seen([first], found) == Counter(dict.fromkeys(range(20), 2))

    def test_the_order_is_that_of_one_feed_with_the_same_seed(self, server: ShardServer) -> None:
        with rank(server, shuffle=True, seed=5) as shared:
            found = [batch.tolist() for batch in shared]
        with FeedRunner(range(20), batch_size=2, shuffle=True, seed=5) as alone:
            assert found == [batch.tolist() for batch in alone]

    @pytest.mark.parametrize(("last", "total"), [("keep", 11), ("drop", 10)])
    def test_a_last_batch_that_is_not_full(
        self, server: ShardServer, last: Any, total: int
    ) -> None:
        with rank(server, 11, last_batch=last) as runner:
            assert sum(map(len, runner)) == total

    def test_a_filter_makes_batches_smaller(self, server: ShardServer) -> None:
        with rank(server, filter=lambda n: n % 4 != 1) as runner:
            assert [batch.tolist() for batch in runner][:2] == [[0], [2, 3]]

    def test_a_rank_that_joins_late_goes_to_the_epoch_of_the_others(
        self, server: ShardServer
    ) -> None:
        with rank(server, epochs=2) as early:
            batches = iter(early)
            found = [next(batches) for _ in range(12)]
            with rank(server, epochs=2) as late:
                found.append(next(iter(late)))
            found += list(batches)
        assert seen(found) == Counter(dict.fromkeys(range(20), 2))

    @pytest.mark.parametrize("ranks", [1, 2])
    def test_sessions(self, server: ShardServer, ranks: int) -> None:
        tf = pytest.importorskip("tensorflow")
        found: list[list[Any]] = [[] for _ in range(ranks)]
        joined = threading.Barrier(ranks)

        def run(number: int) -> None:
            with tf.Graph().as_default(), rank(server, epochs=2) as runner:
                batch = runner.get_inputs()
                with tf.compat.v1.Session() as session:
                    runner.start(session)
                    joined.wait(10)
                    with pytest.raises(tf.errors.OutOfRangeError):
                        while True:
                            found[number].append(session.run(batch))

        threads = [threading.Thread(target=run, args=(n,)) for n in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen(*found) == Counter(dict.fromkeys(range(20), 2))


class TestDeath:
    @pytest.mark.parametrize("producers", ["threads", "processes"])
    def test_what_a_killed_rank_held_is_given_to_another(
        self, server: ShardServer, producers: str
    ) -> None:
        command = [sys.executable, str(RANK), server.address, producers]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as process:
            assert process.stdout is not None
            consumed = [json.loads(process.stdout.readline()) for _ in range(3)]
            with rank(server, epochs=2) as runner:
                batches = iter(runner)
                found = [next(batches) for _ in range(13)]  # beyond the epoch of the other
                process.send_signal(signal.SIGKILL)
                found += list(batches)
        # The third batch was in the hands of the killed rank.
        assert seen(consumed[:2], found) == Counter(dict.fromkeys(range(20), 2))
        assert server.wait(10)
        report = server.report()
        assert [one.state for one in report.ranks] == ["died", "left"]
        assert report.given_again >= 1

    def test_what_a_rank_held_whose_step_raised_is_given_to_another(
        self, server: ShardServer
    ) -> None:
        stepped = []
        with contextlib.suppress(ZeroDivisionError), rank(server) as one:
            for batch in one:
                if len(stepped) == 3:
                    raise ZeroDivisionError
                stepped.append(batch)
        with rank(server) as other:
            assert seen(stepped, list(other)) == Counter(range(20))

    def test_a_loop_that_was_left_has_consumed_its_last_batch(self, server: ShardServer) -> None:
        with rank(server) as one:
            stepped = [batch for _, batch in zip(range(3), one, strict=False)]
        with rank(server) as other:
            assert seen(stepped, list(other)) == Counter(range(20))

    def test_a_server_that_ends_fails_its_ranks(self, server: ShardServer) -> None:
        with rank(server, 2000) as runner:
            batches = iter(runner)
            next(batches)
            server.close()
            with pytest.raises(ProducerFailed, match="ShardServer at .* has gone"):
                list(batches)

    def test_a_rank_that_is_stopped_while_it_waits_for_others(self, server: ShardServer) -> None:
        stopped = []

        def run() -> None:
            with pytest.raises(FeedStopped):
                list(runner)
            stopped.append(True)

        with rank(server) as other, rank(server) as runner:
            next(iter(other))
            waiting = threading.Thread(target=run)
            waiting.start()
            runner.stop()
            waiting.join(10)
            assert stopped


class TestState:
    def test_goes_on_with_another_number_of_ranks(self, server: ShardServer) -> None:
        options = {"epochs": 2, "shuffle": True}
        with rank(server, **options) as one, rank(server, **options) as two:
            loops = [iter(one), iter(two), iter(two)]
            found = [next(loop) for loop in loops for _ in range(4)]
            state = json.loads(json.dumps(one.state()))
        held = found.pop()  # the second rank is in its step
        with ShardServer() as again:
            runners = [rank(again, **options) for _ in range(3)]
            for runner in runners:
                runner.restore(state)
            loops = [iter(runner) for runner in runners]
            rest = [next(loop) for loop in loops]
            for runner in runners[1:]:
                runner.stop()
            rest += list(loops[0])
        assert len(held) == 2
        assert seen(found, rest) == Counter(dict.fromkeys(range(20), 2))

    def test_in_every_rank_or_in_none(self, server: ShardServer) -> None:
        with rank(server) as runner:
            next(iter(runner))
            state = runner.state()
            late = rank(server)
            late.restore(state)
            with late, pytest.raises(OptionError, match="has begun without a state"):
                next(iter(late))

    def test_of_a_fixed_share(self, server: ShardServer) -> None:
        with rank(server) as runner:
            next(iter(runner))
            state = runner.state()
        fixed = FeedRunner(range(20), batch_size=2, shard=(0, 2))
        with pytest.raises(OptionError, match="world was 'stealing' and is 2"):
            fixed.restore(state)


class TestBadInput:
    def test_no_server(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        with pytest.raises(FeedTimeout, match=f"no ShardServer at 127.0.0.1:{port} within 0 s"):
            JobClaims(ShardAddress("127.0.0.1", port, "x"), {}, timeout_s=0)

    def test_another_job(self, server: ShardServer) -> None:
        address = server.address[:-4] + "0000"
        with (
            rank(server, shard=address) as runner,
            pytest.raises(OptionError, match="no ShardServer of this job"),
        ):
            next(iter(runner))

    def test_a_second_job(self, server: ShardServer) -> None:
        with rank(server, epochs=2) as runner:
            assert seen(list(runner)) == Counter(dict.fromkeys(range(20), 2))
        assert server.wait(10)
        with (
            rank(server, epochs=2) as second,
            pytest.raises(OptionError, match="has ended: 1 ranks .* needs a new ShardServer(?m:$)"),
        ):
            next(iter(second))

    @pytest.mark.parametrize(
        ("options", "difference"),
        [
            ({"epochs": 2}, "run is 1 there and 2 here"),
            ({"shuffle": True}, "shuffle is False there and True here"),
            ({"seed": 1}, "seed is"),
            ({"batch_size": 4}, "batch_size is 2 there and 4 here"),
        ],
    )
    def test_ranks_that_differ(self, server: ShardServer, options: Any, difference: str) -> None:
        with rank(server) as runner, rank(server, **options) as other:
            next(iter(runner))
            with pytest.raises(OptionError, match=f"must agree: .*{difference}"):
                next(iter(other))

    @pytest.mark.parametrize(
        ("source", "options", "says"),
        [
            (iter([1]), {}, "requires an indexable source"),
            (lambda: iter([1]), {}, "requires an indexable source"),
            (range(4), {"shuffle": Shuffle()}, "shuffle=True"),
            (range(4), {"shard": "stealing://host"}, "address of a ShardServer"),
            (range(4), {"shard": "http://host:1/x"}, "address of a ShardServer"),
            (range(4), {"shard": "stealing://host:x/x"}, "address of a ShardServer"),
        ],
    )
    def test_options_that_do_not_fit(self, source: Any, options: Any, says: str) -> None:
        given = {"shard": "stealing://127.0.0.1:1/x", "batch_size": 2, **options}
        with pytest.raises(OptionError, match=says):
            FeedRunner(source, **given)

    def test_a_sampler_of_unknown_length(self, server: ShardServer) -> None:
        class Varying:
            def indices(self, seed: int, epoch: int, *, length: int) -> Any:
                return np.arange(epoch + 2)

        with (
            rank(server, sampler=Varying()) as runner,
            pytest.raises(OptionError, match="different lengths"),
        ):
            next(iter(runner))

    def test_strangers_are_not_answered(self, server: ShardServer) -> None:
        where = ShardAddress.parse(server.address)
        for line in (b"GET / HTTP/1.1\r\n", b"[]\n", b'{"token": "x"}\n', b'{"token": 1}\n'):
            with socket.create_connection((where.host, where.port)) as stranger:
                stranger.sendall(line)
                assert stranger.recv(100) == b""
        with pytest.raises(StateError, match="no rank has joined"):
            server.report()

    def test_a_stranger_sends_no_more_than_a_token(self, server: ShardServer) -> None:
        where = ShardAddress.parse(server.address)
        stranger = socket.create_connection((where.host, where.port), 60)
        with stranger, contextlib.suppress(ConnectionError):
            while True:  # until the server ends it
                stranger.sendall(b"x" * 2**16)
        assert sum(map(len, rank(server))) == 20

    def test_strangers_that_say_nothing_hold_no_rank_up(
        self, server: ShardServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shard_server, "MAX_STRANGERS", 4)
        where = ShardAddress.parse(server.address)
        with contextlib.ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection((where.host, where.port), 60))
                for _ in range(20)
            ]
            with contextlib.suppress(ConnectionError):
                assert silent[0].recv(1) == b""  # dropped for a younger one
            with rank(server) as runner:
                assert sum(map(len, runner)) == 20
            assert len(server._strangers) <= 4

    def test_the_token_is_in_no_text(
        self, server: ShardServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        token = ShardAddress.parse(server.address).token
        monkeypatch.setenv("FASTFEED_BLACKBOX", str(tmp_path))
        monkeypatch.setattr(sys, "argv", ["train.py", f"--shard={server.address}", "--last"])
        monkeypatch.setattr(sys, "orig_argv", ["python", *sys.argv])
        with rank(server, epochs=2) as runner:
            assert len(next(iter(runner))) == 2
            texts = [repr(runner), repr(runner.options), repr(server)]
        (box,) = tmp_path.iterdir()
        seen = read(box)
        texts += [seen.header.command, *(event.text for event in seen.events)]
        assert "--last" in seen.header.command
        assert any("shard=stealing://127.0.0.1" in event.text for event in seen.events)
        assert token.encode() not in box.read_bytes()
        assert not [text for text in texts if token in text]


def test_an_address_of_ipv6() -> None:
    text = "stealing://[::1]:4000/abc"
    assert str(ShardAddress.parse(text)) == text

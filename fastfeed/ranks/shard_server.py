"""Server that hands out the batches of a job to its ranks."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastfeed.core.shard_address import ShardAddress
from fastfeed.errors import StateError
from fastfeed.ranks.claim_ledger import ClaimAnswer, ClaimLedger
from fastfeed.ranks.job_messages import MAX_LINE_NBYTES, WAIT, decode, encode, token_line, tune

HELLO_TIMEOUT_S = 10.0
JOIN_TIMEOUT_S = 5.0
MAX_STRANGERS = 256  # clients that have not shown the token
HEARTBEAT_S = 2.5  # well below the limit after which a rank gives up a silent server


@dataclass
class RankReport:
    """What a rank has done: batches claimed and consumed. `state` is "running", "left" or
    "died"."""

    rank: int
    name: str  # host and process
    claimed: int = 0
    consumed: int = 0
    state: str = "running"


@dataclass(frozen=True)
class JobReport:
    """What a job has done: its ranks in the order in which they joined, batches consumed by epoch,
    batches of an epoch, and batches that were given to a second rank."""

    batches: int
    ranks: tuple[RankReport, ...]
    consumed: dict[int, int]
    given_again: int


@dataclass
class _Rank:
    """The connection of a rank."""

    report: RankReport
    send: Callable[[dict[str, Any]], None]
    waits_in: int | None = None  # the epoch of a claim that waits


class ShardServer:
    """Hands out the batches of each epoch to the ranks of a job, as they ask for them.

    Every rank passes `server.address` as `shard=`. Each batch is consumed by one rank, exactly once
    an epoch. A rank that is slow takes fewer; what a rank held when it died is given to another.
    The server runs in a thread of this process until `close`. It listens on `host`, by default for
    this machine only; what it sends is not encrypted, and only those with the address are answered.
    Raise OSError if it cannot listen there.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._token = secrets.token_hex(16)
        # What the ranks have in common, from the first one on.
        self._of: dict[str, Any] = {}
        self._ledger: ClaimLedger | None = None
        self._resumed = False
        self._ranks: list[_Rank] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._strangers: dict[asyncio.StreamWriter, None] = {}  # by age
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._loop = asyncio.new_event_loop()
        try:
            self._server = self._loop.run_until_complete(
                asyncio.start_server(self._serve, host, port, limit=MAX_LINE_NBYTES)
            )
        except OSError:
            self._loop.close()
            raise
        port = self._server.sockets[0].getsockname()[1]
        self.address = str(ShardAddress(host, port, self._token))
        self._closed = False
        self._loop.call_soon(self._beat)
        self._thread = threading.Thread(target=self._run, name="fastfeed-shards", daemon=True)
        self._thread.start()

    def report(self) -> JobReport:
        """Return what the ranks have done so far. Raise StateError before the first one."""
        with self._lock:
            ledger = self._begun()
            ranks = tuple(RankReport(**vars(rank.report)) for rank in self._ranks)
            consumed = dict(sorted(ledger.consumed.items()))
            return JobReport(self._of["batches"], ranks, consumed, ledger.given_again)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every rank that joined has left or died; return False after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(rank.report.state != "running" for rank in self._ranks), timeout_s
            )

    def close(self) -> None:
        """Stop. Ranks that ask for more get an error."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(JOIN_TIMEOUT_S)

    def __enter__(self) -> ShardServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._end())
        finally:
            self._loop.close()

    def _beat(self) -> None:
        """Show the ranks that wait for others that this server is alive."""
        with self._lock:
            for rank in self._ranks:
                if rank.waits_in is not None:
                    rank.send(WAIT)
        self._loop.call_later(HEARTBEAT_S, self._beat)

    async def _end(self) -> None:
        self._server.close()
        # not cancelled: before Python 3.12 asyncio logs that as an error
        for writer in list(self._writers):
            writer.transport.abort()
        conversations = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*conversations, return_exceptions=True)

    def _begun(self) -> ClaimLedger:
        if self._ledger is None:
            raise StateError(
                "no rank has joined this ShardServer: start the ranks with shard=server.address"
            )
        return self._ledger

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tune(writer.get_extra_info("socket"))
        self._writers.add(writer)
        try:
            with suppress(ValueError, TypeError, KeyError, OSError, asyncio.TimeoutError):
                await asyncio.wait_for(self._admit(reader, writer), HELLO_TIMEOUT_S)
                hello = decode(await asyncio.wait_for(reader.readline(), HELLO_TIMEOUT_S))
                await self._converse(hello, reader, writer=writer)
        finally:
            self._strangers.pop(writer, None)
            self._writers.discard(writer)
            writer.close()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a line as long as the token, and no more. Raise ValueError for another token. Of too
        many clients without it, the oldest is dropped: those of this job show it at once."""
        self._strangers[writer] = None
        if len(self._strangers) > MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        shown, expected = b"", token_line(self._token)
        while len(shown) < len(expected) and not shown.endswith(b"\n"):
            part = await reader.read(len(expected) - len(shown))
            shown += part or b"\n"
        if not hmac.compare_digest(shown, expected):
            raise ValueError("another token")
        self._strangers.pop(writer, None)

    async def _converse(
        self, hello: dict[str, Any], reader: asyncio.StreamReader, *, writer: asyncio.StreamWriter
    ) -> None:
        def send(message: dict[str, Any]) -> None:
            writer.write(encode(message))

        if "state_of" in hello:
            send(self._state(int(hello["state_of"]), hello["done"]))
            await writer.drain()
            return
        with self._lock:
            refusal = self._refusal(hello)
            if refusal:
                send({"error": refusal})
                return
            report = RankReport(len(self._ranks), str(hello["name"]))
            rank = _Rank(report, send)
            self._ranks.append(rank)
        send({"rank": report.rank})
        try:
            while line := await reader.readline():
                with self._lock:
                    self._answer(rank, decode(line))
                await writer.drain()
        finally:
            with self._lock:
                self._leave(rank)

    def _refusal(self, hello: dict[str, Any]) -> str:
        """Begin the job with its first rank. Return why a later one cannot take part, or nothing"""
        of, state = hello["job"], hello["state"]
        if self._ledger is None:
            self._of, self._resumed = of, state is not None
            self._ledger = ClaimLedger(of["batches"], run=of["run"], state=state)
            return ""
        differences = [
            f"{name} is {self._of.get(name)!r} there and {of.get(name)!r} here"
            for name in sorted({*self._of, *of})
            if self._of.get(name) != of.get(name)
        ]
        if differences:
            return f"the ranks of a job must agree: {'; '.join(differences)}"
        if state is not None and not self._resumed:
            return (
                "the job has begun without a state: restore() the state in every rank, with a new "
                "ShardServer"
            )
        if self._ledger.ended() and all(rank.report.state != "running" for rank in self._ranks):
            return (
                f"this job has ended: {len(self._ranks)} ranks have consumed all of its batches "
                "and left. A new training needs a new ShardServer"
            )
        return ""

    def _answer(self, rank: _Rank, message: dict[str, Any]) -> None:
        if "done" in message:
            rank.report.consumed += self._begun().consume(rank.report.rank, message["done"])
            self._wake()
        elif "claim" in message:
            rank.waits_in = int(message["claim"])
            self._wake()
            if rank.waits_in is not None:
                rank.send(WAIT)
        elif "bye" in message:
            rank.report.state = "left"

    def _state(self, number: int, done: list[int]) -> dict[str, Any]:
        with self._lock:
            self._ranks[number].report.consumed += self._begun().consume(number, done)
            self._wake()
            return {"state": self._begun().state()}

    def _leave(self, rank: _Rank) -> None:
        rank.waits_in = None
        if rank.report.state == "running":
            rank.report.state = "died"
        self._begun().leave(rank.report.rank)
        self._changed.notify_all()
        self._wake()

    def _wake(self) -> None:
        """Answer the claims that need not wait any more."""
        for rank in self._ranks:
            if rank.waits_in is None:
                continue
            found = self._begun().claim(rank.report.rank, rank.waits_in)
            if found is ClaimAnswer.WAIT:
                continue
            rank.waits_in = None
            rank.report.claimed += isinstance(found, int)
            rank.send({"item": found if isinstance(found, int) else None})
